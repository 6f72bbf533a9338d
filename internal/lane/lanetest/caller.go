//go:build linux

package lanetest

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
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Caller is a client that controls every byte it sends. It can pipeline requests, leave
// in the middle of a request, or stop reading.
type Caller struct {
	*Kit
	Conn    *net.TCPConn
	Answers *bufio.Reader
}

// Call connects; in a kit of New, the connection is on the lane. Everything that the caller waits for must happen within Surely.
func (k *Kit) Call() *Caller {
	k.Helper()
	conn, err := k.Dial()
	require.NoError(k, err)
	k.Cleanup(func() { conn.Close() })
	require.NoError(k, conn.SetDeadline(time.Now().Add(Surely)))
	if k.HTTP == nil {
		require.Eventually(k, func() bool { _, ok := k.joined.Load(conn.LocalAddr().String()); return ok }, Surely, time.Millisecond)
	}
	return &Caller{Kit: k, Conn: conn.(*net.TCPConn), Answers: bufio.NewReader(conn)}
}

// CallOnLane returns a caller whose connection the lane has taken over.
func (k *Kit) CallOnLane() *Caller {
	k.Helper()
	before := k.OnLane()
	c := k.Call()
	if k.HTTP == nil {
		return c
	}
	c.Send(Publishing("lane.taken", "0"))
	c.WantPublished("lane.taken")
	require.Equal(k, before+1, k.OnLane())
	return c
}

// Send writes requests at once.
func (c *Caller) Send(requests ...string) {
	c.Helper()
	require.NoError(c, c.Conn.SetDeadline(time.Now().Add(Surely)))
	_, err := io.WriteString(c.Conn, strings.Join(requests, ""))
	require.NoError(c, err)
}

// Reset resets the TCP connection. Bytes in flight are lost.
func (c *Caller) Reset() {
	c.Helper()
	require.NoError(c, c.Conn.SetLinger(0))
	require.NoError(c, c.Conn.Close())
}

// Answer reads the head of an answer.
func (c *Caller) Answer() *http.Response {
	c.Helper()
	require.NoError(c, c.Conn.SetDeadline(time.Now().Add(Surely)))
	resp, err := http.ReadResponse(c.Answers, nil)
	require.NoError(c, err)
	return resp
}

// WantAnswer reads a whole answer, requires this status, and returns the body.
func (c *Caller) WantAnswer(status int) string {
	c.Helper()
	resp := c.Answer()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(c, err)
	require.Equal(c, status, resp.StatusCode, string(body))
	return string(body)
}

// WantPublished reads the answer to a publish, and returns the message's offset.
func (c *Caller) WantPublished(topic string) uint64 {
	c.Helper()
	var published wire.Published
	require.NoError(c, json.Unmarshal([]byte(c.WantAnswer(http.StatusOK)), &published))
	require.Equal(c, topic, published.Position.Topic)
	return published.Position.Offset
}

// WantMessages reads the answer to a poll. It must hold exactly the messages first to
// last of topic a, in order.
func (c *Caller) WantMessages(first, last int) {
	c.Helper()
	resp := c.Answer()
	defer resp.Body.Close()
	require.Equal(c, http.StatusOK, resp.StatusCode)
	frames := wire.NewDecoder(resp.Body)
	c.WantNext(frames, first, last)
	_, err := frames.Next()
	require.ErrorIs(c, err, io.EOF, "nothing else is in the answer")
}

// WantNext reads the messages first to last, as tell publishes them, and nothing between
// them.
func (c *Caller) WantNext(frames *wire.Decoder, first, last int) {
	c.Helper()
	for n := first; n <= last; n++ {
		got, err := frames.Next()
		require.NoError(c, err, "message %d", n)
		require.NotNil(c, got.Message, "%+v", got)
		require.EqualValues(c, n, got.Message.Position.Offset)
		require.True(c, strings.HasPrefix(string(got.Message.Data), fmt.Sprintf(`"%d `, n)), "%.20s", got.Message.Data)
	}
}

// WantStream reads the head of a stream's answer and its hello.
func (c *Caller) WantStream() *wire.Decoder {
	c.Helper()
	resp := c.Answer()
	c.Cleanup(func() {
		_ = c.Conn.Close() // otherwise resp.Body.Close reads the body to its end
		resp.Body.Close()
	})
	require.Equal(c, http.StatusOK, resp.StatusCode)
	frames := wire.NewDecoder(resp.Body)
	hello, err := frames.Next()
	require.NoError(c, err)
	require.NotNil(c, hello.Hello, "%+v", hello)
	return frames
}

