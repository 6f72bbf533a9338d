package lane_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A slowHook holds each message until the test releases it.
type slowHook struct {
	asked chan string // data of each message on arrival; "gone" when the call is cancelled
	let   chan struct{}
}

func newSlowHook() *slowHook {
	return &slowHook{asked: make(chan string, 100), let: make(chan struct{})}
}

func (h *slowHook) Publish(ctx context.Context, _ hook.Principal, m *wire.Message, _ time.Duration, _ func(*wire.PublishItem) error) error {
	h.asked <- string(m.Data)
	select {
	case <-h.let:
		return nil
	case <-ctx.Done():
		h.asked <- "gone"
		return ctx.Err()
	case <-time.After(lanetest.Surely): // the end of the test waits for the call
		return context.DeadlineExceeded
	}
}

// next returns the next of asked.
func (h *slowHook) next(t *testing.T) (asked string) {
	t.Helper()
	select {
	case asked = <-h.asked:
	case <-time.After(lanetest.Surely):
		require.Fail(t, "the hook is neither asked nor cancelled")
	}
	return asked
}

// A publish that waits for the hook does not block the lane. Its connection stays on the
// lane, and other connections continue.
func TestAPublishWithAHookStaysOnTheLane(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		h := newSlowHook()
		k := newLaneWith(t, way, lanetest.Settings{Hook: h}, nil)
		c, other := k.CallOnLane(), k.CallOnLane()
		c.Send(lanetest.Publishing("asked.a", "1"), lanetest.Publishing("asked.a", "2"), lanetest.Publishing("b", "3"))
		for n := range 2 {
			require.Equal(t, fmt.Sprint(n+1), h.next(t))
			other.Send(lanetest.Publishing("c", "1"))
			require.EqualValues(t, n+1, other.WantPublished("c"))
			require.Empty(t, h.asked, "one after the other")
			h.let <- struct{}{}
			require.EqualValues(t, n+1, c.WantPublished("asked.a"))
		}
		require.EqualValues(t, 1, c.WantPublished("b"))
		k.WantOnLane(2)
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
		require.Equal(t, 5.0, k.Counted("pubsubd_calls_total", "publish", "lane"))
	})
}

// While a command waits for the hook, its client still receives messages. The client's
// later commands wait for their turn.
func TestFramesContinueWhileACommandWaitsForTheHook(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		h := newSlowHook()
		k := newLaneWith(t, way, lanetest.Settings{Hook: h}, nil)
		s := k.Connect(wire.Start{Topic: "a"})
		s.Hello()
		for n := range uint64(3) {
			s.Send(wire.Command{Ref: new(n), Publish: lanetest.Item("asked.a", fmt.Sprint(n))})
		}
		s.Send(wire.Command{Ref: new(uint64(3)), Publish: lanetest.Item("a", `"own"`)})
		s.Send(wire.Command{Ref: new(uint64(4)), Ping: true})
		offset := 0
		for n := range uint64(3) {
			require.Equal(t, fmt.Sprint(n), h.next(t))
			for range 5 {
				offset++
				k.Publish("a", fmt.Sprint(offset))
				s.WantFrame(fmt.Sprint("a", offset), fmt.Sprint(offset))
			}
			require.Empty(t, s.Replies)
			require.Empty(t, h.asked, "one after the other")
			h.let <- struct{}{}
			require.EqualValues(t, n+1, s.WantReply(n).Position.Offset)
		}
		s.WantFrame(fmt.Sprint("a", offset+1), `"own"`)
		require.Nil(t, s.WantReply(3).Problem)
		s.WantReply(4)
		s.Close()
		k.WantNoLaneConnections()
	})
}

// A subscribe command may wait for a slot. Its reply precedes the subscription's first
// frame.
func TestADelayedSubscribeIsAnsweredBeforeItsFrames(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{Limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: lanetest.Surely}}, nil)
		k.Publish("b", "1")
		waiting := func() int {
			var g metrics.Gauges
			k.Parts.Limiter.Gauges(&g)
			return g.Limits[0].Waiting
		}
		for n := range uint64(30) {
			s := k.Connect(wire.Start{Topic: "a"})
			s.Hello()
			slot, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
			require.NoError(t, err)
			s.Send(wire.Command{Ref: &n, Subscribe: []wire.Start{{Topic: "b", From: wire.FromOldest}}})
			k.Want(1, waiting, "calls that wait")
			slot.End()
			s.WantFrame("b1", "1")
			require.Len(t, s.Replies, 1, "it was received before")
			require.Len(t, s.WantReply(n).Positions, 1)
			s.Close()
		}
	})
}

