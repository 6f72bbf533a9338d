package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// behindEach runs a test behind each proxy.
func behindEach(t *testing.T, story func(t *testing.T, kind proxyKind)) {
	for _, kind := range proxyKinds {
		t.Run(kind.name, func(t *testing.T) { story(t, kind) })
	}
}

// An answer is read line by line while it lasts.
type answer struct {
	*testing.T
	*http.Response
	lines *bufio.Reader
	leave context.CancelFunc
}

// ask sends a request on its own connection and returns once the answer has begun.
func (p *proxied) ask(path string) *answer {
	p.Helper()
	ctx, leave := context.WithCancel(p.Context())
	p.Cleanup(leave)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	require.NoError(p, err)
	resp, err := newClient(p.T).Do(req)
	require.NoError(p, err)
	p.Cleanup(func() { resp.Body.Close() })
	require.Equal(p, http.StatusOK, resp.StatusCode)
	return &answer{T: p.T, Response: resp, lines: bufio.NewReader(resp.Body), leave: leave}
}

func (a *answer) line() string {
	a.Helper()
	line, err := a.lines.ReadString('\n')
	require.NoError(a, err)
	return line
}

// skippingHeartbeats returns the first line that is not a heartbeat, and the number of
// heartbeats before it.
func (a *answer) skippingHeartbeats() (string, int) {
	a.Helper()
	for n := 0; ; n++ {
		if line := a.line(); line != "\n" {
			return line, n
		}
	}
}

// open opens a session through the proxy.
func (p *proxied) open(topics string) wire.SessionOpened {
	p.Helper()
	var opened wire.SessionOpened
	require.NoError(p, json.Unmarshal([]byte(p.post("/v1/sessions", `{"topics":[`+topics+`]}`)), &opened))
	return opened
}

func (p *proxied) publish(topic, body string) wire.Position {
	p.Helper()
	var published struct{ Position wire.Position }
	require.NoError(p, json.Unmarshal([]byte(p.post("/v1/topics/"+topic+"/messages", body)), &published))
	return published.Position
}

func wantData(t *testing.T, line, data string) {
	t.Helper()
	require.Contains(t, line, `"data":`+data+"}\n")
}

// Every mode works, with a session and without. In the modes that last, each message is
// published only after the previous one was read. A proxy that buffers frames would block
// the test.
func TestAProxyForwardsFramesAtOnce(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		d := start(t, func(c *config.Config) {
			c.Transport.MaxOutputDelay, c.Transport.MultipleTime = 20*time.Second, 20*time.Second
			c.Transport.Heartbeat = time.Hour
		})
		p := startProxy(t, kind, asShipped, d)
		for _, mode := range []string{"single", "batch"} {
			session := p.open(`"` + mode + `"`)
			p.publish(mode, "1")
			p.publish(mode, "2")
			want := map[string]int{"single": 1, "batch": 2}[mode]
			status, body := p.get(fmt.Sprintf("/v1/sessions/%s/poll?ack=0&mode=%s", session.Session, mode))
			require.Equal(t, http.StatusOK, status)
			require.Equal(t, want, strings.Count(body, "\n"), body)
		}
		for _, mode := range []string{"multiple", "stream"} {
			session := p.open(`"` + mode + `"`)
			p.publish(mode, "0")
			p.readsOneByOne(fmt.Sprintf("/v1/sessions/%s/poll?ack=0&mode=%s", session.Session, mode), mode)
			p.publish(mode, "0")
			from := strings.Replace(session.Positions[0].String(), ":0", ":4", 1)
			p.readsOneByOne("/v1/poll?mode="+mode+"&topic="+from, mode)
		}
		for _, topics := range []string{"topic=events", "topic=events&topic=other", "topic=events&topic=others.*"} {
			p.readsEventsOneByOne("/v1/sse?"+topics, "events")
		}
		p.readsSocketOneByOne("/v1/ws?topic=socket", "socket")
		p.readsSocketOneByOne("/v1/ws?ack=0&session="+p.open(`"socket"`).Session, "socket")
	})
}

// readsOneByOne reads message 0 and then three more. Each is published after the previous
// one was read.
func (p *proxied) readsOneByOne(path, mode string) {
	p.Helper()
	a := p.ask(path)
	if mode == "stream" {
		require.Contains(p, a.line(), `{"hello":`)
	}
	wantData(p.T, a.line(), "0")
	for n := range 3 {
		p.publish(mode, fmt.Sprint(n+1))
		wantData(p.T, a.line(), fmt.Sprint(n+1))
	}
	a.leave()
}

