//go:build linux

package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// bufferBytes is the size of a connection's buffer in package lane.
const bufferBytes = 8 << 10

// Requests pipelined behind a parked poll are answered after it, in order. They may
// arrive with the poll or later.
func TestRequestsBehindAPollWaitForItsAnswer(t *testing.T) {
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together=%t", together), func(t *testing.T) {
			onBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneKit(t, way)
				session := k.openA()
				c := k.callOnLane()
				behind := publishing("b", "1") + polling(session, 1) + publishing("b", "2")
				if together {
					c.send(polling(session, 0), behind)
					k.wantParked(1)
				} else {
					c.send(polling(session, 0))
					k.wantParked(1)
					c.send(behind)
				}
				require.Zero(t, k.counted("pubsubd_calls_total", "publish", "lane"))
				k.tell(1, 1, 10)
				c.wantMessages(1, 1)
				require.EqualValues(t, 1, c.wantPublished("b"))
				k.wantParked(1)
				k.tell(2, 2, 10)
				c.wantMessages(2, 2)
				require.EqualValues(t, 2, c.wantPublished("b"))
			})
		})
	}
}

// A client leaves while its poll waits. The poll ends, the connection is freed, and the
// session's next poll gets every message.
func TestAClientLeavesWhileItsPollWaits(t *testing.T) {
	for _, behind := range []string{"", publishing("b", "1"), strings.Repeat(publishing("b", "1"), 3000/70)} {
		for how, leave := range map[string]func(c *caller){
			"closes":      func(c *caller) { require.NoError(c, c.conn.Close()) },
			"half-closes": func(c *caller) { require.NoError(c, c.conn.CloseWrite()) },
			"resets":      (*caller).reset,
		} {
			for _, mode := range []string{"batch", "stream"} {
				t.Run(fmt.Sprintf("%s %s with %d bytes behind", mode, how, len(behind)), func(t *testing.T) {
					onBothWays(t, func(t *testing.T, way lane.Way) {
						k := newLaneKit(t, way)
						session := k.openA()
						c := k.call()
						c.send(polling(session, 0, "&mode="+mode), behind)
						if mode == "stream" {
							c.wantStream()
						}
						k.wantParked(1)
						leave(c)
						k.wantOnLane(0)
						k.wantParked(0)
						k.wantGone(1)
						require.EqualValues(t, 0, k.counted("pubsubd_messages_published_total"), "what was asked ahead was not served")

						k.tell(1, 2, 10)
						again := k.call()
						again.send(polling(session, 0))
						again.wantMessages(1, 2)
					})
				})
			}
		}
	}
}

// As above, with pipelined requests that fill the buffer. The lane stops reading but
// still notices that the connection ends.
func TestAClientLeavesWithAFullBuffer(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			onBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneKit(t, way)
				session := k.openA()
				c := k.callOnLane()
				c.send(polling(session, 0, "&mode="+mode))
				if mode == "stream" {
					c.wantStream()
				}
				k.wantParked(1)
				read := func() int { return int(k.counted("pubsubd_network_bytes_total", "in")) }
				before := read()
				c.send(filling(2 * bufferBytes))
				if way == lane.HandOff { // with lane.Channel, the poll's goroutine leaves them unread
					k.want(before+bufferBytes, read, "bytes: the buffer is full")
				}
				c.reset()
				k.tell(1, 1, 10) // the daemon cannot write it
				k.tell(2, 2, 10)
				k.wantOnLane(0)
				k.wantParked(0)
			})
		})
	}
}

// filling returns publish requests of exactly size bytes in total.
func filling(size int) string {
	one := publishing("b", "1")
	text := strings.Repeat(one, size/len(one)-1)
	for pad := 1; ; pad++ {
		if last := publishing("b", strings.Repeat("1", pad)); len(text)+len(last) == size {
			return text + last
		}
	}
}

