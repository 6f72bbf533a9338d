//go:build linux

package lane_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// wantAllAgain requires that the session's next poll gets the messages 1 to 3.
func (k *kit) wantAllAgain(session string) {
	k.Helper()
	c := k.Call()
	c.ReadsOn()
	c.Send(lanetest.Polling(session, 0))
	c.WantMessages(1, 3)
}

// A client pipelines requests and does not read for long. In the end it gets all answers
// in order. The daemon serves no request before it has written the previous answer.
func TestAnAnswerWaitsForAClientThatReadsLate(t *testing.T) {
	for name, frames := range map[string]int{"one frame": 1, "many frames": 12} {
		for _, when := range []string{"from the history", "parked", "parked, asking ahead"} {
			t.Run(name+" "+when, func(t *testing.T) {
				lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
					k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
					session := k.OpenA()
					c := k.CallOnLane()
					ahead := lanetest.Publishing("b", "1") + lanetest.Publishing("b", "2") + lanetest.Polling(session, frames)
					first := frames // number of messages that the first poll gets
					switch when {
					case "from the history":
						k.Tell(1, frames, lanetest.Large)
						c.Send(lanetest.Polling(session, 0), ahead)
					case "parked":
						c.Send(lanetest.Polling(session, 0))
						k.WantParked(1)
						k.Tell(1, 1, lanetest.Large)
						c.WantStuck(1)
						first = 1
						k.Tell(2, frames, lanetest.Large)
						c.Send(lanetest.Publishing("b", "1"), lanetest.Publishing("b", "2"), lanetest.Polling(session, 1))
					default:
						c.Send(lanetest.Polling(session, 0), lanetest.Publishing("b", "1"), lanetest.Publishing("b", "2"), lanetest.Polling(session, 1))
						k.WantParked(1)
						first = 1
						k.Tell(1, 1, lanetest.Large)
						c.WantStuck(1)
						k.Tell(2, frames, lanetest.Large)
					}
					c.WantStuck(first)
					require.Zero(t, k.Counted("pubsubd_calls_total", "publish", "lane"), "what was asked ahead is served in its turn")

					c.ReadsOn()
					c.WantMessages(1, first)
					require.EqualValues(t, 1, c.WantPublished("b"))
					require.EqualValues(t, 2, c.WantPublished("b"))
					if first < frames {
						c.WantMessages(first+1, frames)
						c.Send(lanetest.Polling(session, frames))
					}
					k.WantParked(1)
					k.Tell(frames+1, frames+1, 10)
					c.WantMessages(frames+1, frames+1)
				})
			})
		}
	}
}

// A stream's client stops reading while more is published than its sockets hold. Then it
// reads on and misses nothing. The test does this twice.
func TestAStreamWaitsForAClientThatReadsLate(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
		c := k.Call()
		c.Send(lanetest.Polling(k.OpenA(), 0, lanetest.Streaming), lanetest.Publishing("b", "1"))
		frames := c.WantStream()
		for said := 0; said < 20; said += 10 {
			k.WantParked(1)
			k.Tell(said+1, said+3, lanetest.Large) // one may fit after readsOn has enlarged the buffers
			k.WantParked(0)
			k.Tell(said+4, said+5, 3<<10)
			k.Tell(said+6, said+8, lanetest.Large)
			k.Tell(said+9, said+10, 10)
			require.Less(t, k.Delivered(), said+10)
			c.ReadsOn()
			c.WantNext(frames, said+1, said+10)
			require.NoError(t, c.Conn.SetReadBuffer(8<<10))
		}
		k.WantParked(1)
		k.Tell(21, 21, 10)
		c.WantNext(frames, 21, 21)
		k.WantOnLane(1)
		require.Zero(t, k.Gone())
	})
}

// The daemon closes the connection of a client that never reads, but only after the write
// timeout. The session's next poll gets every message.
func TestAClientThatNeverReadsIsClosedInTime(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
				session := k.OpenA()
				c := k.Call()
				c.Send(lanetest.Polling(session, 0, "&mode="+mode))
				if mode == "stream" {
					c.WantStream()
				}
				k.WantParked(1)
				k.Tell(1, 1, lanetest.Large)
				c.WantStuck(1)
				k.WantParked(0)

				k.Later(lanetest.Defaults.WriteTimeout - 5*time.Second)
				k.Tell(2, 3, lanetest.Large)
				require.Equal(t, 1, k.OnLane())
				k.WantOnLaneAfter(lanetest.Defaults.WriteTimeout, 0)
				c.WantClosed()
				if mode == "stream" {
					require.Equal(t, 1, k.Gone())
					return // frames sent on a stream count as acknowledged
				}
				k.wantAllAgain(session)
			})
		})
	}
}