// readsEventsOneByOne reads the hello of an event stream, and then messages as
// readsOneByOne does.
func (p *proxied) readsEventsOneByOne(path, topic string) {
	p.Helper()
	a := p.ask(path)
	require.Equal(p, "text/event-stream", a.Header.Get("Content-Type"))
	require.Contains(p, a.datum(), `{"hello":`)
	for n := range 3 {
		p.publish(topic, fmt.Sprint(n+1))
		wantData(p.T, a.datum(), fmt.Sprint(n+1))
	}
	a.leave()
}

// datum returns the data of the next event.
func (a *answer) datum() string {
	a.Helper()
	data, _ := a.event()
	return data
}

// event returns the data of the next event, and the number of heartbeats before it.
func (a *answer) event() (data string, heartbeats int) {
	a.Helper()
	for {
		line := a.line()
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if end := a.line(); strings.HasPrefix(end, "id: ") { // a heartbeat has none
				require.Equal(a, "\n", a.line(), "the event is whole")
			} else {
				require.Equal(a, "\n", end, "the event is whole")
			}
			return data, heartbeats
		}
		if line == ":\n" {
			heartbeats++
		}
	}
}

// A socket is a WebSocket through a proxy.
type socket struct {
	*testing.T
	net.Conn
	in io.Reader
}

// connect opens a WebSocket as a page of this origin does.
func (p *proxied) connect(page, path string) *socket {
	p.Helper()
	s, err := p.tryConnect(page, path)
	require.NoError(p, err)
	return s
}

func (p *proxied) tryConnect(page, path string) (*socket, error) {
	p.Helper()
	dialer := ws.Dialer{Header: ws.HandshakeHeaderHTTP{"Origin": {page}}, Timeout: aMinute}
	conn, buffered, _, err := dialer.Dial(p.Context(), strings.Replace(p.url, "http", "ws", 1)+path)
	if err != nil {
		return nil, err
	}
	p.Cleanup(func() { conn.Close() })
	require.NoError(p, conn.SetDeadline(time.Now().Add(aMinute)))
	s := &socket{T: p.T, Conn: conn, in: conn}
	if buffered != nil {
		s.in = buffered
	}
	return s, nil
}

// message returns the next message, and the number of pings before it. It answers them.
func (s *socket) message() (text string, pings int) {
	s.Helper()
	for {
		frame := socketFrame(s.T, s.in)
		if frame.Header.OpCode == ws.OpText {
			return string(frame.Payload), pings
		}
		require.Equal(s, ws.OpPing, frame.Header.OpCode)
		pings++
		s.send(ws.NewPongFrame(frame.Payload))
	}
}

func (s *socket) send(frame ws.Frame) {
	s.Helper()
	require.NoError(s, ws.WriteFrame(s.Conn, ws.MaskFrameInPlace(frame)))
}

// readsSocketOneByOne reads the hello of a WebSocket, and then messages as readsOneByOne
// does. Then it sends a command.
func (p *proxied) readsSocketOneByOne(path, topic string) {
	p.Helper()
	s := p.connect(p.url, path)
	text, _ := s.message()
	require.Contains(p, text, `{"hello":`)
	for n := range 3 {
		p.publish(topic, fmt.Sprint(n+1))
		text, _ = s.message()
		wantData(p.T, text, fmt.Sprint(n+1))
	}
	s.send(ws.NewTextFrame([]byte(`{"ping":true,"ref":7}`)))
	text, _ = s.message()
	require.Equal(p, `{"reply":{"ref":7}}`+"\n", text)
	s.Close()
}

