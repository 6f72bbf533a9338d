//go:build linux

package httpapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// small limits a socket's buffers to a few kilobytes in each direction.
var small = buffers(8 << 10)

// large is the size of a message that does not fit into small buffers.
const large = 60 << 10

// readsOn enlarges the read buffer before the client reads the rest. With small buffers
// on loopback, TCP waits 40 ms or more for every few segments.
func (c *caller) readsOn() {
	c.Helper()
	require.NoError(c, c.conn.SetReadBuffer(1<<20))
}

// wantStuck waits until this many frames were delivered. It requires that the sockets do
// not hold all of their bytes.
func (c *caller) wantStuck(frames int) {
	c.Helper()
	c.want(frames, c.delivered, "frames delivered")
	require.Less(c, int(c.counted("pubsubd_network_bytes_total", "out")), large*frames, "the sockets hold it all: nobody is stuck")
}

// wantAllAgain requires that the session's next poll gets the messages 1 to 3.
func (k *kit) wantAllAgain(session string) {
	k.Helper()
	c := k.call()
	c.readsOn()
	c.send(polling(session, 0))
	c.wantMessages(1, 3)
}

// A client pipelines requests and does not read for long. In the end it gets all answers
// in order. The daemon serves no request before it has written the previous answer.
func TestAnAnswerWaitsForAClientThatReadsLate(t *testing.T) {
	for name, frames := range map[string]int{"one frame": 1, "many frames": 12} {
		for _, when := range []string{"from the history", "parked", "parked, asking ahead"} {
			t.Run(name+" "+when, func(t *testing.T) {
				onBothWays(t, func(t *testing.T, way lane.Way) {
					k := serveLane(t, way, settings{}, small)
					session := k.openA()
					c := k.callOnLane()
					ahead := publishing("b", "1") + publishing("b", "2") + polling(session, frames)
					first := frames // number of messages that the first poll gets
					switch when {
					case "from the history":
						k.tell(1, frames, large)
						c.send(polling(session, 0), ahead)
					case "parked":
						c.send(polling(session, 0))
						k.wantParked(1)
						k.tell(1, 1, large)
						c.wantStuck(1)
						first = 1
						k.tell(2, frames, large)
						c.send(publishing("b", "1"), publishing("b", "2"), polling(session, 1))
					default:
						c.send(polling(session, 0), publishing("b", "1"), publishing("b", "2"), polling(session, 1))
						k.wantParked(1)
						first = 1
						k.tell(1, 1, large)
						c.wantStuck(1)
						k.tell(2, frames, large)
					}
					c.wantStuck(first)
					require.Zero(t, k.counted("pubsubd_calls_total", "publish", "lane"), "what was asked ahead is served in its turn")

					c.readsOn()
					c.wantMessages(1, first)
					require.EqualValues(t, 1, c.wantPublished("b"))
					require.EqualValues(t, 2, c.wantPublished("b"))
					if first < frames {
						c.wantMessages(first+1, frames)
						c.send(polling(session, frames))
					}
					k.wantParked(1)
					k.tell(frames+1, frames+1, 10)
					c.wantMessages(frames+1, frames+1)
				})
			})
		}
	}
}

// A stream's client stops reading while more is published than its sockets hold. Then it
// reads on and misses nothing. The test does this twice.
func TestAStreamWaitsForAClientThatReadsLate(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{}, small)
		c := k.call()
		c.send(polling(k.openA(), 0, streaming), publishing("b", "1"))
		frames := c.wantStream()
		for said := 0; said < 20; said += 10 {
			k.wantParked(1)
			k.tell(said+1, said+3, large) // one may fit after readsOn has enlarged the buffers
			k.wantParked(0)
			k.tell(said+4, said+5, 3<<10)
			k.tell(said+6, said+8, large)
			k.tell(said+9, said+10, 10)
			require.Less(t, k.delivered(), said+10)
			c.readsOn()
			c.wantNext(frames, said+1, said+10)
			require.NoError(t, c.conn.SetReadBuffer(8<<10))
		}
		k.wantParked(1)
		k.tell(21, 21, 10)
		c.wantNext(frames, 21, 21)
		k.wantOnLane(1)
		require.Zero(t, k.gone())
	})
}

// The daemon closes the connection of a client that never reads, but only after the write
// timeout. The session's next poll gets every message.
func TestAClientThatNeverReadsIsClosedInTime(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			onBothWays(t, func(t *testing.T, way lane.Way) {
				k := serveLane(t, way, settings{}, small)
				session := k.openA()
				c := k.call()
				c.send(polling(session, 0, "&mode="+mode))
				if mode == "stream" {
					c.wantStream()
				}
				k.wantParked(1)
				k.tell(1, 1, large)
				c.wantStuck(1)
				k.wantParked(0)

				k.later(defaults.WriteTimeout - 5*time.Second)
				k.tell(2, 3, large)
				require.Equal(t, 1, k.onLane())
				k.wantOnLaneAfter(defaults.WriteTimeout, 0)
				c.wantClosed()
				if mode == "stream" {
					require.Equal(t, 1, k.gone())
					return // frames sent on a stream count as acknowledged
				}
				k.wantAllAgain(session)
			})
		})
	}
}

