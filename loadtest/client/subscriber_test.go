package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// heard records what a Subscriber or Publisher tells.
type heard struct {
	ready    []wire.Position
	messages []string
	gaps     []wire.GapReason
	refusals []error
	next     []byte // what a free publisher sends
	closed   error
}

func (h *heard) Ready(_ int, p wire.Position) { h.ready = append(h.ready, p) }

func (h *heard) Message(_ int, f *Frame, _ time.Duration) error {
	h.messages = append(h.messages, string(f.Data))
	return nil
}

func (h *heard) Gap(_ int, g *wire.Gap)                { h.gaps = append(h.gaps, g.Reason) }
func (h *heard) Closed(_ int, err error)               { h.closed = err }
func (h *publisherHeard) Free(*Publisher) []byte       { return h.next }
func (h *publisherHeard) Closed(_ *Publisher, e error) { h.closed = e }

type publisherHeard struct{ heard }

func (h *publisherHeard) Answered(_ *Publisher, _ wire.Position, refusal error, _ time.Duration) {
	h.refusals = append(h.refusals, refusal)
}

func answer(status, contentType, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", status, contentType, len(body), body)
}

func ndjson(lines ...string) []byte {
	return answer("200 OK", "application/x-ndjson", strings.Join(lines, "\n")+"\n")
}

const openedBody = `{"session":"S1","ack":true,"positions":["a@k3:4"],"limits":{}}`

// requestLine is the first line of a request that a browser could have sent.
func requestLine(t *testing.T, request []byte) string {
	t.Helper()
	line, rest, _ := strings.Cut(string(request), "\r\n")
	for _, header := range []string{"Host: h:1\r\n", "User-Agent: Mozilla/5.0", "Accept-Encoding: ", "Sec-Fetch-Site: same-origin"} {
		require.Contains(t, rest, header)
	}
	return line
}

func TestASessionIsOpenedPolledAndAcked(t *testing.T) {
	h := &heard{}
	s := NewKit("h:1", Batch, false).NewSubscriber(0, "a", h)
	open := string(s.Connected(0))
	require.Equal(t, "POST /v1/sessions HTTP/1.1", requestLine(t, []byte(open)))
	require.True(t, strings.HasSuffix(open, "Content-Length: 16\r\n\r\n{\"topics\":[\"a\"]}"), "%q", open)

	poll, err := s.Receive(0, answer("201 Created", "application/json", openedBody))
	require.NoError(t, err)
	require.Equal(t, "GET /v1/sessions/S1/poll?ack=0&mode=batch HTTP/1.1", requestLine(t, poll))
	require.Equal(t, []wire.Position{{Topic: "a", Epoch: "k3", Offset: 4}}, h.ready)

	poll, err = s.Receive(0, ndjson(`{"position":"a@k3:5","time":1,"data":1}`, "",
		`{"gap":{"topic":"a","reason":"slow","after":"a@k3:5","position":"a@k3:7"}}`, `{"position":"a@k3:8","time":1,"data":2}`))
	require.NoError(t, err)
	require.Equal(t, "GET /v1/sessions/S1/poll?ack=3&mode=batch HTTP/1.1", requestLine(t, poll), "heartbeats do not count")
	require.Equal(t, []string{"1", "2"}, h.messages)
	require.Equal(t, []wire.GapReason{wire.GapSlow}, h.gaps)

	poll, err = s.Receive(0, answer("200 OK", "application/x-ndjson", ""))
	require.NoError(t, err)
	require.Equal(t, "GET /v1/sessions/S1/poll?ack=3&mode=batch HTTP/1.1", requestLine(t, poll), "an empty answer")
}