// Below a prefix, beside an application, everything works as without it. Both ways are as
// deploy/README.md shows them: with the line that the example has as a comment, and by changes
// after which paths below /v1/ belong to the application.
func TestNginxServesBelowAPrefix(t *testing.T) {
	guide, err := os.ReadFile("../../deploy/README.md")
	require.NoError(t, err)
	_, guide, found := bytes.Cut(guide, []byte("\n### Serve pubsubd beside an application\n"))
	require.True(t, found)
	line := regexp.MustCompile("(?s)```nginx\n(.*?)\n```").FindSubmatch(guide)
	require.NotNil(t, line)
	_, table, found := bytes.Cut(guide, []byte("| below `/push/` alone |\n"))
	require.True(t, found)
	table, _, _ = bytes.Cut(table, []byte("\n\n"))
	changes := regexp.MustCompile("(?m)^\\| `(.*?)`(.*?) \\| `(.*)` \\|$").FindAllSubmatch(table, -1)
	require.Len(t, changes, 5)

	for name, change := range map[string]func(example string) string{
		"rewritten": func(example string) string {
			require.Equal(t, 1, strings.Count(example, "# "+string(line[1])))
			return strings.Replace(example, "# "+string(line[1]), string(line[1]), 1)
		},
		"of its own": func(example string) string {
			for _, c := range changes {
				n := 1
				if string(c[2]) == ", twice" {
					n = 2
				}
				require.GreaterOrEqual(t, strings.Count(example, string(c[1])), n, "%s", c[1])
				example = strings.Replace(example, string(c[1]), string(c[3]), n)
			}
			return example
		},
	} {
		t.Run(name, func(t *testing.T) {
			kind := proxyKinds[0]
			require.Equal(t, "nginx", kind.name)
			kind.change, kind.prefix = change, "/push"
			d := start(t, func(c *config.Config) {
				c.Transport.MaxOutputDelay, c.Transport.MultipleTime = 20*time.Second, 20*time.Second
				c.Transport.Heartbeat = time.Hour
			})
			worksBelowAPrefix(t, kind, d)
		})
	}
}

var socketLogged = regexp.MustCompile(`GET (/push)?/v1/ws 101`)

func worksBelowAPrefix(t *testing.T, kind proxyKind, d *running) {
	t.Helper()
	p := startProxy(t, kind, asShipped, d)
	status, _ := p.get("/metrics")
	require.Equal(t, http.StatusNotFound, status)
	status, text := p.get("/v1/client.js")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "Client")
	session := p.open(`"stream"`)
	p.publish("stream", "0")
	p.readsOneByOne("/v1/sessions/"+session.Session+"/poll?ack=0&mode=stream", "stream")
	p.readsEventsOneByOne("/v1/sse?topic=events", "events")
	p.readsSocketOneByOne("/v1/ws?topic=socket", "socket")

	client, err := pubsub.New(p.url)
	require.NoError(t, err)
	defer client.Close()
	published, err := client.PublishJSON(t.Context(), "orders", 1)
	require.NoError(t, err)
	sub, err := client.Subscribe(t.Context(), []wire.Start{pubsub.FromOldest("orders")})
	require.NoError(t, err)
	defer sub.Close()
	item, err := sub.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, published.Position, item.Message.Position)

	require.Eventually(t, func() bool { // the proxy logs after the answer
		said := p.output.String()
		return strings.Contains(said, kind.logs) && socketLogged.MatchString(said)
	}, surely, 10*time.Millisecond, p.output)
	require.NotContains(t, p.output.String(), session.Session)
	require.NoError(t, d.wait())
	status, body := p.get("/v1/sse?topic=events")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "retry: 1500\n", body)
}

// The daemon compares a page's Origin with Host, so the proxy must pass both on.
func TestAProxyPassesTheOriginOfAWebSocketOn(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		p := startProxy(t, kind, asShipped, start(t, nil))
		p.connect(p.url, "/v1/ws?topic=a").Close()
		_, err := p.tryConnect(evilPage, "/v1/ws?topic=a")
		require.Equal(t, ws.StatusError(http.StatusForbidden), err)
	})
}

// A client whose connection is cut resumes from its positions. It misses no message and
// gets none twice.
func TestACutClientBehindAProxyResumes(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		d := start(t, nil)
		p := startProxy(t, kind, asShipped, d)
		p.publish("a", "0")
		a := p.ask("/v1/poll?mode=stream&topic=a")
		var hello struct {
			Hello struct{ Positions []string }
		}
		require.NoError(t, json.Unmarshal([]byte(a.line()), &hello))
		last := p.publish("a", "1")
		wantData(t, a.line(), "1")
		a.leave()
		p.publish("a", "2")
		p.publish("a", "3")

		status, body := p.get("/v1/poll?topic=" + last.String())
		require.Equal(t, http.StatusOK, status)
		lines := strings.SplitAfter(body, "\n")
		require.Len(t, lines, 3, body)
		wantData(t, lines[0], "2")
		wantData(t, lines[1], "3")

		// A session can resume from where the stream began, also after a lost answer.
		session := p.open(`"` + hello.Hello.Positions[0] + `"`).Session
		for range 2 {
			_, body = p.get("/v1/sessions/" + session + "/poll?ack=0")
			require.Equal(t, 3, strings.Count(body, `"data"`), body)
		}
	})
}