// A reload can extend the write timeout of connections on the lane.
func TestAReloadedWriteTimeoutHoldsOnTheLane(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{}, small)
		k.cfg.Polls.Reload(transport.Config{WriteTimeout: time.Hour}, k.cfg.Limits)
		session := k.openA()
		c := k.callOnLane()
		k.tell(1, 1, large)
		c.send(polling(session, 0))
		c.wantStuck(1)
		for n := range time.Duration(5) {
			k.later((n + 1) * (defaults.WriteTimeout + 10*time.Second))
		}
		c.readsOn()
		c.wantMessages(1, 1)
	})
}

// As TestAClientThatNeverReadsIsClosedInTime, with the whole answer of a poll buffered.
func TestAnUnreadBatchEndsItsConnection(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{}, small)
		c := k.callOnLane()
		k.tell(1, 1, large)
		c.send("GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
		c.wantStuck(1)
		k.wantOnLaneAfter(defaults.WriteTimeout, 0)
	})
}

// The daemon does not disconnect a client that reads slowly. Each write has its own
// timeout.
func TestAClientThatReadsSlowlyIsNotClosed(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{}, small)
		c := k.call()
		c.send(polling(k.openA(), 0, streaming))
		frames := c.wantStream()
		k.wantParked(1)
		k.tell(1, 1, large)
		c.wantStuck(1)
		k.wantParked(0)
		k.tell(2, 3, large)

		k.later(defaults.WriteTimeout - 10*time.Second)
		c.wantNext(frames, 1, 1)
		k.want(3, k.delivered, "frames: the next write has begun")
		k.later(defaults.WriteTimeout + 10*time.Second)
		c.wantNext(frames, 2, 3)
		require.Equal(t, 1, k.onLane())
	})
}

// When a client with a blocked answer resets its connection, the lane frees it at once. A
// client that only half-closes can still read its buffered answer.
func TestAClientLeavesWhileItsAnswerIsBlocked(t *testing.T) {
	for _, mode := range []string{"batch", "stream"} {
		t.Run(mode, func(t *testing.T) {
			onBothWays(t, func(t *testing.T, way lane.Way) {
				k := serveLane(t, way, settings{}, small)
				session := k.openA()
				resets, ends := k.call(), k.call()
				k.tell(1, 3, large)
				for _, c := range []*caller{resets, ends} {
					c.send("GET /v1/poll?topic=a@oldest&mode=" + mode + " HTTP/1.1\r\nHost: h\r\n\r\n")
				}
				k.want(6, k.delivered, "frames delivered")
				k.wantParked(0)
				require.NoError(t, ends.conn.CloseWrite())
				resets.reset()
				k.wantOnLane(1)
				ends.readsOn()
				resp := ends.answer()
				frames := wire.NewDecoder(resp.Body)
				hello, err := frames.Next()
				require.NoError(t, err)
				require.NotNil(t, hello.Hello)
				ends.wantNext(frames, 1, 3)
				k.wantOnLane(0)
				require.NoError(t, ends.conn.Close())
				resp.Body.Close()

				k.wantAllAgain(session)
			})
		})
	}
}

// The lane closes while polls are parked, in goroutines or blocked, and while other
// connections are silent. TestMain checks that no goroutine is left.
func TestTheLaneClosesInEveryState(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{}, small)
		var all []*caller
		for _, first := range []string{
			publishing("b", "1"), "GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n", polling(k.openA(), 0), polling(k.openA(), 0, streaming),
		} {
			c := k.call()
			c.send(first)
			all = append(all, c)
		}
		k.want(len(all), func() int { return int(k.counted("pubsubd_calls_total", "net/http")) }, "calls")
		k.wantOnLane(len(all))
		k.wantParked(2) // the poll with a hello is answered at once
		k.tell(1, 1, large)
		k.want(2, k.delivered, "frames delivered")
		k.wantParked(0) // both answers are blocked
		for range 2 {
			c := k.callOnLane()
			c.send(polling(k.openA(), 0), publishing("b", "2"))
			all = append(all, c)
		}
		k.wantParked(2)
		closed := make(chan struct{})
		go func() { k.api.Lane.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(surely):
			require.Fail(t, "the lane does not close")
		}
		require.Zero(t, k.onLane())
		require.Zero(t, k.parked())
		for _, c := range all {
			c.wantClosed()
		}
		status, _ := k.get("GET", "/v1/topics/a", "")
		require.Equal(t, http.StatusOK, status, "net/http goes on")
	})
}
