package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A tongue is a way to speak HTTP that the lane does not support.
type tongue struct {
	name      string
	tls, h2   bool
	protoName string
}

var tongues = []tongue{
	{"HTTP/1.1 over TLS", true, false, "HTTP/1.1"},
	{"HTTP/2 over TLS", true, true, "HTTP/2.0"},
	{"HTTP/2 in clear", false, true, "HTTP/2.0"},
}

// A spoken is a daemon and a client that speaks one tongue.
type spoken struct {
	*running
	tongue
	pair     certtest.Pair
	base     string
	speaker  *http.Client
	transfer *transfer
}

// A transfer counts the bytes on a client's connections.
type transfer struct{ in, out atomic.Int64 }

type transferred struct {
	net.Conn
	*transfer
}

func (c *transferred) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(int64(n))
	return n, err
}

func (c *transferred) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.Add(int64(n))
	return n, err
}

// eachTongue runs test with a daemon for each tongue.
func eachTongue(t *testing.T, change func(*config.Config), test func(s *spoken)) {
	for _, tongue := range tongues {
		t.Run(tongue.name, func(t *testing.T) { test(startSpeaking(t, tongue, change)) })
	}
}

func startSpeaking(t *testing.T, tongue tongue, change func(*config.Config)) *spoken {
	t.Helper()
	s := &spoken{tongue: tongue, pair: certtest.New(t), transfer: &transfer{}}
	s.running = start(t, func(c *config.Config) {
		if tongue.tls {
			c.TLS = config.TLS{Cert: s.pair.Cert, Key: s.pair.Key}
		}
		c.HTTP2.Cleartext = tongue.h2 && !tongue.tls
		if change != nil {
			change(c)
		}
	})
	s.base = "http://" + s.PublicAddr()
	if tongue.tls {
		s.base = "https://" + s.PublicAddr()
	}
	s.speaker = &http.Client{Transport: s.transport()}
	t.Cleanup(s.speaker.CloseIdleConnections)
	return s
}

// transport returns a transport for the tongue, with its own connections.
func (s *spoken) transport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!s.h2)
	protocols.SetHTTP2(s.h2 && s.tls)
	protocols.SetUnencryptedHTTP2(s.h2 && !s.tls)
	return &http.Transport{
		Protocols: &protocols, TLSClientConfig: &tls.Config{RootCAs: poolOf(s, s.pair)},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return &transferred{c, s.transfer}, err
		},
	}
}

// ask returns the status and the body of the answer.
func (s *spoken) ask(method, path, body string) (status int, text string) {
	s.Helper()
	resp := s.begin(s.Context(), method, path, body)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return resp.StatusCode, string(all)
}

// begin sends a request and returns once the answer has begun.
func (s *spoken) begin(ctx context.Context, method, path, body string) *http.Response {
	s.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(body))
	require.NoError(s, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := s.speaker.Do(req)
	require.NoError(s, err)
	require.Equal(s, s.protoName, resp.Proto)
	return resp
}

func (s *spoken) publish(topic, body string) {
	s.Helper()
	status, text := s.ask(http.MethodPost, "/v1/topics/"+topic+"/messages", body)
	require.Equal(s, http.StatusOK, status, text)
}

func (s *spoken) openSession() (id string) {
	s.Helper()
	_, text := s.ask(http.MethodPost, "/v1/sessions", `{"topics":["a"]}`)
	var opened wire.SessionOpened
	require.NoError(s, json.Unmarshal([]byte(text), &opened), text)
	return opened.Session
}

// later sends a request in the background and returns a channel for its answer.
func (s *spoken) later(path string) <-chan string {
	answered := make(chan string, 1)
	go func() {
		resp, err := s.speaker.Get(s.base + path)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			text = append(text, err.Error()...)
		}
		answered <- resp.Status + " " + string(text)
	}()
	return answered
}

// A heard is a stream that is read line by line.
type heard struct {
	*spoken
	lines *bufio.Reader
	leave context.CancelFunc
}

func (s *spoken) listen() *heard {
	s.Helper()
	ctx, leave := context.WithCancel(s.Context())
	s.Cleanup(leave)
	resp := s.begin(ctx, http.MethodGet, "/v1/poll?topic=a&mode=stream", "")
	s.Cleanup(func() { resp.Body.Close() })
	require.Equal(s, http.StatusOK, resp.StatusCode)
	l := &heard{s, bufio.NewReader(resp.Body), leave}
	require.Contains(s, l.frame(), `{"hello"`)
	return l
}

// frame returns the next line that is a frame.
func (l *heard) frame() string {
	l.Helper()
	for {
		line, err := l.lines.ReadString('\n')
		require.NoError(l, err)
		if line != "\n" {
			return line
		}
	}
}