// A client that waits when the daemon drains receives `draining` through the proxy. After
// it reconnects, the second daemon serves it.
func TestADrainBehindAProxyMovesClients(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		first := start(t, func(c *config.Config) { c.DrainWindow = surely })
		second := start(t, func(c *config.Config) {
			if kind.samePorts {
				c.Listen = config.Listen{Public: "127.0.0.2:" + port(first.PublicAddr()), Admin: "127.0.0.2:" + port(first.AdminAddr())}
			}
		})
		p := startProxy(t, kind, asShipped, first, second)
		session := p.open(`"a"`)
		require.EqualValues(t, 1, first.metric("pubsubd_sessions"), "the second is a backup")
		stream := p.ask("/v1/poll?mode=stream&topic=a")
		stream.line()
		polled := make(chan string, 1)
		go func() {
			resp, err := newClient(t).Get(p.url + "/v1/sessions/" + session.Session + "/poll?ack=0")
			if err != nil {
				polled <- err.Error()
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			polled <- fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Retry-After"), " ", string(body))
		}()
		first.waitParked(2)
		require.NoError(t, first.wait())

		got := <-polled
		require.Regexp(t, `^503 \d {"title":.*"code":"draining".*"positions":\["a@\w+:0"\]`, got)
		require.Contains(t, stream.line(), `{"end":{`)
		p.goesOnAt(second, session.Positions[0].String())
	})
}

// goesOnAt reopens the session from its position and checks that d serves it.
func (p *proxied) goesOnAt(d *running, position string) {
	p.Helper()
	again := ""
	require.Eventually(p, func() bool { // until the proxy notices that the first daemon is gone
		status, text := p.do(p.client, http.MethodPost, "/v1/sessions", `{"topics":["`+position+`"]}`)
		again = text
		return status == http.StatusCreated
	}, surely, 10*time.Millisecond)
	require.EqualValues(p, 1, d.metric("pubsubd_sessions"))
	var opened wire.SessionOpened
	require.NoError(p, json.Unmarshal([]byte(again), &opened))
	p.publish("a", "1")
	status, body := p.get("/v1/sessions/" + opened.Session + "/poll?ack=0")
	require.Equal(p, http.StatusOK, status)
	lines := strings.SplitAfter(body, "\n")
	require.Contains(p, lines[0], `{"gap":{"topic":"a","reason":"restarted"`, "another daemon, and it says so")
	wantData(p.T, lines[1], "1")
}

// scaledDown shortens the proxies' idle timeouts for tests: 4 s instead of 60 s.
func scaledDown(kind proxyKind) []string {
	return map[string][]string{
		"nginx":   {"proxy_read_timeout 60s;", "proxy_read_timeout 4s;"},
		"haproxy": {"timeout client 60s", "timeout client 4s", "timeout server 60s", "timeout server 4s"},
		"caddy":   {"response_header_timeout 60s", "response_header_timeout 4s", "read_timeout 60s", "read_timeout 4s"},
	}[kind.name]
}

