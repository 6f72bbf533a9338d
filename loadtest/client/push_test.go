package client

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// own is this project's dialect over a transport.
func own(t Transport, f Format, subscriptions int) Dialect {
	return NewDialect(Options{
		Dialect: Pubsubd, Authority: "h:1", ContentType: "application/json", Mode: Batch,
		Transport: t, Format: f, Subscriptions: subscriptions,
	})
}

const (
	helloLine   = `{"hello":{"positions":["t@k3:4"]}}`
	messageLine = `{"position":"t@k3:5","time":1700000000000,"data":["1"]}`
	gapLine     = `{"gap":{"topic":"t","reason":"slow","after":"t@k3:5","position":"t@k3:9"}}`
	endLine     = `{"end":{"status":503,"code":"draining"}}`
	otherLine   = `{"position":"u@k3:5","time":1700000000000,"data":["1"]}`

	helloEvent   = "retry: 1500\nevent: hello\nid: t@k3:4\ndata: " + helloLine + "\n\n"
	messageEvent = "id: t@k3:5\ndata: " + messageLine + "\n\n"
	gapEvent     = "event: gap\nid: t@k3:9\ndata: " + gapLine + "\n\n"
)

// item is a line in CBOR.
func item(line string) string {
	c, err := wire.ParseLine([]byte(line))
	if err != nil {
		panic(err)
	}
	switch {
	case c.Message != nil:
		return string(wire.Content{Message: c.Message}.AppendCBOR(nil))
	case c.Gap != nil:
		return string(wire.Content{Gap: c.Gap}.AppendCBOR(nil))
	case c.Hello != nil:
		return string(wire.Content{Hello: c.Hello}.AppendCBOR(nil))
	case c.Reply != nil:
		return string(wire.Content{Reply: c.Reply}.AppendCBOR(nil))
	}
	return "\xf6"
}

func binaryFrame(payload string) string {
	return string([]byte{FinBinary, byte(len(payload))}) + payload
}

func TestPubsubdIsHeardOverEveryTransportInPiecesOfEverySize(t *testing.T) {
	const cborHead = "HTTP/1.1 200 OK\r\nContent-Type: application/cbor-seq\r\n" + chunked
	opened := "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 62\r\n\r\n" + strings.Replace(openedBody, "a@", "t@", 1)
	for name, c := range map[string]struct {
		dialect              Dialect
		request, opens, says string
	}{
		"events":        {own(SSE, JSON, 1), "GET /v1/sse?topic=t HTTP", "", eventsHead + chunked + chunk(helloEvent) + chunk(":\n\n"+messageEvent) + chunk(gapEvent)},
		"socket":        {own(WebSocket, JSON, 1), "GET /v1/ws?topic=t HTTP", "", switching + text(helloLine+"\n") + "\x89\x00" + text(messageLine+"\n") + text(gapLine+"\n")},
		"binary socket": {own(WebSocket, CBOR, 1), "GET /v1/ws?topic=t&format=cbor HTTP", "", switching + binaryFrame(item(helloLine)) + binaryFrame(item(messageLine)) + binaryFrame(item(gapLine))},
		"stream": {own(Streaming, CBOR, 1), "POST /v1/sessions",
			opened, cborHead + chunk(item(helloLine)+"\xf6") + chunk(item(messageLine)) + chunk(item(gapLine))},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(c.says); size++ {
				h := &heard{}
				m := c.dialect.Subscriber(0, "t", h)
				require.True(t, strings.HasPrefix(string(m.Connected(0)), c.request))
				if c.opens != "" {
					poll, err := m.Receive(0, []byte(c.opens))
					require.NoError(t, err)
					require.Contains(t, string(poll), "&mode=stream&format=cbor HTTP/1.1")
				}
				for b := []byte(c.says); len(b) > 0; b = b[min(size, len(b)):] {
					_, err := m.Receive(0, append([]byte{}, b[:min(size, len(b))]...))
					require.NoError(t, err, "pieces of %d", size)
				}
				require.Equal(t, []wire.Position{{Topic: "t", Epoch: "k3", Offset: 4}}, h.ready)
				require.Equal(t, []string{`["1"]`}, h.messages, "pieces of %d", size)
				require.Equal(t, []wire.GapReason{wire.GapSlow}, h.gaps)
			}
		})
	}
}