// A reload can extend the write timeout of connections on the lane.
func TestAReloadedWriteTimeoutHoldsOnTheLane(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
		k.Parts.Polls.Reload(transport.Config{WriteTimeout: time.Hour}, k.Parts.Limits)
		session := k.OpenA()
		c := k.CallOnLane()
		k.Tell(1, 1, lanetest.Large)
		c.Send(lanetest.Polling(session, 0))
		c.WantStuck(1)
		for n := range time.Duration(5) {
			k.Later((n + 1) * (lanetest.Defaults.WriteTimeout + 10*time.Second))
		}
		c.ReadsOn()
		c.WantMessages(1, 1)
	})
}

// As TestAClientThatNeverReadsIsClosedInTime, with the whole answer of a poll buffered.
func TestAnUnreadBatchEndsItsConnection(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
		c := k.CallOnLane()
		k.Tell(1, 1, lanetest.Large)
		c.Send("GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		c.WantStuck(1)
		k.WantOnLaneAfter(lanetest.Defaults.WriteTimeout, 0)
	})
}

// The daemon does not disconnect a client that reads slowly. Each write has its own
// timeout.
func TestAClientThatReadsSlowlyIsNotClosed(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
		c := k.Call()
		c.Send(lanetest.Polling(k.OpenA(), 0, lanetest.Streaming))
		frames := c.WantStream()
		k.WantParked(1)
		k.Tell(1, 1, lanetest.Large)
		c.WantStuck(1)
		k.WantParked(0)
		k.Tell(2, 3, lanetest.Large)

		k.Later(lanetest.Defaults.WriteTimeout - 10*time.Second)
		c.WantNext(frames, 1, 1)
		k.Want(3, k.Delivered, "frames: the next write has begun")
		k.Later(lanetest.Defaults.WriteTimeout + 10*time.Second)
		c.WantNext(frames, 2, 3)
		require.Equal(t, 1, k.OnLane())
	})
}

// When a client with a blocked answer resets its connection, the lane frees it at once. A
// client that only half-closes can still read its buffered answer.
func TestAClientLeavesWhileItsAnswerIsBlocked(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
				k := newLaneWith(t, way, lanetest.Settings{}, lanetest.Small)
				session := k.OpenA()
				resets, ends := k.Call(), k.Call()
				k.Tell(1, 3, lanetest.Large)
				for _, c := range []*lanetest.Caller{resets, ends} {
					c.Send("GET /v1/poll?topic=a@oldest&mode=" + mode + " HTTP/1.1\r\nHost: h\r\n\r\n")
				}
				k.Want(6, k.Delivered, "frames delivered")
				k.WantParked(0)
				require.NoError(t, ends.Conn.CloseWrite())
				resets.Reset()
				k.WantOnLane(1)
				ends.ReadsOn()
				resp := ends.Answer()
				frames := wire.NewDecoder(resp.Body)
				hello, err := frames.Next()
				require.NoError(t, err)
				require.NotNil(t, hello.Hello)
				ends.WantNext(frames, 1, 3)
				k.WantOnLane(0)
				require.NoError(t, ends.Conn.Close())
				resp.Body.Close()

				k.wantAllAgain(session)
			})
		})
	}
}

// The lane closes while polls are parked, in goroutines or blocked, and while other
// connections are silent. TestMain checks that no goroutine is left.
func TestTheLaneClosesInEveryState(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, lanetest.Settings{}, lanetest.Small)
		var all []*lanetest.Caller
		for _, first := range []string{
			lanetest.Publishing("b", "1"), "GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n", lanetest.Polling(k.OpenA(), 0), lanetest.Polling(k.OpenA(), 0, lanetest.Streaming),
		} {
			c := k.Call()
			c.Send(first)
			all = append(all, c)
		}
		k.Want(len(all), func() int { return int(k.Counted("pubsubd_calls_total", "net/http")) }, "calls")
		k.WantOnLane(len(all))
		k.WantParked(2) // the poll with a hello is answered at once
		k.Tell(1, 1, lanetest.Large)
		k.Want(2, k.Delivered, "frames delivered")
		k.WantParked(0) // both answers are blocked
		for range 2 {
			c := k.CallOnLane()
			c.Send(lanetest.Polling(k.OpenA(), 0), lanetest.Publishing("b", "2"))
			all = append(all, c)
		}
		k.WantParked(2)
		closed := make(chan struct{})
		go func() { k.Lane.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(lanetest.Surely):
			require.Fail(t, "the lane does not close")
		}
		require.Zero(t, k.OnLane())
		require.Zero(t, k.Parked())
		for _, c := range all {
			c.WantClosed()
		}
		status, _ := k.Get("GET", "/v1/topics/a", "")
		require.Equal(t, http.StatusOK, status, "net/http goes on")
	})
}
