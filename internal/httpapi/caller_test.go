//go:build linux

package httpapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// surely is the time limit for an event that must happen.
const surely = time.Minute

// onBothWays runs story once for each way to wait on the lane.
func onBothWays(t *testing.T, story func(t *testing.T, way lane.Way)) {
	t.Helper()
	for _, way := range []lane.Way{lane.HandOff, lane.Channel} {
		t.Run(string(way), func(t *testing.T) { story(t, way) })
	}
}

// A caller is a client that controls every byte it sends. It can pipeline requests, leave
// in the middle of a request, or stop reading.
type caller struct {
	*kit
	conn    *net.TCPConn
	answers *bufio.Reader
}

func (k *kit) call() *caller {
	k.Helper()
	conn, err := k.dial()
	require.NoError(k, err)
	k.Cleanup(func() { conn.Close() })
	require.NoError(k, conn.SetDeadline(time.Now().Add(surely)))
	return &caller{kit: k, conn: conn.(*net.TCPConn), answers: bufio.NewReader(conn)}
}

// callOnLane returns a caller whose connection the lane has taken over.
func (k *kit) callOnLane() *caller {
	k.Helper()
	before := k.onLane()
	c := k.call()
	c.send(publishing("lane.taken", "0"))
	c.wantPublished("lane.taken")
	require.Equal(k, before+1, k.onLane())
	return c
}

func (c *caller) send(requests ...string) {
	c.Helper()
	require.NoError(c, c.conn.SetDeadline(time.Now().Add(surely)))
	_, err := io.WriteString(c.conn, strings.Join(requests, ""))
	require.NoError(c, err)
}

// reset resets the TCP connection. Bytes in flight are lost.
func (c *caller) reset() {
	c.Helper()
	require.NoError(c, c.conn.SetLinger(0))
	require.NoError(c, c.conn.Close())
}

// answer reads the head of an answer.
func (c *caller) answer() *http.Response {
	c.Helper()
	require.NoError(c, c.conn.SetDeadline(time.Now().Add(surely)))
	resp, err := http.ReadResponse(c.answers, nil)
	require.NoError(c, err)
	return resp
}

// wantAnswer reads a whole answer, requires this status, and returns the body.
func (c *caller) wantAnswer(status int) string {
	c.Helper()
	resp := c.answer()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(c, err)
	require.Equal(c, status, resp.StatusCode, string(body))
	return string(body)
}

// wantPublished reads the answer to a publish, and returns the message's offset.
func (c *caller) wantPublished(topic string) uint64 {
	c.Helper()
	var published wire.Published
	require.NoError(c, json.Unmarshal([]byte(c.wantAnswer(http.StatusOK)), &published))
	require.Equal(c, topic, published.Position.Topic)
	return published.Position.Offset
}

// wantMessages reads the answer to a poll. It must hold exactly the messages first to
// last of topic a, in order.
func (c *caller) wantMessages(first, last int) {
	c.Helper()
	resp := c.answer()
	defer resp.Body.Close()
	require.Equal(c, http.StatusOK, resp.StatusCode)
	frames := wire.NewDecoder(resp.Body)
	c.wantNext(frames, first, last)
	_, err := frames.Next()
	require.ErrorIs(c, err, io.EOF, "nothing else is in the answer")
}

// wantNext reads the messages first to last, as tell publishes them, and nothing between
// them.
func (c *caller) wantNext(frames *wire.Decoder, first, last int) {
	c.Helper()
	for n := first; n <= last; n++ {
		got, err := frames.Next()
		require.NoError(c, err, "message %d", n)
		require.NotNil(c, got.Message, "%+v", got)
		require.EqualValues(c, n, got.Message.Position.Offset)
		require.True(c, strings.HasPrefix(string(got.Message.Data), fmt.Sprintf(`"%d `, n)), "%.20s", got.Message.Data)
	}
}

// wantStream reads the head of a stream's answer and its hello.
func (c *caller) wantStream() *wire.Decoder {
	c.Helper()
	resp := c.answer()
	c.Cleanup(func() {
		_ = c.conn.Close() // otherwise resp.Body.Close reads the body to its end
		resp.Body.Close()
	})
	require.Equal(c, http.StatusOK, resp.StatusCode)
	frames := wire.NewDecoder(resp.Body)
	hello, err := frames.Next()
	require.NoError(c, err)
	require.NotNil(c, hello.Hello, "%+v", hello)
	return frames
}

