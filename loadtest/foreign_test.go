package loadtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/client"
)

// A foreignServer speaks as the other servers do, as simply as possible. It
// keeps all messages for ever.
type foreignServer struct {
	over chan struct{} // closed at the end: a hijacked request's context does not end with its connection

	mu       sync.Mutex // guards the fields below
	changed  chan struct{}
	messages map[string][]string
	doubled  bool // each message to subscribers is sent twice
}

func startForeign(t *testing.T, doubled bool) string {
	t.Helper()
	s := &foreignServer{over: make(chan struct{}), changed: make(chan struct{}), messages: map[string][]string{}, doubled: doubled}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.over)
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func (s *foreignServer) publish(topic, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages[topic] = append(s.messages[topic], message)
	if s.doubled {
		s.messages[topic] = append(s.messages[topic], message)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *foreignServer) count(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.messages[topic])
}

// after waits for the nth message of a topic, from 0.
func (s *foreignServer) after(r *http.Request, topic string, n int) (string, bool) {
	for {
		s.mu.Lock()
		messages, changed := s.messages[topic], s.changed
		s.mu.Unlock()
		if n < len(messages) {
			return messages[n], true
		}
		select {
		case <-changed:
		case <-s.over:
			return "", false
		case <-r.Context().Done():
			return "", false
		}
	}
}

func (s *foreignServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, topic, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.URL.Path == "/.well-known/mercure" && r.Method == http.MethodPost:
		form := parseForm(string(body))
		s.publish(form.Get("topic"), form.Get("data"))
	case r.URL.Path == "/.well-known/mercure":
		s.stream(w, r, r.URL.Query().Get("topic"), ":\n", "id: x\ndata: %s\n\n")
	case r.URL.Path == "/api/publish":
		var p struct {
			Channel string
			Data    json.RawMessage
		}
		_ = json.Unmarshal(body, &p)
		s.publish(p.Channel, string(p.Data))
		_, _ = io.WriteString(w, `{"result":{}}`)
	case kind == "connection":
		s.centrifugo(w, r, topic, body)
	case kind == "pub":
		s.publish(topic, string(body))
		w.WriteHeader(http.StatusAccepted)
	case r.Header.Get("Upgrade") != "":
		s.socket(w, r, topic, "%s", nil)
	case r.Header.Get("Accept") == "text/event-stream":
		s.stream(w, r, topic, ": hi\n\n", "data: %s\n\n")
	default:
		s.poll(w, r, topic)
	}
}

func parseForm(body string) interface{ Get(string) string } {
	r := httptest.NewRequest(http.MethodPost, "/?"+body, nil)
	return r.URL.Query()
}