// A poll lasts until the daemon answers it. Heartbeats keep a quiet stream, event stream
// and WebSocket open beyond the proxy's timeout.
func TestAProxyToleratesSilentPolls(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		t.Parallel()
		d := start(t, func(c *config.Config) {
			c.Transport.PollTimeout, c.Transport.Heartbeat = time.Second, time.Second/2
		})
		p := startProxy(t, kind, scaledDown(kind), d)
		stream := p.ask("/v1/poll?mode=stream&topic=a")
		stream.line()
		events := p.ask("/v1/sse?topic=a")
		events.datum()
		visible := p.ask("/v1/sse?topic=a&heartbeat=event")
		visible.datum()
		socket := p.connect(p.url, "/v1/ws?topic=a")
		socket.message()
		session := p.open(`"b"`).Session
		for range 5 { // longer than the proxy's time-out in sum
			status, body := p.get("/v1/sessions/" + session + "/poll?ack=0")
			require.Equal(t, http.StatusOK, status, body)
			require.Empty(t, body)
		}
		p.publish("a", "1")
		line, heartbeats := stream.skippingHeartbeats()
		wantData(t, line, "1")
		require.GreaterOrEqual(t, heartbeats, 4)
		line, heartbeats = events.event()
		wantData(t, line, "1")
		require.GreaterOrEqual(t, heartbeats, 4)
		for range 4 {
			require.Equal(t, "{}\n", visible.datum(), "a heartbeat that a page can see")
		}
		line, heartbeats = socket.message()
		wantData(t, line, "1")
		require.GreaterOrEqual(t, heartbeats, 4)
	})
}

// The test above would notice a connection that is silent for too long, because the proxy answers
// with an error. The client loses nothing: its next poll with the same ack gets the message.
func TestAProxyTimesOutSilentConnections(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		t.Parallel()
		p := startProxy(t, kind, scaledDown(kind), start(t, nil))
		session := p.open(`"b"`).Session
		status, _ := p.get("/v1/sessions/" + session + "/poll?ack=0")
		require.Contains(t, []int{http.StatusBadGateway, http.StatusGatewayTimeout}, status)
		p.publish("b", "1")
		status, body := p.get("/v1/sessions/" + session + "/poll?ack=0")
		require.Equal(t, http.StatusOK, status, body)
		wantData(t, body, "1")
	})
}

// The timeouts of the examples are long enough for the daemon's default settings.
func TestTheTimeoutsOfTheExamplesFitTheDefaults(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		text, err := os.ReadFile(filepath.Join("../../deploy", kind.example))
		require.NoError(t, err)
		swaps := scaledDown(kind)
		for i := 0; i < len(swaps); i += 2 {
			require.Contains(t, string(text), swaps[i])
			silence, err := time.ParseDuration(regexp.MustCompile(`\d+s`).FindString(swaps[i]))
			require.NoError(t, err)
			require.GreaterOrEqual(t, silence, transport.Config{}.WithDefaults().PollTimeout+10*time.Second, swaps[i])
			require.Greater(t, silence, 2*transport.Config{}.WithDefaults().Heartbeat, swaps[i])
		}
	})
}

// Each client has its own connection to the proxy. The proxy uses few connections to the
// daemon, and the lane serves all clients there.
func TestManyClientsShareAProxysConnections(t *testing.T) {
	const clients = 20
	behindEach(t, func(t *testing.T, kind proxyKind) {
		d := start(t, nil)
		p := startProxy(t, kind, asShipped, d)
		var sessions [clients]string
		for n := range clients {
			sessions[n] = d.open(fmt.Sprintf(`"shared.t%d"`, n)).Session
		}
		for n, session := range sessions {
			client := newClient(t)
			status, _ := p.do(client, http.MethodPost, fmt.Sprintf("/v1/topics/shared.t%d/messages", n), "1")
			require.Equal(t, http.StatusOK, status)
			status, body := p.do(client, http.MethodGet, "/v1/sessions/"+session+"/poll?ack=0", "")
			require.Equal(t, http.StatusOK, status)
			wantData(t, body, "1")
		}
		const few = 3 // connections; the first call on each is net/http's
		require.LessOrEqual(t, d.metric("pubsubd_lane_connections"), float64(few))
		require.GreaterOrEqual(t, d.calls("publish", "lane"), clients-few)
		require.GreaterOrEqual(t, d.calls("poll", "lane"), clients-few)
	})
}