// WantClosed reads the remaining bytes and requires that the daemon closes the
// connection.
func (c *Caller) WantClosed() {
	c.Helper()
	_, err := io.Copy(io.Discard, c.Answers)
	if !errors.Is(err, syscall.ECONNRESET) {
		require.NoError(c, err)
	}
}

// Polling returns a request that polls a session and acknowledges ack frames.
func Polling(session string, ack int, query ...string) string {
	return fmt.Sprintf("GET /v1/sessions/%s/poll?ack=%d%s HTTP/1.1\r\nHost: h\r\n\r\n", session, ack, strings.Join(query, ""))
}

// Streaming makes a poll that Polling returns a stream.
const Streaming = "&mode=stream"

// Publishing returns a request that publishes body to topic.
func Publishing(topic, body string) string {
	return fmt.Sprintf("POST /v1/topics/%s/messages HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", topic, len(body), body)
}

// WantPosition reads an answer that is only a hello. It returns the start position of the
// one topic, in the form that a poll takes.
func (c *Caller) WantPosition() string {
	c.Helper()
	content, err := wire.ParseLine([]byte(c.WantAnswer(http.StatusOK)))
	require.NoError(c, err)
	require.NotNil(c, content.Hello)
	return wire.StartAfter(content.Hello.Positions[0]).String()
}

// Small limits a socket's buffers to a few kilobytes in each direction.
var Small = Buffers(8 << 10)

// Large is the size of a message that does not fit into small buffers.
const Large = 60 << 10

// ReadsOn enlarges the read buffer before the client reads the rest. With small buffers
// on loopback, TCP waits 40 ms or more for every few segments.
func (c *Caller) ReadsOn() {
	c.Helper()
	require.NoError(c, c.Conn.SetReadBuffer(1<<20))
}

// WantStuck waits until this many frames were delivered. It requires that the sockets do
// not hold all of their bytes.
func (c *Caller) WantStuck(frames int) {
	c.Helper()
	c.Want(frames, c.Delivered, "frames delivered")
	require.Less(c, int(c.Counted("pubsubd_network_bytes_total", "out")), Large*frames, "the sockets hold it all: nobody is stuck")
}

// RefuseUntilHeld publishes until a refusal is delayed, and returns the number of
// refusals. One more refusal each second is sent at once, so the number depends on the
// machine.
func (c *Caller) RefuseUntilHeld() (refusals int) {
	c.Helper()
	for refusals = 1; refusals < 100; refusals++ {
		c.Send(Publishing("a", "1"))
		c.Want(refusals, c.Refusals, "refusals")
		if !c.isToldAtOnce() {
			return refusals
		}
		require.Contains(c, c.WantAnswer(http.StatusTooManyRequests), "rates.publishes.address")
	}
	require.Fail(c, "no answer is held back")
	return refusals
}

// isToldAtOnce reports whether an answer arrives within 50 ms.
func (c *Caller) isToldAtOnce() bool {
	c.Helper()
	require.NoError(c, c.Conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.Answers.Peek(1)
	if err != nil {
		require.ErrorContains(c, err, "timeout")
	}
	return err == nil
}

// WantToldLate advances the lane's clock by the maximum delay until the refusal arrives.
// Once is not enough: a refusal may be counted before its delay starts.
func (c *Caller) WantToldLate() {
	c.Helper()
	for begun := time.Now(); time.Since(begun) < Surely; {
		c.FromNow(11 * time.Second)
		if c.isToldAtOnce() {
			break
		}
	}
	require.Contains(c, c.WantAnswer(http.StatusTooManyRequests), `"code":"limited"`)
}

// WantToldToLeave requires an answer with the problem draining, after which the daemon
// closes the connection.
func (c *Caller) WantToldToLeave() {
	c.Helper()
	resp := c.Answer()
	defer resp.Body.Close()
	var why wire.Problem
	require.NoError(c, json.NewDecoder(resp.Body).Decode(&why))
	require.Equal(c, wire.CodeDraining, why.Code)
	require.True(c, resp.Close, "Connection: close")
	c.WantClosed()
}

// LastWords sends text and FIN in one segment.
func (c *Caller) LastWords(text string) {
	c.Helper()
	raw, err := c.Conn.SyscallConn()
	require.NoError(c, err)
	var sendErr error
	require.NoError(c, raw.Control(func(fd uintptr) {
		sendErr = errors.Join(
			syscall.Sendto(int(fd), []byte(text), syscall.MSG_MORE, nil),
			syscall.Shutdown(int(fd), syscall.SHUT_WR))
	}))
	require.NoError(c, sendErr)
}