// poll is nchan's: Etag is how many messages there were. Who comes first has all there
// are, since nobody knows when its poll has come.
func (s *foreignServer) poll(w http.ResponseWriter, r *http.Request, topic string) {
	n, _ := strconv.Atoi(r.Header.Get("If-None-Match"))
	if m, ok := s.after(r, topic, n); ok {
		w.Header().Set("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
		w.Header().Set("Etag", strconv.Itoa(n+1))
		_, _ = io.WriteString(w, m)
	}
}

func (s *foreignServer) stream(w http.ResponseWriter, r *http.Request, topic, first, format string) {
	if strings.Contains(format, "data:") {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	n := s.count(topic)
	_, _ = io.WriteString(w, first)
	w.(http.Flusher).Flush()
	for m, ok := s.after(r, topic, n); ok; m, ok = s.after(r, topic, n) {
		n++
		_, _ = fmt.Fprintf(w, format, m)
		w.(http.Flusher).Flush()
	}
}

func (s *foreignServer) centrifugo(w http.ResponseWriter, r *http.Request, transport string, body []byte) {
	connect := string(body) + r.URL.Query().Get("cf_connect")
	topic := centrifugoTopic(connect)
	subscribed := `{"connect":` + connect + `}`
	push := `{"channel":"` + topic + `","pub":{"data":%s}}`
	switch transport {
	case "uni_sse":
		s.stream(w, r, topic, "data: "+subscribed+"\n\n", "data: "+push+"\n\n")
	case "uni_http_stream":
		s.stream(w, r, topic, subscribed+"\n", push+"\n")
	default:
		s.socket(w, r, "", "", func(connect string) (string, string, string) {
			topic := centrifugoTopic(connect)
			return topic, `{"connect":` + connect + `}`, `{"channel":"` + topic + `","pub":{"data":%s}}`
		})
	}
}

// centrifugoTopic is the one in {"subs":{"TOPIC":{}}}.
func centrifugoTopic(connect string) string {
	if parts := strings.Split(connect, `"`); len(parts) > 3 {
		return parts[3]
	}
	return ""
}

// socket upgrades; hello, if any, reads the client's first frame.
func (s *foreignServer) socket(w http.ResponseWriter, r *http.Request, topic, format string, hello func(string) (string, string, string)) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	n := s.count(topic)
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	if hello != nil {
		var first string
		topic, first, format = hello(readFrame(rw.Reader))
		n = s.count(topic)
		_ = writeFrame(conn, first)
	}
	for m, ok := s.after(r, topic, n); ok; m, ok = s.after(r, topic, n) {
		n++
		if writeFrame(conn, fmt.Sprintf(format, m)) != nil {
			return
		}
	}
}

// readFrame reads a short masked frame with the key zero.
func readFrame(r *bufio.Reader) string {
	head := make([]byte, 6)
	_, _ = io.ReadFull(r, head)
	payload := make([]byte, head[1]&0x7f)
	_, _ = io.ReadFull(r, payload)
	return string(payload)
}

func writeFrame(conn net.Conn, text string) error {
	head := []byte{0x81, 126, byte(len(text) >> 8), byte(len(text))}
	if len(text) < 126 {
		head = []byte{0x81, byte(len(text))}
	}
	_, err := conn.Write(append(head, text...))
	return err
}

func inDialect(c *Common, dialect, target string) {
	c.Target, c.Dialect, c.Token = target, dialect, "t"
	c.Settle, c.Drain = 100*time.Millisecond, patience
	if dialect == "sse" {
		c.SubscribePath, c.PublishPath = "/sub/{topic}", "/pub/{topic}"
	}
}

var foreignDialects = []string{
	"nchan-longpoll", "nchan-sse", "nchan-ws", "centrifugo-sse", "centrifugo-stream", "centrifugo-ws", "mercure", "sse",
}

// wantCleanForeign runs every scenario against a good server.
func wantCleanForeign(t *testing.T, dialect string, start func() string) {
	t.Helper()
	b := smallBroadcast(&fakeServer{http: &httptest.Server{}})
	inDialect(&b.Common, dialect, start())
	b.Period, b.Admin = 30*time.Millisecond, ""
	r, err := RunBroadcast(t.Context(), b, nil)
	require.NoError(t, err)
	wantAll(t, r, 6*5)

	c := smallCollab(&fakeServer{http: &httptest.Server{}})
	inDialect(&c.Common, dialect, start())
	c.Admin = ""
	r, err = RunCollab(t.Context(), c, nil)
	require.NoError(t, err)
	wantAll(t, r, 4*6*3)

	s := smallSteady(&fakeServer{http: &httptest.Server{}})
	inDialect(&s.Common, dialect, start())
	s.Admin = ""
	r, err = RunSteady(t.Context(), s, nil)
	require.NoError(t, err)
	wantAll(t, r, 6*6*2)
}

func wantAll(t *testing.T, r Result, deliveries int64) {
	t.Helper()
	require.Empty(t, r.Errors)
	require.Equal(t, Deliveries{Expected: deliveries, Delivered: deliveries, Gaps: map[string]int64{}}, r.Deliveries)
}

func TestEveryDialectMeasuresAGoodServer(t *testing.T) {
	t.Parallel()
	for _, dialect := range foreignDialects {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			wantCleanForeign(t, dialect, func() string { return startForeign(t, false) })
		})
	}
}

func TestADoubledMessageIsReportedInEveryDialect(t *testing.T) {
	t.Parallel()
	for _, dialect := range foreignDialects {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			b := smallBroadcast(&fakeServer{http: &httptest.Server{}})
			inDialect(&b.Common, dialect, startForeign(t, true))
			b.Admin = ""
			r := runBroadcast(t, b)
			require.EqualValues(t, 30, r.Deliveries.Delivered)
			require.GreaterOrEqual(t, r.Deliveries.Duplicates, int64(25), "the last burst's may come too late")
			require.LessOrEqual(t, r.Deliveries.Duplicates, int64(30))
			require.Zero(t, r.Deliveries.Disordered)
		})
	}
}