// An address that has as many connections as it may gets no more, until one closes. Other
// addresses do. An EventSource gets an answer after which it reconnects.
func TestAProxyBoundsTheConnectionsOfAnAddress(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		if kind.bound == nil {
			return // the example names rules for the firewall
		}
		p := startProxy(t, kind, kind.bound, start(t, nil))
		p.client.CloseIdleConnections()
		open := func(from, path string) *answer {
			client := newClient(t)
			client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}
			resp, err := client.Get(p.url + path)
			if err != nil {
				return nil
			}
			t.Cleanup(func() { resp.Body.Close() })
			if resp.StatusCode == http.StatusTooManyRequests {
				return nil
			}
			require.Equal(t, http.StatusOK, resp.StatusCode)
			return &answer{T: t, Response: resp}
		}
		const stream = "/v1/poll?mode=stream&topic=a"
		var streams []*answer
		require.Eventually(t, func() bool { // HAProxy notices a moment later that p.client has closed its connection
			resp := open("127.0.0.1", stream)
			if resp == nil {
				return len(streams) == 5
			}
			streams = append(streams, resp)
			return false
		}, surely, 10*time.Millisecond)
		require.Len(t, streams, 5)
		require.NotNil(t, open("127.0.0.2", stream))
		if resp := open("127.0.0.1", "/v1/sse?topic=a"); resp != nil {
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, "retry: 1500\n", string(text))
		}
		streams[0].Body.Close()
		require.Eventually(t, func() bool { return open("127.0.0.1", stream) != nil }, surely, 10*time.Millisecond)
	})
}

// Only the connection tells the daemon that a client has left: the next heartbeat and the
// poll timeout are an hour away.
func TestAClientThatLeavesBehindAProxyIsNoticed(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		d := start(t, func(c *config.Config) {
			c.Transport.PollTimeout, c.Transport.Heartbeat = time.Hour, time.Hour
		})
		p := startProxy(t, kind, asShipped, d)
		parked := func(transport string, want int) {
			t.Helper()
			require.Eventually(t, func() bool {
				return d.metric(fmt.Sprintf("pubsubd_polls_parked{transport=%q}", transport)) == float64(want)
			}, surely, 10*time.Millisecond, "%d %s parked", want, transport)
		}
		stream := p.ask("/v1/poll?mode=stream&topic=a")
		parked("stream", 1)
		stream.leave()
		parked("stream", 0)

		events := p.ask("/v1/sse?topic=a")
		parked("sse", 1)
		events.leave()
		parked("sse", 0)

		socket := p.connect(p.url, "/v1/ws?topic=a")
		parked("websocket", 1)
		socket.Close()
		parked("websocket", 0)

		session := p.open(`"b"`).Session
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/v1/sessions/"+session+"/poll?ack=0", nil)
		require.NoError(t, err)
		go func() {
			_, err := newClient(t).Do(req) //nolint:bodyclose // it fails
			ended <- err
		}()
		parked("longpoll", 1)
		leave()
		require.Error(t, <-ended)
		parked("longpoll", 0)
	})
}

// The proxy passes on the client's real address, whatever the client claims, and the
// host. It keeps the connection open. It does not forward other paths.
func TestWhatAProxyPassesOn(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		passed := make(chan *http.Request, 100)
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed <- r
			_, _ = io.WriteString(w, "[]\n")
		}))
		t.Cleanup(upstream.Close)
		at := strings.TrimPrefix(upstream.URL, "http://")
		p := startProxyTo(t, kind, asShipped, address{public: at, admin: at})

		for _, path := range []string{"/metrics", "/livez", "/readyz", "/debug/pprof/", "/console", "/", "/v1/../metrics"} {
			status, _ := p.get(path)
			require.Equal(t, http.StatusNotFound, status, path)
		}
		req, err := http.NewRequest(http.MethodGet, p.url+"/v1/topics?limit=7", nil)
		require.NoError(t, err)
		req.Host = "push.example:8443"
		req.Header.Set("X-Forwarded-For", "203.0.113.9")
		req.Header.Set("X-Real-IP", "203.0.113.9")
		req.Header.Set("X-Forwarded-Proto", "gopher")
		resp, err := p.client.Do(req)
		require.NoError(t, err)
		resp.Body.Close()

		close(passed)
		var last *http.Request
		for r := range passed {
			require.Contains(t, []string{"/v1/topics", "/readyz"}, r.URL.Path)
			if r.URL.RawQuery != "" {
				last = r
			}
		}
		require.NotNil(t, last)
		require.Equal(t, "HTTP/1.1", last.Proto)
		require.Equal(t, "push.example:8443", last.Host)
		require.Equal(t, []string{"127.0.0.1"}, last.Header.Values("X-Forwarded-For"))
		require.Equal(t, []string{"127.0.0.1"}, last.Header.Values("X-Real-IP"))
		require.Equal(t, []string{"http"}, last.Header.Values("X-Forwarded-Proto"))
		require.Empty(t, last.Header.Values("Connection"))
		require.False(t, last.Close)
	})
}