// Requests that fill or exceed the buffer follow a parked poll. All are answered, in
// order.
func TestAFullBufferBehindAPoll(t *testing.T) {
	for _, size := range []int{bufferBytes - 1, bufferBytes, bufferBytes + 1, 5 * bufferBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			onBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneKit(t, way)
				session := k.openA()
				behind, n := "", 0
				for len(behind) < size-400 {
					n++
					behind += publishing("b", fmt.Sprint(n)) + polling(session, n, "&mode=single")
				}
				behind += filling(size - len(behind))
				c := k.callOnLane()
				c.send(polling(session, 0, "&mode=single"))
				k.wantParked(1)
				sent := make(chan error, 1)
				go func() { _, err := io.WriteString(c.conn, behind); sent <- err }()
				require.NoError(t, <-sent)
				require.Zero(t, k.counted("pubsubd_calls_total", "publish", "lane"))
				k.tell(1, n+1, 10)
				c.wantMessages(1, 1)
				for i := 1; i <= n; i++ {
					require.EqualValues(t, i, c.wantPublished("b"))
					c.wantMessages(i+1, i+1)
				}
				last := uint64(n)
				for range strings.Count(behind, "POST") - n {
					last++
					require.Equal(t, last, c.wantPublished("b"))
				}
				c.send(publishing("b", "1"))
				require.Equal(t, last+1, c.wantPublished("b"))
			})
		})
	}
}

// A client sends its last request and half-closes in the same segment. The daemon answers
// and closes the connection at once.
func TestALastRequestIsAnswered(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		for n := uint64(1); n <= 20; n++ {
			c := k.callOnLane()
			c.lastWords(publishing("b", "1"))
			require.Equal(t, n, c.wantPublished("b"))
			_, err := c.answers.ReadByte()
			require.ErrorIs(t, err, io.EOF)
			k.wantOnLane(0)
		}
		require.EqualValues(t, 20, k.counted("pubsubd_calls_total", "publish", "lane"))
	})
}

// As above, with a poll that finds no message. The daemon does not park it.
func TestALastPollDoesNotWait(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		for n := 1; n <= 20; n++ {
			c := k.callOnLane()
			c.lastWords(polling(k.openA(), 0))
			c.wantClosed()
			k.wantOnLane(0)
			k.wantGone(n)
		}
	})
}

// lastWords sends text and FIN in one segment.
func (c *caller) lastWords(text string) {
	c.Helper()
	raw, err := c.conn.SyscallConn()
	require.NoError(c, err)
	var sendErr error
	require.NoError(c, raw.Control(func(fd uintptr) {
		sendErr = errors.Join(
			syscall.Sendto(int(fd), []byte(text), syscall.MSG_MORE, nil),
			syscall.Shutdown(int(fd), syscall.SHUT_WR))
	}))
	require.NoError(c, sendErr)
}

// Of two polls of a session on two connections, the newer gets the messages. The older
// gets poll_replaced, and its connection stays usable.
func TestANewerPollOnAnotherConnectionReplacesTheOlder(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			onBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneKit(t, way)
				session := k.openA()
				older, newer := k.call(), k.callOnLane()
				older.send(polling(session, 0, "&mode="+mode))
				var frames *wire.Decoder
				if mode == "stream" {
					frames = older.wantStream()
				}
				k.wantParked(1)
				newer.send(polling(session, 0))
				if mode == "stream" {
					end, err := frames.Next()
					require.NoError(t, err)
					require.NotNil(t, end.End, "%+v", end)
					require.Equal(t, wire.CodePollReplaced, end.End.Code)
					_, err = frames.Next()
					require.ErrorIs(t, err, io.EOF)
				} else {
					require.Contains(t, older.wantAnswer(problem.Codes()[wire.CodePollReplaced]), wire.CodePollReplaced)
				}
				k.wantParked(1)
				require.EqualValues(t, 1, k.counted("pubsubd_polls_total", string(wire.CodePollReplaced)))
				older.send(publishing("a", "1"))
				older.wantPublished("a")
				text := newer.wantAnswer(http.StatusOK)
				require.Equal(t, 1, strings.Count(text, "\n"))
				older.send(polling(session, 1))
				k.wantParked(1)
				k.tell(2, 2, 10)
				older.wantMessages(2, 2)
				require.Equal(t, 2, k.onLane())
			})
		})
	}
}