// net/http serves what the lane serves on cleartext HTTP/1.1.
func TestPollsStreamsAndPublishesInEveryProtocol(t *testing.T) {
	t.Parallel()
	eachTongue(t, nil, func(s *spoken) {
		id := s.openSession()
		poll := s.later("/v1/sessions/" + id + "/poll?ack=0")
		stateless := s.later("/v1/poll?topic=a@" + s.epoch() + ":0")
		stream := s.listen()
		s.waitParked(3)
		s.publish("a", `"m1"`)
		for _, frames := range []string{<-poll, <-stateless, stream.frame()} {
			require.Contains(s, frames, `"data":"m1"`)
		}
		again := s.later("/v1/sessions/" + id + "/poll?ack=0")
		require.Contains(s, <-again, `"data":"m1"`)
		status, _ := s.ask(http.MethodPatch, "/v1/sessions/"+id, `{"add":["b"],"remove":["a"]}`)
		require.Equal(s, http.StatusOK, status)
		next := s.later("/v1/sessions/" + id + "/poll?ack=1&mode=multiple")
		s.publish("b", `"m2"`)
		require.Contains(s, <-next, `"data":"m2"`)
		require.Zero(s, s.metric("pubsubd_lane_connections"))

		status, text := s.ask(http.MethodGet, "/v1/sessions/"+strings.Repeat("x", 20), "")
		require.Equal(s, http.StatusNotFound, status, text)
		require.Contains(s, text, `"code":"session_unknown"`)
		status, _ = s.ask(http.MethodPost, "/v1/topics/a/messages", `"`+strings.Repeat("x", 65<<10)+`"`)
		require.Equal(s, http.StatusRequestEntityTooLarge, status)
	})
}

func (s *spoken) epoch() string {
	s.Helper()
	s.publish("epoch", "1")
	_, text := s.ask(http.MethodGet, "/v1/topics/epoch", "")
	var state wire.TopicState
	require.NoError(s, json.Unmarshal([]byte(text), &state), text)
	return state.Position.Epoch
}

// The daemon notices that a client has left. Other clients on the same connection are not
// affected.
func TestAClientLeavesMidwayInEveryProtocol(t *testing.T) {
	eachTongue(t, nil, func(s *spoken) {
		leaves, stays := s.listen(), s.listen()
		s.publish("a", `"m1"`)
		require.Contains(s, leaves.frame(), "m1")
		require.Contains(s, stays.frame(), "m1")
		leaves.leave()
		s.waitParked(1)
		s.publish("a", `"m2"`)
		require.Contains(s, stays.frame(), "m2")
		stays.leave()
		require.Eventually(s, func() bool { return s.metric("pubsubd_subscriptions") == 0 }, surely, 10*time.Millisecond)
	})
}

// A stream may be quiet for longer than the write timeout.
func TestAQuietStreamOutlastsTheWriteTimeoutInEveryProtocol(t *testing.T) {
	t.Parallel()
	const timeout = time.Second // long enough for writes on a slow machine
	eachTongue(t, func(c *config.Config) {
		c.Transport.WriteTimeout, c.Transport.MaxOutputDelay, c.Transport.Heartbeat = timeout, timeout/3, time.Hour
	}, func(s *spoken) {
		s.Parallel()
		stream := s.listen()
		begun := time.Now()
		poll := s.later("/v1/sessions/" + s.openSession() + "/poll?ack=0")
		s.waitParked(2)
		require.Never(s, func() bool { return s.metric(`pubsubd_polls_parked{transport="stream"}`) == 0 }, 3*timeout, timeout/4)
		require.Greater(s, time.Since(begun), 2*timeout)
		s.publish("a", `"m1"`)
		require.Contains(s, stream.frame(), "m1")
		require.Contains(s, <-poll, "m1")
	})
}

// The daemon counts the bytes on the wire, including handshakes, TLS records and HTTP/2
// frames.
func TestBytesAreCountedInEveryProtocol(t *testing.T) {
	eachTongue(t, nil, func(s *spoken) {
		id := s.openSession()
		for range 50 {
			s.publish("a", `"`+strings.Repeat("x", 900)+`"`) // too short to be compressed
		}
		_, text := s.ask(http.MethodGet, "/v1/sessions/"+id+"/poll?ack=0", "")
		require.Greater(s, len(text), 45_000)
		require.Eventually(s, func() bool {
			return s.metric(`pubsubd_network_bytes_total{direction="in"}`) == float64(s.transfer.out.Load()) &&
				s.metric(`pubsubd_network_bytes_total{direction="out"}`) == float64(s.transfer.in.Load())
		}, surely, 10*time.Millisecond)
		require.Greater(s, s.transfer.in.Load(), int64(45_000))
	})
}

func TestADrainAnswersEveryPollInEveryProtocol(t *testing.T) {
	eachTongue(t, func(c *config.Config) { c.DrainWindow = surely }, func(s *spoken) {
		poll := s.later("/v1/sessions/" + s.openSession() + "/poll?ack=0")
		stateless := s.later("/v1/poll?topic=a@" + s.epoch() + ":0")
		stream := s.listen()
		s.waitParked(3)
		s.speaker.CloseIdleConnections() // net/http waits 5 s for one without a request
		require.NoError(s, s.wait())
		require.Empty(s, s.logged.FilterMessageSnippet("cutting off").All())
		for _, answer := range []string{<-poll, <-stateless} {
			require.True(s, strings.HasPrefix(answer, "503 "), answer)
			require.Contains(s, answer, `"code":"draining"`)
		}
		require.Contains(s, stream.frame(), `{"end":{`)
		_, err := stream.lines.ReadByte()
		require.ErrorIs(s, err, io.EOF, "it ends whole")
	})
}

func TestAPathWithAnEscapeIsNotServedInAnyProtocol(t *testing.T) {
	eachTongue(t, nil, func(s *spoken) {
		for _, path := range []string{"/v1%2Ftopics%2Fa%2Fmessages", "/v1/topics/a/%6dessages"} {
			status, text := s.ask(http.MethodPost, path, "1")
			require.Equal(s, http.StatusNotFound, status, path)
			require.Contains(s, text, "write the path without escapes")
		}
	})
}