func TestWhatPushesOfPubsubdAreHeldTo(t *testing.T) {
	events := func(says ...string) string { return eventsHead + chunked + chunk(strings.Join(says, "")) }
	for name, c := range map[string]struct {
		transport Transport
		says      string
		want      string
	}{
		"a message before hello":      {SSE, events(messageEvent), "before hello"},
		"another topic's":             {WebSocket, switching + text(helloLine) + text(otherLine), "not for a subscriber"},
		"another topic's hello":       {WebSocket, switching + text(strings.Replace(helloLine, "t@", "u@", 1)), "hello has positions"},
		"a hello of two topics":       {WebSocket, switching + text(strings.Replace(helloLine, `"]`, `","u@k3:4"]`, 1)), "hello has positions"},
		"two hellos":                  {WebSocket, switching + text(helloLine) + text(helloLine), "arrived twice"},
		"the end":                     {WebSocket, switching + text(helloLine) + text(endLine), "the server is draining"},
		"the end of a stream":         {SSE, events(helloEvent, "event: end\nretry: 1\nid: t@k3:4\ndata: "+endLine+"\n\n"), "the server is draining"},
		"an id of another":            {SSE, events(helloEvent, strings.Replace(messageEvent, "id: t@k3:5", "id: t@k3:6", 1)), "has id"},
		"no id":                       {SSE, events(helloEvent, strings.Replace(messageEvent, "id: t@k3:5\n", "", 1)), "has id"},
		"a message by another name":   {SSE, events(helloEvent, "event: gap\n"+messageEvent), "has data"},
		"a gap without its name":      {SSE, events(helloEvent, strings.TrimPrefix(gapEvent, "event: gap\n")), "has data"},
		"a name that nobody knows":    {SSE, events(helloEvent, "event: x\n"+messageEvent), "has data"},
		"no frame":                    {SSE, events(helloEvent, "id: t@k3:5\ndata: x\n\n"), "frame"},
		"an answer of another format": {SSE, "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n" + chunked, "content type"},
		"a reply to nothing":          {WebSocket, switching + text(helloLine) + text(`{"reply":{"ref":1}}`), "no command was sent"},
		"moved to nobody":             {WebSocket, switching + text(helloLine) + text(`{"moved":{"positions":["t@k3:5"]}}`), "was not asked for"},
		"binary, where text is due":   {WebSocket, switching + binaryFrame(item(helloLine)), "begins with"},
	} {
		t.Run(name, func(t *testing.T) {
			m := own(c.transport, JSON, 1).Subscriber(0, "t", &heard{})
			m.Connected(0)
			_, err := m.Receive(0, []byte(c.says))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestPushesMayHaveQuietTopics(t *testing.T) {
	says := map[Transport]string{
		SSE: eventsHead + chunked + chunk("event: hello\nid: x\ndata: {\"hello\":{\"positions\":[\"t.quiet.7.1@k3:0\",\"t@k3:4\"]}}\n\n"+
			strings.Replace(messageEvent, "id: ", "id: t.quiet.7.1@k3:0,", 1)),
		WebSocket: switching + text(`{"hello":{"positions":["t.quiet.7.1@k3:0","t@k3:4"]}}`) + text(messageLine),
	}
	for transport, says := range says {
		h := &heard{}
		m := own(transport, JSON, 2).Subscriber(7, "t", h)
		require.Contains(t, string(m.Connected(0)), "?topic=t&topic=t.quiet.7.1 ")
		_, err := m.Receive(0, []byte(says))
		require.NoError(t, err)
		require.Len(t, h.messages, 1)
	}
}

// commanded is what a client's frame says, in JSON.
func commanded(t *testing.T, frame []byte) string {
	t.Helper()
	require.Equal(t, byte(masked), frame[1]&masked)
	frame[1] &^= masked
	payload, _, err := CutFrame(append(frame[:2:2], frame[6:]...)) // the key is zero
	require.NoError(t, err)
	if frame[0] == FinBinary {
		payload = cbor.AppendJSON(nil, payload)
	}
	return string(payload)
}

func TestASocketPublishesAndKnowsTheAnswer(t *testing.T) {
	for _, format := range Formats() {
		says := text
		if format == CBOR {
			says = func(line string) string { return binaryFrame(item(line)) }
		}
		d, h, p := own(WebSocket, format, 1), &heard{}, &publisherHeard{}
		m := d.Subscriber(0, "t", h).(Speaker)
		publisher := m.Publisher(p)
		m.Connected(0)
		_, err := m.Receive(0, []byte(switching+says(helloLine)))
		require.NoError(t, err)

		require.JSONEq(t, `{"publish":{"topic":"t","data":["1"]},"ref":1}`, commanded(t, publisher.Publish(d.PublishForm("t"), []byte(`["1"]`))))
		require.True(t, publisher.Busy())
		p.next = []byte("next")
		sent, err := m.Receive(0, []byte(says(`{"reply":{"ref":1,"position":"t@k3:5","time":1}}`)+says(messageLine)))
		require.NoError(t, err)
		require.Equal(t, "next", string(sent))
		require.Equal(t, []error{nil}, p.refusals)
		require.False(t, publisher.Busy())
		require.Len(t, h.messages, 1)

		plain := NewPublishForm("h:1", "t", "text/plain")
		require.JSONEq(t, `{"publish":{"topic":"t","type":"text/plain","text":"17"},"ref":2}`, commanded(t, publisher.Publish(plain, []byte("17"))))
		_, err = m.Receive(0, []byte(says(`{"reply":{"ref":2,"problem":{"status":503,"code":"overloaded"}}}`)))
		require.NoError(t, err)
		require.ErrorContains(t, p.refusals[1], "overloaded")

		publisher.Publish(plain, []byte("18"))
		m.Closed(0, io.EOF)
		require.ErrorContains(t, p.closed, "publish unanswered")
		require.ErrorIs(t, h.closed, io.EOF)
	}
}

func TestRepliesAreHeldToTheirPublish(t *testing.T) {
	for _, reply := range []string{`{"ref":2,"position":"t@k3:5","time":1}`, `{"position":"t@k3:5","time":1}`, `{"ref":1,"position":"u@k3:5","time":1}`, `{"ref":1}`} {
		d, p := own(WebSocket, JSON, 1), &publisherHeard{}
		m := d.Subscriber(0, "t", &heard{}).(Speaker)
		m.Publisher(p).Publish(d.PublishForm("t"), []byte("1"))
		m.Connected(0)
		_, err := m.Receive(0, []byte(switching+text(helloLine)+text(`{"reply":`+reply+`}`)))
		require.Error(t, err, reply)
		require.Empty(t, p.refusals, "neither taken nor refused")
	}
}

// itemsIn feeds a sequence in pieces of the given size.
func itemsIn(sequence []byte, size int) ([]seen, error) {
	s, sink := itemScanner{items: &itemCache{}}, &seenFrames{}
	for b := sequence; len(b) > 0; {
		piece := append([]byte{}, b[:min(size, len(b))]...)
		b = b[len(piece):]
		if err := s.Feed(piece, sink); err != nil {
			return sink.all, err
		}
		clear(piece)
	}
	return sink.all, s.Finish()
}

// decodeItems reads a sequence as every client does.
func decodeItems(sequence []byte) ([]seen, error) {
	d := wire.NewCBORDecoder(strings.NewReader(string(sequence)))
	var all []seen
	for {
		c, err := d.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, fromContent(c))
	}
}

var sequences = map[string]string{
	"every kind":     item(helloLine) + item(messageLine) + item(messageLine) + "\xf6" + item(gapLine) + item(messageLine),
	"cut off":        item(messageLine) + item(messageLine)[:20],
	"no frame":       item(messageLine) + "\x01",
	"bad position":   "\x89\x00\x61t\x62K3\x01\x01\xf6\x01\xf6\xf6",
	"of a new kind":  "\x81\x18\x63",
	"more elements":  "\x8a" + item(messageLine)[1:] + "\x01",
	"no such string": "\xff",
}

// The scanner sees what wire.CBORDecoder sees, however the bytes are split.
func TestItemScannerAgreesWithDecoder(t *testing.T) {
	for name, sequence := range sequences {
		t.Run(name, func(t *testing.T) {
			want, wantErr := decodeItems([]byte(sequence))
			for size := 1; size <= len(sequence); size++ {
				got, err := itemsIn([]byte(sequence), size)
				require.Equal(t, want, got, "pieces of %d", size)
				require.Equal(t, wantErr == nil, err == nil, "pieces of %d: got %v, want %v", size, err, wantErr)
				require.Equal(t, errors.Is(wantErr, io.ErrUnexpectedEOF), errors.Is(err, io.ErrUnexpectedEOF))
			}
		})
	}
}

func FuzzItemScanner(f *testing.F) {
	for _, sequence := range sequences {
		f.Add([]byte(sequence), 3)
	}
	f.Fuzz(func(t *testing.T, sequence []byte, size int) {
		want, wantErr := decodeItems(sequence)
		got, err := itemsIn(sequence, max(size, 1))
		require.Equal(t, want, got)
		require.Equal(t, wantErr == nil, err == nil, "got %v, want %v", err, wantErr)
	})
}

// Fast path: what came before costs no allocation.
func TestARepeatedPushAllocatesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		dialect     Dialect
		begin, push string
	}{
		"events":        {own(SSE, JSON, 1), eventsHead + chunked + chunk(helloEvent), chunk(messageEvent)},
		"socket":        {own(WebSocket, JSON, 1), switching + text(helloLine), text(messageLine + "\n")},
		"binary socket": {own(WebSocket, CBOR, 1), switching + binaryFrame(item(helloLine)), binaryFrame(item(messageLine))},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.dialect.Subscriber(0, "t", &countingEvents{})
			m.Connected(0)
			push := []byte(c.push)
			_, err := m.Receive(0, append([]byte(c.begin), push...))
			require.NoError(t, err)
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if _, err := m.Receive(0, push); err != nil {
					panic(err)
				}
			}))
		})
	}
}

// countingEvents keep nothing.
type countingEvents struct{ heard }

func (*countingEvents) Message(int, *Frame, time.Duration) error { return nil }

func TestCommandsAreWhatTheProtocolHas(t *testing.T) {
	d := own(WebSocket, JSON, 1)
	publisher := d.Subscriber(0, "t", &heard{}).(Speaker).Publisher(&publisherHeard{})
	var c wire.Command
	require.NoError(t, json.Unmarshal([]byte(commanded(t, publisher.Publish(d.PublishForm("t"), []byte(`{"a":1}`)))), &c))
	require.Equal(t, "t", c.Publish.Topic)
	require.EqualValues(t, 1, *c.Ref)
}
