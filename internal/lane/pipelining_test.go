//go:build linux

package lane_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
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
			lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLane(t, way)
				session := k.OpenA()
				c := k.CallOnLane()
				behind := lanetest.Publishing("b", "1") + lanetest.Polling(session, 1) + lanetest.Publishing("b", "2")
				if together {
					c.Send(lanetest.Polling(session, 0), behind)
					k.WantParked(1)
				} else {
					c.Send(lanetest.Polling(session, 0))
					k.WantParked(1)
					c.Send(behind)
				}
				require.Zero(t, k.Counted("pubsubd_calls_total", "publish", "lane"))
				k.Tell(1, 1, 10)
				c.WantMessages(1, 1)
				require.EqualValues(t, 1, c.WantPublished("b"))
				k.WantParked(1)
				k.Tell(2, 2, 10)
				c.WantMessages(2, 2)
				require.EqualValues(t, 2, c.WantPublished("b"))
			})
		})
	}
}

// A client leaves while its poll waits. The poll ends, the connection is freed, and the
// session's next poll gets every message.
func TestAClientLeavesWhileItsPollWaits(t *testing.T) {
	for _, behind := range []string{"", lanetest.Publishing("b", "1"), strings.Repeat(lanetest.Publishing("b", "1"), 3000/70)} {
		for how, leave := range map[string]func(c *lanetest.Caller){
			"closes":      func(c *lanetest.Caller) { require.NoError(c, c.Conn.Close()) },
			"half-closes": func(c *lanetest.Caller) { require.NoError(c, c.Conn.CloseWrite()) },
			"resets":      (*lanetest.Caller).Reset,
		} {
			for _, mode := range []string{"batch", "stream"} {
				t.Run(fmt.Sprintf("%s %s with %d bytes behind", mode, how, len(behind)), func(t *testing.T) {
					lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
						k := newLane(t, way)
						session := k.OpenA()
						c := k.Call()
						c.Send(lanetest.Polling(session, 0, "&mode="+mode), behind)
						if mode == "stream" {
							c.WantStream()
						}
						k.WantParked(1)
						leave(c)
						k.WantOnLane(0)
						k.WantParked(0)
						k.WantGone(1)
						require.EqualValues(t, 0, k.Counted("pubsubd_messages_published_total"), "what was asked ahead was not served")

						k.Tell(1, 2, 10)
						again := k.Call()
						again.Send(lanetest.Polling(session, 0))
						again.WantMessages(1, 2)
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
			lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLane(t, way)
				session := k.OpenA()
				c := k.CallOnLane()
				c.Send(lanetest.Polling(session, 0, "&mode="+mode))
				if mode == "stream" {
					c.WantStream()
				}
				k.WantParked(1)
				read := func() int { return int(k.Counted("pubsubd_network_bytes_total", "in")) }
				before := read()
				c.Send(filling(2 * bufferBytes))
				if way == lane.HandOff { // with lane.Channel, the poll's goroutine leaves them unread
					k.Want(before+bufferBytes, read, "bytes: the buffer is full")
				}
				c.Reset()
				k.Tell(1, 1, 10) // the daemon cannot write it
				k.Tell(2, 2, 10)
				k.WantOnLane(0)
				k.WantParked(0)
			})
		})
	}
}

// filling returns publish requests of exactly size bytes in total.
func filling(size int) string {
	one := lanetest.Publishing("b", "1")
	text := strings.Repeat(one, size/len(one)-1)
	for pad := 1; ; pad++ {
		if last := lanetest.Publishing("b", strings.Repeat("1", pad)); len(text)+len(last) == size {
			return text + last
		}
	}
}

// Requests that fill or exceed the buffer follow a parked poll. All are answered, in
// order.
func TestAFullBufferBehindAPoll(t *testing.T) {
	for _, size := range []int{bufferBytes - 1, bufferBytes, bufferBytes + 1, 5 * bufferBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneKit(t, way)
				session := k.OpenA()
				behind, n := "", 0
				for len(behind) < size-400 {
					n++
					behind += lanetest.Publishing("b", fmt.Sprint(n)) + lanetest.Polling(session, n, "&mode=single")
				}
				behind += filling(size - len(behind))
				c := k.CallOnLane()
				c.Send(lanetest.Polling(session, 0, "&mode=single"))
				k.WantParked(1)
				sent := make(chan error, 1)
				go func() { _, err := io.WriteString(c.Conn, behind); sent <- err }()
				require.NoError(t, <-sent)
				require.Zero(t, k.Counted("pubsubd_calls_total", "publish", "lane"))
				k.Tell(1, n+1, 10)
				c.WantMessages(1, 1)
				for i := 1; i <= n; i++ {
					require.EqualValues(t, i, c.WantPublished("b"))
					c.WantMessages(i+1, i+1)
				}
				last := uint64(n)
				for range strings.Count(behind, "POST") - n {
					last++
					require.Equal(t, last, c.WantPublished("b"))
				}
				c.Send(lanetest.Publishing("b", "1"))
				require.Equal(t, last+1, c.WantPublished("b"))
			})
		})
	}
}

// A client sends its last request and half-closes in the same segment. The daemon answers
// and closes the connection at once.
func TestALastRequestIsAnswered(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		for n := uint64(1); n <= 20; n++ {
			c := k.CallOnLane()
			c.LastWords(lanetest.Publishing("b", "1"))
			require.Equal(t, n, c.WantPublished("b"))
			_, err := c.Answers.ReadByte()
			require.ErrorIs(t, err, io.EOF)
			k.WantOnLane(0)
		}
		require.EqualValues(t, 20, k.Counted("pubsubd_calls_total", "publish", "lane"))
	})
}

// As above, with a poll that finds no message. The daemon does not park it.
func TestALastPollDoesNotWait(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		for n := 1; n <= 20; n++ {
			c := k.CallOnLane()
			c.LastWords(lanetest.Polling(k.OpenA(), 0))
			c.WantClosed()
			k.WantOnLane(0)
			k.WantGone(n)
		}
	})
}

// Of two polls of a session on two connections, the newer gets the messages. The older
// gets poll_replaced, and its connection stays usable.
func TestANewerPollOnAnotherConnectionReplacesTheOlder(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLane(t, way)
				session := k.OpenA()
				older, newer := k.Call(), k.CallOnLane()
				older.Send(lanetest.Polling(session, 0, "&mode="+mode))
				var frames *wire.Decoder
				if mode == "stream" {
					frames = older.WantStream()
				}
				k.WantParked(1)
				newer.Send(lanetest.Polling(session, 0))
				if mode == "stream" {
					end, err := frames.Next()
					require.NoError(t, err)
					require.NotNil(t, end.End, "%+v", end)
					require.Equal(t, wire.CodePollReplaced, end.End.Code)
					_, err = frames.Next()
					require.ErrorIs(t, err, io.EOF)
				} else {
					require.Contains(t, older.WantAnswer(problem.Codes()[wire.CodePollReplaced]), wire.CodePollReplaced)
				}
				k.WantParked(1)
				require.EqualValues(t, 1, k.Counted("pubsubd_polls_total", string(wire.CodePollReplaced)))
				older.Send(lanetest.Publishing("a", "1"))
				older.WantPublished("a")
				text := newer.WantAnswer(http.StatusOK)
				require.Equal(t, 1, strings.Count(text, "\n"))
				older.Send(lanetest.Polling(session, 1))
				k.WantParked(1)
				k.Tell(2, 2, 10)
				older.WantMessages(2, 2)
				require.Equal(t, 2, k.OnLane())
			})
		})
	}
}