// Without positions a message is out of order if one came before it that was
// published after its answer; what was under way at the same time has no order.
func TestOrderWithoutPositionsIsThatOfAnswers(t *testing.T) {
	v := newVerifier(shape{topics: 1, perTopic: 1, messages: 4}, false)
	v.publish(0, 0)
	v.publish(0, 1)
	v.answer(0, 0, position(0))
	v.message(0, 1, position(0))
	v.message(0, 0, position(0))
	require.Zero(t, v.result().Disordered, "both were under way")
	v.answer(0, 1, position(0))
	v.publish(0, 2)
	v.answer(0, 2, position(0))
	v.publish(0, 3)
	v.message(0, 3, position(0))
	v.message(0, 2, position(0))
	require.EqualValues(t, 1, v.result().Disordered)
	require.Zero(t, v.missing())
}

func TestABroadcastsClientsDoNotPublish(t *testing.T) {
	c := smallBroadcast(&fakeServer{http: &httptest.Server{URL: "http://127.0.0.1:1"}})
	onSockets(&c.Common, client.JSON)
	require.ErrorContains(t, c.Check(), "--publish-on-socket: the clients of this test do not publish")
}

func TestDialectsAreCheckedBeforehand(t *testing.T) {
	for want, set := range map[string]func(*Common){
		`--dialect: "x"`:                                         func(c *Common) { c.Dialect = "x" },
		"--dialect: floor needs --target":                        func(c *Common) { c.Dialect, c.Target, c.ServerCommand = "floor", "", []string{"x"} },
		"--mode: works only with --dialect pubsubd":              func(c *Common) { c.Dialect, c.Mode = "floor", "stream" },
		"--mode: works only with polls":                          func(c *Common) { c.Transport, c.Mode = client.SSE, "single" },
		"--mode: single does not work with --transport stream":   func(c *Common) { c.Transport, c.Mode = client.Streaming, "single" },
		"--transport: longpoll does not work with --mode stream": func(c *Common) { c.Transport, c.Mode = client.LongPoll, "stream" },
		`--transport: "x"`:                                       func(c *Common) { c.Transport = "x" },
		"--transport: works only with --dialect pubsubd":         func(c *Common) { c.Dialect, c.Transport = "floor", client.WebSocket },
		"--stateless: works only with polls":                     func(c *Common) { c.Transport, c.Stateless = client.WebSocket, true },
		`--format: "x"`:                                          func(c *Common) { c.Format = "x" },
		"--format: works only with --dialect pubsubd":            func(c *Common) { c.Dialect, c.Format = "floor", client.CBOR },
		"--format: --transport sse supports only json":           func(c *Common) { c.Transport, c.Format = client.SSE, client.CBOR },
		"--publish-on-socket: works only with":                   func(c *Common) { c.Transport, c.Voices = client.SSE, true },
		"--publish-on-socket: does not work with agents":         func(c *Common) { c.Transport, c.Voices, c.Crew.Processes = client.WebSocket, true, 2 },
		"--stateless: works only with --dialect pubsubd":         func(c *Common) { c.Dialect, c.Stateless = "floor", true },
		"--subscriptions: must be at least 1; got 0":             func(c *Common) { c.Subscriptions = 0 },
		"only sessions of pubsubd":                               func(c *Common) { c.Subscriptions, c.Stateless = 2, true },
		"--subscribe-path: is missing":                           func(c *Common) { c.Dialect, c.PublishPath = "sse", "/{topic}" },
		"--publish-path: has no effect":                          func(c *Common) { c.PublishPath = "/{topic}" },
		"--publish-path: must begin with a slash":                func(c *Common) { c.Dialect, c.PublishPath = "nchan-ws", "/topic" },
		"--api-key: must be printable":                           func(c *Common) { c.Dialect, c.APIKey = "centrifugo-ws", "" },
		"--token: must be printable":                             func(c *Common) { c.Token = "a\r\nb" },
		"--token: Mercure needs a JWT":                           func(c *Common) { c.Dialect = "mercure" },
	} {
		c := defaultCommon()
		c.Target = "http://127.0.0.1:1"
		require.NoError(t, c.check())
		set(&c)
		require.ErrorContains(t, c.check(), want)
	}
}
