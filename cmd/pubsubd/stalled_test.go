package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// More of them make a better measurement: go test ./cmd/pubsubd -run Stalled -v -args -messages 100000.
var stalledMessages = flag.Int("messages", 30_000/exhaustive.Step(5), "messages published while a subscriber does not read")

// A subscriber stops reading its stream while messages are published. The
// publisher must not notice, the daemon's memory must stay where it was, and when
// the subscriber reads on it gets what was on its way, exactly one gap that names
// the missing range, and the rest, in order.
func TestAStalledSubscriberHarmsNobody(t *testing.T) {
	t.Parallel()
	const history, ahead = 3000, 2500
	s := serveProcess(t, "--poll-write-timeout=1h", "--history-age=1h", fmt.Sprintf("--history-messages=%d", history))
	p := newPublisher(t, s)
	p.publish("warm-up", *stalledMessages/10)

	alone := p.publish("alone", *stalledMessages)

	stream, frames := s.stream("stalled")
	defer stream.Close()
	before := s.resident()
	// What the connection takes is not lost, however slow the daemon is at first: the
	// stream has stopped before the history is full.
	beside := p.publish("stalled", ahead)
	s.waitForMetric("pubsubd_subscriptions_behind 1")
	beside += p.publish("stalled", *stalledMessages-ahead)
	after := s.resident()
	t.Logf("%d publishes, one at a time: %.1f µs each without the subscriber, %.1f µs with it (%.2f×); resident memory %.1f MiB before, %.1f MiB after",
		*stalledMessages, perMessage(alone), perMessage(beside), float64(beside)/float64(alone), before, after)

	require.NoError(t, stream.(*net.TCPConn).SetReadBuffer(1<<20)) // it reads on, in no small sips
	got, gaps, at := 0, []*wire.Gap{}, uint64(0)
	for at < uint64(*stalledMessages) {
		c, err := frames.Next()
		require.NoError(t, err)
		switch {
		case c.Gap != nil:
			gaps = append(gaps, c.Gap)
			require.Equal(t, at, c.Gap.After.Offset, "the gap begins after the last message")
			at = c.Gap.Position.Offset
		case c.Message != nil:
			got++
			at++
			require.Equal(t, at, c.Message.Position.Offset)
		}
	}
	require.Len(t, gaps, 1)
	lost := gaps[0].Position.Offset - gaps[0].After.Offset
	t.Logf("then %d messages and one gap: %s, after %s up to %s, %d messages", got, gaps[0].Reason, gaps[0].After, gaps[0].Position, lost)
	require.Equal(t, wire.GapSlow, gaps[0].Reason)
	require.EqualValues(t, *stalledMessages, uint64(got)+lost)
	require.Less(t, after-before, 16.0, "MiB: what is not read must not pile up")
}

func perMessage(d time.Duration) float64 {
	return float64(d.Microseconds()) / float64(*stalledMessages)
}

// stream opens a session on one topic and streams it, with a small receive buffer,
// up to the hello.
func (s *served) stream(topic string) (net.Conn, *wire.Decoder) {
	s.Helper()
	var opened wire.SessionOpened
	require.NoError(s, json.Unmarshal([]byte(s.post("/v1/sessions", `{"topics":["`+topic+`"]}`)), &opened))
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.public, "http://"))
	require.NoError(s, err)
	require.NoError(s, conn.(*net.TCPConn).SetReadBuffer(4096))
	fmt.Fprintf(conn, "GET /v1/sessions/%s/poll?ack=0&mode=stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", opened.Session)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(s, err)
	require.Equal(s, http.StatusOK, resp.StatusCode)
	s.Cleanup(func() { resp.Body.Close() })
	frames := wire.NewDecoder(resp.Body)
	hello, err := frames.Next()
	require.NoError(s, err)
	require.NotNil(s, hello.Hello)
	return conn, frames
}

// resident returns the daemon's resident memory in MiB.
func (s *served) resident() float64 {
	s.Helper()
	resp, err := http.Get(s.admin + "/metrics")
	require.NoError(s, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "process_resident_memory_bytes "); ok {
			bytes, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(s, err)
			return bytes / (1 << 20)
		}
	}
	return 0 // not told on this system
}

// A publisher publishes over one connection, one message after the other's answer.
type publisher struct {
	*testing.T
	conn   net.Conn
	answer *bufio.Reader
}

func newPublisher(t *testing.T, s *served) *publisher {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.public, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &publisher{t, conn, bufio.NewReader(conn)}
}

// publish publishes n messages and returns how long it took.
func (p *publisher) publish(topic string, n int) time.Duration {
	p.Helper()
	body := `"` + strings.Repeat("x", 200) + `"`
	request := fmt.Appendf(nil, "POST /v1/topics/%s/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", topic, len(body), body)
	begun := time.Now()
	for range n {
		_, err := p.conn.Write(request)
		require.NoError(p, err)
		resp, err := http.ReadResponse(p.answer, nil)
		require.NoError(p, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(p, err)
		resp.Body.Close()
		require.Equal(p, http.StatusOK, resp.StatusCode)
	}
	return time.Since(begun)
}