// A session's id is a capability: no proxy writes it into its access log.
func TestNoProxyLogsASessionID(t *testing.T) {
	behindEach(t, func(t *testing.T, kind proxyKind) {
		d := start(t, nil)
		p := startProxy(t, kind, asShipped, d)
		session := p.open(`"a"`).Session
		p.publish("a", "1")
		p.get("/v1/sessions/" + session + "/poll?ack=0&token=secret")
		p.get("/v1/sessions/" + session)
		streams := []string{"/v1/sse?ack=0&session=" + session}
		for _, name := range []string{"last_event_id", "lastEventId", "Last-Event-ID"} {
			streams = append(streams, "/v1/sse?topic=a&"+name+"=~"+session+":0")
		}
		for _, path := range streams {
			events := p.ask(path)
			events.datum()
			events.leave()
		}
		p.connect(p.url, "/v1/ws?ack=0&session="+session).Close()
		require.Eventually(t, func() bool { // the proxy logs after the answer
			said := p.output.String()
			return kind.logs == "" || strings.Contains(said, kind.logs) && strings.Count(said, "GET /v1/sse 200") == len(streams) && strings.Contains(said, "GET /v1/ws 101")
		}, 5*time.Second, 10*time.Millisecond, p.output)
		require.NotContains(t, p.output.String(), session)
		require.NotContains(t, p.output.String(), "secret")
	})
}

// raw sends the bytes of a request on a connection of its own, and returns the whole answer.
func (p *proxied) raw(request string) string {
	p.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	require.NoError(p, err)
	defer conn.Close()
	require.NoError(p, conn.SetDeadline(time.Now().Add(aMinute)))
	_, err = io.WriteString(conn, request)
	require.NoError(p, err)
	answer, err := io.ReadAll(conn)
	require.NoError(p, err)
	return string(answer)
}

// However a client spells the path of a session, no proxy writes the id into its log, also while
// the daemon is away. The daemon does not serve other spellings than its own.
func TestNoProxyLogsASessionIDInAnySpelling(t *testing.T) {
	t.Parallel()
	behindEach(t, func(t *testing.T, kind proxyKind) {
		d := start(t, nil)
		p := startProxy(t, kind, asShipped, d)
		id := p.open(`"a"`).Session
		ask := func(target string) string {
			return p.raw("GET " + target + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		}
		for _, path := range []string{
			"/v1/sessions/" + id + "/%70oll", "/v1/sessions%2F" + id + "/poll", "/v1%2Fsessions%2F" + id, "/v1/%73essions/" + id, "/%761/sessions/" + id,
			"/v1/sessions/" + id + "%20", "/v1/sessions/%0A" + id, "/v1/sessions/x%0A/" + id, "/v1/sse%3Fsession=" + id, "/v1/sessions/x/" + id,
			"/v1//sessions/" + id, "//v1/sessions/" + id, "/v1/sessions//" + id, "/v1/./sessions/" + id, "/v1/x/../sessions/" + id + "/polls", "/v1/sessions;" + id,
			"/v1/topics/a/messages/" + id, "/V1/sessions/" + id, "/v2/sessions/" + id, "/sessions/" + id, `/v1\sessions\` + id,
		} {
			require.Regexp(t, `^HTTP/1\.[01] 40[04] `, ask(path), path)
		}
		ask("http://h/v1/sessions/" + id + "/poll?session=" + id)
		ask("/v1/sessions/" + id + " HTTP/9") // no request line
		ask("/v1/openapi.yaml")
		require.NoError(t, d.wait())
		for _, target := range []string{"/v1/sessions/" + id + "/poll?ack=0", "/v1/sse%3Fsession=" + id, "/v1/openapi.yaml"} {
			ask(target)
		}
		require.Eventually(t, func() bool { // the proxy logs after the answer
			return kind.logs == "" || len(regexp.MustCompile(`GET /v1/openapi\.yaml \d`).FindAllString(p.output.String(), -1)) == 2
		}, surely, 10*time.Millisecond)
		for line := range strings.Lines(p.output.String()) {
			if !strings.Contains(line, " [error] ") { // nginx writes the request line beside its errors, as its example warns
				require.NotContains(t, line, id)
			}
		}
	})
}