// wantClosed reads the remaining bytes and requires that the daemon closes the
// connection.
func (c *caller) wantClosed() {
	c.Helper()
	_, err := io.Copy(io.Discard, c.answers)
	if !errors.Is(err, syscall.ECONNRESET) {
		require.NoError(c, err)
	}
}

// polling returns a request that polls a session and acknowledges ack frames.
func polling(session string, ack int, query ...string) string {
	return fmt.Sprintf("GET /v1/sessions/%s/poll?ack=%d%s HTTP/1.1\r\nHost: h\r\n\r\n", session, ack, strings.Join(query, ""))
}

const streaming = "&mode=stream"

// publishing returns a request that publishes body to topic.
func publishing(topic, body string) string {
	return fmt.Sprintf("POST /v1/topics/%s/messages HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", topic, len(body), body)
}

// openA opens a session on topic a.
func (k *kit) openA() string {
	k.Helper()
	return k.open(`{"topics":["a"]}`).Session
}

// tell publishes the messages first to last to topic a, each size bytes long. It calls
// the broker directly.
func (k *kit) tell(first, last, size int) {
	k.Helper()
	for n := first; n <= last; n++ {
		text := fmt.Sprintf("%d ", n)
		text += strings.Repeat(".", max(0, size-len(text)))
		published, err := k.cfg.Broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte(`"` + text + `"`)}, 0, time.Now())
		require.NoError(k, err)
		require.EqualValues(k, n, published.Position.Offset)
	}
}

// onLane returns the number of connections on the lane.
func (k *kit) onLane() int {
	k.Helper()
	return int(testutil.ToFloat64(k.cfg.Metrics.LaneConnections))
}

// gone returns the number of polls that were counted as gone.
func (k *kit) gone() int {
	k.Helper()
	return int(k.counted("pubsubd_polls_total", "gone"))
}

// parked returns the number of polls that wait for a message.
func (k *kit) parked() int {
	const name = "pubsubd_polls_parked"
	return int(k.counted(name, "longpoll") + k.counted(name, "stream") + k.counted(name, "sse"))
}

// calls returns how many calls have a slot and how many wait for one.
func (k *kit) calls() (inUse, waiting int) {
	var g metrics.Gauges
	k.cfg.Limiter.Gauges(&g)
	for _, limit := range g.Limits {
		if limit.Name == "calls" {
			return limit.InUse, limit.Waiting
		}
	}
	return 0, 0
}

// delivered returns the number of frames that were written or are buffered.
func (k *kit) delivered() int {
	k.Helper()
	return int(k.counted("pubsubd_frames_delivered_total"))
}

// want waits until count returns n.
func (k *kit) want(n int, count func() int, what string) {
	k.Helper()
	got := 0
	for deadline := time.Now().Add(surely); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if got = count(); got == n {
			return
		}
	}
	require.Equal(k, n, got, what)
}

func (k *kit) wantOnLane(n int) { k.Helper(); k.want(n, k.onLane, "connections on the lane") }
func (k *kit) wantCalls(inUse, waiting int) {
	k.Helper()
	k.want(inUse, func() int { n, _ := k.calls(); return n }, "calls with a slot")
	k.want(waiting, func() int { _, n := k.calls(); return n }, "calls that wait for one")
}
func (k *kit) wantParked(n int) { k.Helper(); k.want(n, k.parked, "polls that wait") }
func (k *kit) wantGone(n int)   { k.Helper(); k.want(n, k.gone, "polls that are gone") }

// later sets the lane's clock to d after its start, however long the test has taken.
func (k *kit) later(d time.Duration) { k.api.Lane.Tick(k.begun.Add(d)) }

// wantPosition reads an answer that is only a hello. It returns the start position of the
// one topic, in the form that a poll takes.
func (c *caller) wantPosition() string {
	c.Helper()
	content, err := wire.ParseLine([]byte(c.wantAnswer(http.StatusOK)))
	require.NoError(c, err)
	require.NotNil(c, content.Hello)
	return wire.StartAfter(content.Hello.Positions[0]).String()
}

// wantOnLaneAfter advances the lane's clock by d and 2 seconds, repeatedly, until the
// lane has n connections. Once is not enough: a client may have its answer before the
// lane starts the timer.
func (k *kit) wantOnLaneAfter(d time.Duration, n int) {
	k.Helper()
	now := time.Now()
	k.want(n, func() int {
		now = now.Add(d + 2*time.Second)
		k.api.Lane.Tick(now)
		return k.onLane()
	}, "connections on the lane, in time")
}