func TestAStatelessSubscriberGoesOnByPosition(t *testing.T) {
	h := &heard{}
	s := NewKit("h:1", Single, true).NewSubscriber(0, "a", h)
	require.Equal(t, "GET /v1/poll?topic=a&mode=single HTTP/1.1", requestLine(t, s.Connected(0)))
	poll, err := s.Receive(0, ndjson(`{"hello":{"positions":["a@k3:4"]}}`))
	require.NoError(t, err)
	require.Equal(t, "GET /v1/poll?topic=a@k3:4&mode=single HTTP/1.1", requestLine(t, poll))
	require.Len(t, h.ready, 1)
	poll, err = s.Receive(0, ndjson(`{"position":"a@k3:9","time":1,"data":1}`))
	require.NoError(t, err)
	require.Equal(t, "GET /v1/poll?topic=a@k3:9&mode=single HTTP/1.1", requestLine(t, poll))
}

func TestAStreamGoesOnWithoutFurtherRequests(t *testing.T) {
	h := &heard{}
	s := NewKit("h:1", Stream, true).NewSubscriber(0, "a", h)
	s.Connected(0)
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, piece := range []string{head, "23\r\n{\"hello\":{\"positions\":[\"a@k3:4\"]}}\n\r\n", "28\r\n{\"position\":\"a@k3:5\",\"time\":1,\"data\":1}\n\r\n", "1\r\n\n\r\n"} {
		request, err := s.Receive(0, []byte(piece))
		require.NoError(t, err, "%q", piece)
		require.Empty(t, request)
	}
	require.Equal(t, []string{"1"}, h.messages)
	_, err := s.Receive(0, []byte("0\r\n\r\n"))
	require.ErrorContains(t, err, "stream ended")
}

