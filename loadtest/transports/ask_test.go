package transports

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/floor/bare"
)

func sent(e encoding, i int) string {
	return string(encoded[e](seen{origin.Offset + uint64(i) + 1, 1_763_757_000_123, i}))
}

func lengthAnswer(media, body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", media, len(body), body)
}

func chunked(media string, chunks ...string) string {
	b := "HTTP/1.1 200 OK\r\nContent-Type: " + media + "\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range chunks {
		b += fmt.Sprintf("%x\r\n%s\r\n", len(c), c)
	}
	return b
}

const (
	ndjson   = "application/x-ndjson"
	cborSeq  = "application/cbor-seq"
	upgraded = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)

func framed(first byte, payload string) string {
	b := []byte{first, byte(len(payload))}
	if len(payload) > 125 {
		b = []byte{first, 126, byte(len(payload) >> 8), byte(len(payload))}
	}
	return string(b) + payload
}

// conversations are what a server says to each transport when it sends two messages:
// an answer for each request.
var conversations = map[subject][]string{
	{transport: Single, format: JSON}:   {lengthAnswer(ndjson, sent(lines, 0)), lengthAnswer(ndjson, ""), lengthAnswer(ndjson, sent(lines, 1))},
	{transport: Single, format: CBOR}:   {lengthAnswer(cborSeq, sent(items, 0)), lengthAnswer(cborSeq, sent(items, 1))},
	{transport: BareLoop, format: JSON}: {lengthAnswer(ndjson, sent(lines, 0)), lengthAnswer(ndjson, sent(lines, 1))},
	{transport: Batch, format: JSON}:    {lengthAnswer(ndjson, sent(lines, 0)+sent(lines, 1))},
	{transport: Multiple, format: CBOR}: {chunked(cborSeq, sent(items, 0)[:9], sent(items, 0)[9:]) + "0\r\n\r\n", chunked(cborSeq, sent(items, 1))},
	{transport: Stream, format: JSON}:   {chunked(ndjson, others[lines].hello, sent(lines, 0)+sent(lines, 1)[:50], sent(lines, 1)[50:])},
	{transport: SSE, format: JSON}:      {chunked("text/event-stream", others[events].hello+sent(events, 0), others[events].heartbeat, sent(events, 1))},
	{transport: WebSocket, format: JSON}: {
		upgraded + framed(client.FinText, others[lines].hello) + framed(client.FinText, sent(lines, 0)) + framed(client.FinPong, "") + framed(client.FinText, sent(lines, 1)),
	},
	{transport: WebSocket, format: CBOR}:  {upgraded + framed(client.FinBinary, others[items].hello) + framed(client.FinBinary, sent(items, 0)) + framed(client.FinBinary, sent(items, 1))},
	{transport: TCP, format: CBOR}:        {others[items].hello + sent(items, 0) + "\xf6" + sent(items, 1)},
	{transport: BareWriter, format: CBOR}: {sent(items, 0) + sent(items, 1)},
}

func newTestTransport(s subject, wanted int) (transport, *content) {
	a := asker{subject: s, authority: "h:1", start: origin.Topic + "@oldest", at: origin, bare: 5}
	return a.newTransport(newTally(origin.Offset, wanted), "SESSION")
}

// Every transport has both messages, whatever pieces they come in, and asks only
// when an answer is over.
func TestEveryTransportReadsItsMessages(t *testing.T) {
	for s, answers := range conversations {
		for _, size := range []int{1, 2, 7, 100, 1 << 20} {
			transport, content := newTestTransport(s, 2)
			require.NotEmpty(t, transport.ask())
			for i, answer := range answers {
				var reply []byte
				var err error
				for from := 0; from < len(answer); from += size {
					require.Empty(t, reply, "%v asks before its answer is over", s)
					reply, err = transport.receive([]byte(answer[from:min(from+size, len(answer))]))
					require.NoError(t, err, "%v", s)
				}
				require.Equal(t, i < len(answers)-1, len(reply) > 0, "%v after answer %d", s, i)
			}
			require.True(t, content.tally.complete(), "%v in pieces of %d", s, size)
		}
	}
}

