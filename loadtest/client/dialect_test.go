package client

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func dialect(name string) Dialect {
	return NewDialect(Options{
		Dialect: name, Authority: "h:1", ContentType: "application/json", Mode: Batch,
		SubscribePath: "/s/{topic}", PublishPath: "/p/{topic}", APIKey: "k", Token: "t",
	})
}

const (
	eventsHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
	chunked    = "Transfer-Encoding: chunked\r\n\r\n"
	switching  = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + socketAccept + "\r\n\r\n"
	subscribed = `{"connect":{"client":"c","subs":{"t":{}}}}`
	pub        = `{"channel":"t","pub":{"data":[1]}}`
)

func chunk(text string) string { return string(appendHexChunk(text)) }

func appendHexChunk(text string) []byte {
	const digits = "0123456789abcdef"
	n := len(text)
	return append([]byte{digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15], '\r', '\n'}, text+"\r\n"...)
}

func text(payload string) string {
	return string([]byte{FinText, byte(len(payload))}) + payload
}

// What each server says, in pieces of every size: the messages are the same.
func TestDialectsHearMessagesInPiecesOfEverySize(t *testing.T) {
	event := "id: 1\ndata: [1]\n\n"
	for name, c := range map[string]struct{ dialect, request, says string }{
		"floor":           {"floor", "GET /poll?t=t", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]"},
		"floor stream":    {"floor-stream", "GET /stream?t=t", "HTTP/1.1 200 OK\r\n" + chunked + chunk("[1]\n")},
		"nchan long poll": {"nchan-longpoll", "GET /s/t", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nLast-Modified: L\r\nEtag: 7\r\n\r\n[1]"},
		"nchan events":    {"nchan-sse", "GET /s/t", eventsHead + "Connection: close\r\n\r\n: hi\n\n" + event},
		"nchan socket":    {"nchan-ws", "GET /s/t", switching + text("[1]")},
		"centrifugo events": {"centrifugo-sse", "GET /connection/uni_sse?cf_connect=%7B",
			eventsHead + chunked + chunk("data: "+subscribed+"\n\n") + chunk("data: {}\n\ndata: "+pub+"\n\n")},
		"centrifugo stream": {"centrifugo-stream", "POST /connection/uni_http_stream",
			"HTTP/1.1 200 OK\r\n" + chunked + chunk(subscribed+"\n{}\n") + chunk(pub+"\n")},
		"centrifugo socket": {"centrifugo-ws", "GET /connection/uni_websocket", switching + text(subscribed) + text("{}\n"+pub)},
		"mercure":           {"mercure", "GET /.well-known/mercure?topic=http%3A%2F%2Floadtest%2Ft", eventsHead + chunked + chunk(":\n") + chunk(event)},
		"plain events":      {"sse", "GET /s/t", eventsHead + chunked + chunk("event: other\r\ndata: x\r\n\r\ndata: [1]\r\n\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			d := dialect(c.dialect)
			for size := 1; size <= len(c.says); size++ {
				h := &heard{}
				m := d.Subscriber(0, "t", h)
				require.True(t, strings.HasPrefix(string(m.Connected(0)), c.request))
				for b := []byte(c.says); len(b) > 0; b = b[min(size, len(b)):] {
					_, err := m.Receive(0, append([]byte{}, b[:min(size, len(b))]...))
					require.NoError(t, err, "pieces of %d", size)
				}
				require.Len(t, h.ready, 1)
				require.Equal(t, []string{"[1]"}, h.messages, "pieces of %d", size)
			}
		})
	}
}

func TestNchansNextPollFollowsTheMessage(t *testing.T) {
	m := dialect("nchan-longpoll").Subscriber(0, "t", &heard{})
	require.NotContains(t, string(m.Connected(0)), "If-None-Match")
	next, err := m.Receive(0, []byte("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nEtag: 3\r\n\r\n1"))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(next), "\r\nIf-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT\r\nIf-None-Match: 3\r\n\r\n"), "%q", next)
}

func TestASocketAnswersPings(t *testing.T) {
	m := dialect("nchan-ws").Subscriber(0, "t", &heard{})
	m.Connected(0)
	reply, err := m.Receive(0, []byte(switching+"\x89\x02hi"))
	require.NoError(t, err)
	require.Equal(t, "\x8a\x82\x00\x00\x00\x00hi", string(reply))
}