func TestWhatASubscriberDoesNotTake(t *testing.T) {
	opened := answer("201 Created", "application/json", openedBody)
	for name, c := range map[string]struct {
		mode      Mode
		stateless bool
		answers   [][]byte
		want      string
	}{
		"refused opening":   {Batch, false, [][]byte{answer("429 Too Many Requests", wire.ProblemType, `{"status":429,"code":"limited","detail":"full"}`)}, "answered 429: limited: full"},
		"refused, no code":  {Batch, false, [][]byte{answer("502 Bad Gateway", "text/html", `<h1>`)}, `answered 502: "<h1>"`},
		"odd opening":       {Batch, false, [][]byte{answer("201 Created", "application/json", `[]`)}, "opened session"},
		"another's opening": {Batch, false, [][]byte{answer("201 Created", "application/json", strings.Replace(openedBody, "a@", "b@", 1))}, "not the requested one"},
		"opening with 200":  {Batch, false, [][]byte{answer("200 OK", "application/json", openedBody)}, "answered 200"},
		"replaced poll":     {Batch, false, [][]byte{opened, answer("409 Conflict", wire.ProblemType, `{"status":409,"code":"poll_replaced"}`)}, "poll_replaced"},
		"no content":        {Batch, false, [][]byte{opened, []byte("HTTP/1.1 204 No Content\r\n\r\n")}, "answered 204"},
		"another type":      {Batch, false, [][]byte{opened, answer("200 OK", "text/html", "{}\n")}, "content type"},
		"another topic":     {Batch, false, [][]byte{opened, ndjson(`{"position":"b@k3:5","time":1,"data":1}`)}, `topic "b"`},
		"end frame":         {Batch, false, [][]byte{opened, ndjson(`{"end":{"status":503,"code":"draining"}}`)}, "draining"},
		"cut-off line":      {Batch, false, [][]byte{opened, answer("200 OK", "application/x-ndjson", `{"pos`)}, "ends within"},
		"two answers":       {Batch, false, [][]byte{opened, append(ndjson(""), ndjson("")...)}, "unexpected bytes"},
		"frame, no hello":   {Batch, true, [][]byte{ndjson(`{"position":"a@k3:5","time":1,"data":1}`)}, "before hello"},
		"another's hello":   {Batch, true, [][]byte{ndjson(`{"hello":{"positions":["b@k3:4"]}}`)}, "hello has positions"},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewKit("h:1", c.mode, c.stateless).NewSubscriber(0, "a", &heard{})
			s.Connected(0)
			var err error
			for _, a := range c.answers {
				require.NoError(t, err)
				_, err = s.Receive(0, a)
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAPublisherPublishesOneAtATime(t *testing.T) {
	kit := NewKit("h:1", Batch, false)
	h := &publisherHeard{}
	p := kit.NewPublisher(h)
	require.Empty(t, p.Connected(0))
	form := NewPublishForm("h:1", "a.b", "text/plain")
	request := string(p.Publish(form, []byte("0000000017")))
	require.Equal(t, "POST /v1/topics/a.b/messages HTTP/1.1", requestLine(t, []byte(request)))
	require.True(t, strings.HasSuffix(request, "Origin: http://h:1\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\n0000000017"))
	require.True(t, p.Busy())
	require.Panics(t, func() { p.Publish(form, nil) })

	h.next = []byte("next")
	text := answer("200 OK", "application/json", `{"position":"a.b@k3:18","time":1}`)
	for _, piece := range [][]byte{text[:20], text[20:]} {
		request, err := p.Receive(0, piece)
		require.NoError(t, err)
		require.Equal(t, len(h.refusals) == 1, string(request) == "next", "only at the answer's end")
	}
	require.Equal(t, []error{nil}, h.refusals)
	require.False(t, p.Busy())

	p.Publish(form, nil)
	_, err := p.Receive(0, answer("503 Service Unavailable", wire.ProblemType, `{"status":503,"code":"overloaded"}`))
	require.NoError(t, err)
	require.ErrorContains(t, h.refusals[1], "answered 503: overloaded")

	_, err = p.Receive(0, text)
	require.ErrorContains(t, err, "unexpected bytes")
	p.Publish(form, nil)
	p.Closed(0, err)
	require.ErrorContains(t, h.closed, "publish unanswered")
}

// A refusal may announce that the connection ends; the reason must not drown in it.
func TestADrainingServerIsNamed(t *testing.T) {
	const body = `{"status":503,"code":"draining"}`
	draining := fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		wire.ProblemType, len(body), body)
	kit := NewKit("h:1", Batch, false)
	s := kit.NewSubscriber(0, "a", &heard{})
	s.Connected(0)
	_, err := s.Receive(0, draining)
	require.ErrorContains(t, err, "the server is draining")

	h := &publisherHeard{}
	p := kit.NewPublisher(h)
	p.Publish(NewPublishForm("h:1", "a", "text/plain"), nil)
	next, err := p.Receive(0, draining)
	require.ErrorContains(t, h.refusals[0], "the server is draining")
	require.ErrorIs(t, err, errClosing)
	require.Empty(t, next)
}

func TestAnAnswerCountsBeforeWhatIsWrongWithTheRest(t *testing.T) {
	h := &publisherHeard{}
	p := NewKit("h:1", Batch, false).NewPublisher(h)
	h.next = []byte("next")
	p.Publish(NewPublishForm("h:1", "a", "text/plain"), nil)
	next, err := p.Receive(0, append(answer("503 Service Unavailable", "text/plain", ""), "GARBAGE"...))
	require.ErrorContains(t, err, "unexpected bytes")
	require.Len(t, h.refusals, 1)
	require.Empty(t, next)
}

func TestAPublishsAnswerMustNameAMessageOfItsTopic(t *testing.T) {
	for _, body := range []string{"<html>", "{}", `{"position":"b@k3:1","time":1}`, `{"position":"a@k3:0","time":1}`, `{"position":"a@k3:1"}}`} {
		h := &publisherHeard{}
		p := NewKit("h:1", Batch, false).NewPublisher(h)
		p.Publish(NewPublishForm("h:1", "a", "text/plain"), nil)
		_, err := p.Receive(0, answer("200 OK", "application/json", body))
		require.Error(t, err, body)
		require.Empty(t, h.refusals, "neither taken nor refused")
		require.True(t, p.Busy())
	}
}