func TestRequestsAreABrowsers(t *testing.T) {
	for s, path := range map[subject]string{
		{transport: Single, format: JSON}:    "GET /v1/sessions/SESSION/poll?ack=0&mode=single&format=json HTTP/1.1\r\n",
		{transport: BareLoop, format: JSON}:  "GET /v1/sessions/SESSION/poll?ack=0&mode=single&format=json HTTP/1.1\r\n",
		{transport: Multiple, format: CBOR}:  "GET /v1/sessions/SESSION/poll?ack=0&mode=multiple&format=cbor HTTP/1.1\r\n",
		{transport: Stream, format: CBOR}:    "GET /v1/sessions/SESSION/poll?ack=0&mode=stream&format=cbor HTTP/1.1\r\n",
		{transport: SSE, format: JSON}:       "GET /v1/sse?topic=loadtest.abc.t0001@oldest HTTP/1.1\r\n",
		{transport: WebSocket, format: CBOR}: "GET /v1/ws?topic=loadtest.abc.t0001@oldest&format=cbor HTTP/1.1\r\n",
	} {
		transport, _ := newTestTransport(s, 2)
		request := string(transport.ask())
		require.True(t, strings.HasPrefix(request, path), request)
		require.Contains(t, request, "User-Agent: Mozilla/5.0")
		require.True(t, strings.HasSuffix(request, "\r\n\r\n"))
	}
	tcp, _ := newTestTransport(subject{transport: TCP, format: CBOR}, 2)
	require.Equal(t, "\xa1\x66topics\x81\x78\x19loadtest.abc.t0001@oldest", string(tcp.ask()))
	writer, _ := newTestTransport(subject{transport: BareWriter, format: CBOR}, 2)
	require.Equal(t, []byte{bare.Write, 5}, writer.ask())
}

// A poll acks what it has.
func TestPollsAck(t *testing.T) {
	polling, _ := newTestTransport(subject{transport: Batch, format: JSON}, 3)
	polling.ask()
	reply, err := polling.receive([]byte(lengthAnswer(ndjson, sent(lines, 0)+sent(lines, 1))))
	require.NoError(t, err)
	require.Contains(t, string(reply), "/poll?ack=2&mode=batch")
}

func TestAWebSocketAnswersPings(t *testing.T) {
	socket, _ := newTestTransport(subject{transport: WebSocket, format: JSON}, 2)
	reply, err := socket.receive([]byte(upgraded + framed(client.FinPing, "x")))
	require.NoError(t, err)
	require.Equal(t, client.AppendFrame(nil, client.FinPong, []byte("x")), reply)
}

func TestAnswersThatAreNotWhatWasAskedFor(t *testing.T) {
	refused := "HTTP/1.1 406 Not Acceptable\r\nContent-Type: application/problem+json\r\nContent-Length: 25\r\n\r\n{\"code\":\"not_acceptable\"}"
	for _, each := range []struct {
		transport, format, answer, want string
	}{
		{Single, CBOR, refused, "answered 406: \"{\\\"code"},
		{Stream, JSON, refused, "answered 406"},
		{SSE, JSON, lengthAnswer(ndjson, sent(lines, 0)), "content type"},
		{Batch, CBOR, lengthAnswer(ndjson, sent(lines, 0)), "content type"},
		{Batch, JSON, lengthAnswer(ndjson, sent(lines, 0)[:30]), "within frame"},
		{Batch, JSON, lengthAnswer(ndjson, sent(lines, 0)) + "HTTP/1.1", "unexpected bytes"},
		{Stream, JSON, chunked(ndjson, sent(lines, 0)) + "0\r\n\r\n", "1 messages missing"},
		{WebSocket, JSON, refused, "handshake"},
		{WebSocket, JSON, upgraded + framed(client.FinBinary, sent(items, 0)), "where a message begins"},
		{WebSocket, JSON, upgraded + framed(client.FinText, sent(lines, 0)[:40]), "within frame"},
		{WebSocket, JSON, upgraded + framed(client.FinClose, "\x03\xe9"), "closed the WebSocket"},
	} {
		transport, _ := newTestTransport(subject{transport: each.transport, format: each.format}, 2)
		transport.ask()
		_, err := transport.receive([]byte(each.answer))
		require.ErrorContains(t, err, each.want, "%v", each)
	}
}

// What the floor is given for the bare loop is what the server answered, but for
// the message.
func TestTheBareLoopsAnswersAreTheServers(t *testing.T) {
	head := bytes.TrimSuffix([]byte(lengthAnswer(ndjson, "!")), []byte("!"))
	whole := answers(head, [][]byte{[]byte(sent(lines, 0)), []byte(sent(lines, 1))})
	require.Equal(t, lengthAnswer(ndjson, sent(lines, 1)), string(whole[1]))
}