func TestWhatDialectsDoNotTake(t *testing.T) {
	for name, c := range map[string]struct{ dialect, says, want string }{
		"poll refused":        {"nchan-longpoll", "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "answered 403"},
		"poll without ids":    {"nchan-longpoll", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1", "Last-Modified"},
		"stream refused":      {"sse", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno", "answered 401"},
		"stream of pages":     {"sse", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + chunked, "content type"},
		"stream ends":         {"sse", eventsHead + chunked + "0\r\n\r\n", "the stream ended"},
		"unknown field":       {"sse", eventsHead + chunked + chunk("dat: 1\n\n"), "unknown field"},
		"handshake refused":   {"nchan-ws", "HTTP/1.1 404 Not Found\r\n\r\n", "refused"},
		"another's handshake": {"nchan-ws", strings.Replace(switching, socketAccept, "x", 1), "lacks"},
		"an extension":        {"nchan-ws", strings.Replace(switching, "\r\n\r\n", "\r\nSec-WebSocket-Extensions: x\r\n\r\n", 1), "did not offer"},
		"masked frame":        {"nchan-ws", switching + "\x81\x81\x00\x00\x00\x00x", "masked"},
		"fragment":            {"nchan-ws", switching + "\x01\x01x", "begins with"},
		"long frame":          {"nchan-ws", switching + "\x81\x7f\x00\x00\x00\x00\xff\x00\x00\x00", "longer"},
		"close":               {"nchan-ws", switching + "\x88\x00", "closed the WebSocket"},
		"disconnect":          {"centrifugo-ws", switching + text(`{"disconnect":{"code":3000,"reason":"bye"}}`), "3000 bye"},
		"no subscription":     {"centrifugo-ws", switching + text(`{"connect":{}}`), "expects"},
		"early push":          {"centrifugo-ws", switching + text(pub), "before the subscription"},
		"another's push":      {"centrifugo-ws", switching + text(subscribed) + text(strings.Replace(pub, `"t"`, `"u"`, 1)), "not for a subscriber"},
	} {
		t.Run(name, func(t *testing.T) {
			m := dialect(c.dialect).Subscriber(0, "t", &heard{})
			m.Connected(0)
			_, err := m.Receive(0, []byte(c.says))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestHowDialectsPublish(t *testing.T) {
	for name, c := range map[string]struct{ request, header, body string }{
		"floor":         {"POST /pub?t=t ", "Content-Type: application/json\r\n", `["a b"]`},
		"nchan-sse":     {"POST /p/t ", "Content-Type: application/json\r\n", `["a b"]`},
		"sse":           {"POST /p/t ", "Authorization: Bearer t\r\n", `["a b"]`},
		"mercure":       {"POST /.well-known/mercure ", "Authorization: Bearer t\r\n", "topic=http%3A%2F%2Floadtest%2Ft&data=%5B%22a+b%22%5D"},
		"centrifugo-ws": {"POST /api/publish ", "X-API-Key: k\r\n", `{"channel":"t","data":["a b"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			d := dialect(name)
			request := string(d.NewPublisher(&publisherHeard{}).Publish(d.PublishForm("t"), []byte(`["a b"]`)))
			require.True(t, strings.HasPrefix(request, c.request), "%q", request)
			require.Contains(t, request, c.header)
			require.True(t, strings.HasSuffix(request, "\r\n\r\n"+c.body), "%q", request)
			requestLine(t, []byte(request))
		})
	}
}

func TestCentrifugosErrorsAreRefusals(t *testing.T) {
	d, h := dialect("centrifugo-ws"), &publisherHeard{}
	p := d.NewPublisher(h)
	for _, body := range []string{`{"result":{}}`, `{"error":{"code":108}}`} {
		p.Publish(d.PublishForm("t"), []byte("1"))
		_, err := p.Receive(0, answer("200 OK", "application/json", body))
		require.NoError(t, err)
	}
	require.NoError(t, h.refusals[0])
	require.ErrorContains(t, h.refusals[1], "108")
}

func TestASessionMayHaveQuietTopics(t *testing.T) {
	h := &heard{}
	s := NewDialect(Options{Dialect: Pubsubd, Authority: "h:1", Mode: Batch, Subscriptions: 3}).Subscriber(5, "a", h)
	require.Contains(t, string(s.Connected(0)), `{"topics":["a","a.quiet.5.1","a.quiet.5.2"]}`)
	_, err := s.Receive(0, answer("201 Created", "application/json", strings.Replace(openedBody, `"a@k3:4"`, `"a.quiet.5.1@k3:0","a@k3:4","a.quiet.5.2@k3:0"`, 1)))
	require.NoError(t, err)
	require.EqualValues(t, 4, h.ready[0].Offset)
}