// Sends waiting commands, other commands and frames on many connections at once, for the
// race detector.
func TestCommandsThatWaitAmongMany(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		const clients, each = 8, 100
		h := newSlowHook()
		close(h.let)
		h.asked = make(chan string, clients*each)
		k := newLaneWith(t, way, lanetest.Settings{Hook: h}, nil)
		sockets := make([]*lanetest.SocketSubscriber, clients)
		for i := range sockets {
			sockets[i] = k.Connect(wire.Start{Topic: fmt.Sprint("asked.", i)}, wire.Start{Topic: "a"})
			sockets[i].Hello()
		}
		var running sync.WaitGroup
		for i, s := range sockets {
			topic := fmt.Sprint("asked.", i)
			running.Go(func() {
				for n := range uint64(each) {
					s.Send(wire.Command{Ref: new(2 * n), Publish: lanetest.Item(topic, fmt.Sprint(n))})
					s.Send(wire.Command{Ref: new(2*n + 1), Publish: lanetest.Item("a", fmt.Sprint(n))})
				}
			})
			running.Go(func() {
				for ref := range uint64(2 * each) {
					require.Nil(t, s.WantReply(ref).Problem)
				}
			})
			running.Go(func() {
				own := uint64(0)
				for range (clients + 1) * each {
					c, err := s.Next()
					require.NoError(t, err)
					if c.Message.Position.Topic == topic {
						require.Equal(t, fmt.Sprint(own), string(c.Message.Data))
						own++
					}
				}
			})
		}
		running.Wait()
		for _, s := range sockets {
			s.Close()
		}
		k.WantNoLaneConnections()
	})
}

// When a client leaves, its connection is freed and its pending hook call is cancelled.
func TestAClientLeavesWhileItsCommandWaits(t *testing.T) {
	h := newSlowHook()
	k := newLaneWith(t, lane.HandOff, lanetest.Settings{Hook: h}, nil)
	s := k.Connect(wire.Start{Topic: "a"})
	s.Hello()
	s.Send(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("asked.a", "1")})
	require.Equal(t, "1", h.next(t))
	s.Close()
	k.WantNoLaneConnections()
	require.Equal(t, "gone", h.next(t))
	require.Empty(t, k.Held("asked.a"))
}

// A drain does not wait for a hook call or for the commands behind it.
func TestAConnectionEndsWhileItsCommandWaits(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		h := newSlowHook()
		k := newLaneWith(t, way, lanetest.Settings{Hook: h}, nil)
		s := k.Connect(wire.Start{Topic: "a"})
		s.Hello()
		s.Send(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("asked.a", "1")})
		s.Send(wire.Command{Ref: new(uint64(2)), Ping: true})
		require.Equal(t, "1", h.next(t))
		k.Parts.Sessions.BeginDrain(lanetest.GoingAway()).End(math.MaxInt)
		_, err := s.Next()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeDraining})
		require.Equal(t, "gone", h.next(t))
		s.Close()
		require.Empty(t, s.Replies, "nothing comes behind an end")
		k.WantNoLaneConnections()
	})
}

// The daemon does not time out a silent client that waits for a reply.
func TestAClientCanBeSilentWhileItAwaitsAReply(t *testing.T) {
	h := newSlowHook()
	k := newLaneWith(t, lane.HandOff, lanetest.Settings{Hook: h}, nil)
	s := k.Connect(wire.Start{Topic: "a"})
	s.Hello()
	s.Send(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("asked.a", "1")})
	s.Send(wire.Command{Ref: new(uint64(2)), Ping: true})
	require.Equal(t, "1", h.next(t))
	for n := range 20 {
		k.Later(time.Duration(n) * time.Minute)
		k.Publish("a", fmt.Sprint(n))
		s.WantFrame(fmt.Sprint("a", n+1), fmt.Sprint(n))
	}
	h.let <- struct{}{}
	require.Nil(t, s.WantReply(1).Problem)
	s.WantReply(2)
	s.Close()
}

// When an HTTP publisher leaves during its hook call, the call is cancelled. Other
// connections continue.
func TestAPublisherLeavesDuringTheHook(t *testing.T) {
	for name, call := range map[string]func(*kit) *lanetest.Caller{"on net/http": (*kit).Call, "on the lane": (*kit).CallOnLane} {
		t.Run(name, func(t *testing.T) {
			h := newSlowHook()
			k := serveLane(t, lane.HandOff, lanetest.Settings{Hook: h}, nil)
			c := call(k)
			c.Send(lanetest.Publishing("asked.a", "1"))
			require.Equal(t, "1", h.next(t))
			c.Reset()
			require.Equal(t, "gone", h.next(t))
			k.WantOnLane(0)
			other := k.Call()
			other.Send(lanetest.Publishing("b", "1"))
			other.WantAnswer(http.StatusOK)
		})
	}
}
