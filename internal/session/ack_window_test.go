package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// hearing begins a poll that expects acks.
func (k *kit) hearing(s *Session, ack uint64) *Reader {
	k.Helper()
	p := &Reader{}
	require.NoError(k, p.Begin(s, ack, AcksDuring, Arrival{}, time.Now()))
	return p
}

// waitsFor takes frames. It returns them with the time that Take took.
func (k *kit) waitsFor(p *Reader) (string, time.Duration) {
	k.Helper()
	begun := time.Now()
	frames, err := p.Take(context.Background(), everything, patience)
	require.NoError(k, err)
	return said(frames), time.Since(begun)
}

// A poll that expects acks waits for one when its window is full. It sends nothing twice
// or out of order.
func TestAPollWithAFullWindowWaitsForAnAck(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 3, Queue: 2}, func(k *kit) {
		s := k.open("a")
		p := k.hearing(s, 0)
		k.publishN("a", 9)
		got, _ := k.waitsFor(p)
		require.Equal(k, "a1 a2 a3", got)
		got, waited := k.waitsFor(p)
		require.Empty(k, got)
		require.Equal(k, patience, waited, "it is not answered at once, again and again")
		go func() {
			time.Sleep(time.Second)
			require.NoError(k, s.Ack(2))
		}()
		got, waited = k.waitsFor(p)
		require.Equal(k, "a4 a5", got)
		require.Equal(k, time.Second, waited)
		require.NoError(k, s.Ack(1), "what was acked before may be said again")
		require.ErrorIs(k, s.Ack(6), &wire.Problem{Code: wire.CodeAckBeyondSent})
		require.NoError(k, s.Ack(5))
		got, _ = k.waitsFor(p)
		require.Equal(k, "a6 a7 a8", got)
		p.Done(time.Now())
		p = k.hearing(s, 6)
		got, _ = k.waitsFor(p)
		require.Equal(k, "a7 a8 a9", got, "the next poll is sent again what was not acked")
		p.Done(time.Now())
	})
}

// Messages that arrive while the window is full are queued behind those that wait.
func TestAParkedPollWithAFullWindowKeepsTheOrder(t *testing.T) {
	for _, queue := range []int{1, 8} {
		story(t, broker.Config{}, Config{Unacked: 2, Queue: queue}, func(k *kit) {
			s := k.open("a")
			l := &line{k: k, then: Parked}
			p := k.hearing(s, 0)
			park := func() string {
				k.Helper()
				frames, became, err := p.TakeOrPark(l, everything, patience, time.Now())
				require.NoError(k, err)
				require.Equal(k, len(frames) == 0, became == Parked)
				return said(frames)
			}
			require.Empty(k, park())
			k.publishN("a", 2)
			l.wants("a1", "a2")
			k.publishN("a", 3)
			require.Empty(k, l.told)
			require.Zero(k, l.woken, "there is nothing that it could do")
			require.NoError(k, s.Ack(1))
			require.Equal(k, 1, l.woken)
			require.Equal(k, "a3", park())
			require.Empty(k, park())
			require.NoError(k, s.Ack(3))
			require.Equal(k, "a4 a5", park())
			require.NoError(k, s.Ack(5))
			require.Empty(k, park())
			k.publishN("a", 1)
			l.wants("a6")
			p.Unpark()
			p.Done(time.Now())
		})
	}
}

// Frames that the client acks are not resent, even if an earlier connection sent them.
func TestAnAckCanArriveWhileFramesAreResent(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 4)
		require.Equal(k, span("a", 1, 4), k.poll(s, 0))
		p := k.hearing(s, 0)
		frames, err := p.Take(context.Background(), frame.Limit{Frames: 1, Bytes: 1000}, patience)
		require.NoError(k, err)
		require.Equal(k, "a1", said(frames))
		require.NoError(k, s.Ack(3))
		got, _ := k.waitsFor(p)
		require.Equal(k, "a4", got)
		synctest.Wait()
		p.Done(time.Now())
	})
}

// When a reload widens a full window, new messages do not overtake waiting ones.
func TestAPollKeepsTheOrderWhenAReloadWidensItsWindow(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 2, Queue: 8}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Parked}
		p := k.hearing(s, 0)
		_, became, err := p.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, Parked, became)
		k.publishN("a", 4)
		l.wants("a1", "a2")
		k.registry.Reload(Config{Unacked: 100, Queue: 8})
		k.publishN("a", 1)
		require.Empty(k, l.told)
		require.Equal(k, 1, l.woken)
		frames, _, err := p.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, "a3 a4 a5", said(frames))
		p.Done(time.Now())
	})
}

// An older connection can bring an ack just after a newer poll began.
func TestAnAckCanArriveJustAfterAPollBegan(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		require.Equal(k, "a1 a2", k.poll(s, 0))
		p := k.hearing(s, 0)
		go func() { require.NoError(k, s.Ack(1)) }()
		synctest.Wait()
		got, _ := k.waitsFor(p)
		require.Equal(k, "a2", got)
		p.Done(time.Now())
	})
}

// slide begins a poll with a sliding window.
func (k *kit) slide(s *Session, ack uint64) *Reader {
	k.Helper()
	p := &Reader{}
	require.NoError(k, p.Begin(s, ack, AcksLater, Arrival{}, time.Now()))
	return p
}

// takes takes up to the given number of frames.
func (k *kit) takes(p *Reader, frames int) string {
	k.Helper()
	taken, err := p.Take(context.Background(), frame.Limit{Frames: frames, Bytes: 1 << 20}, time.Second)
	require.NoError(k, err)
	return said(taken)
}

// A client reads for long without an ack. It reconnects with the count of what it has and
// gets the rest with the same numbers, unless it is beyond the window.
func TestASlidingWindowNeverBlocksAndCanBeResumed(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 16}, func(k *kit) {
		s := k.open("a")
		p := k.slide(s, 0)
		for n := 1; n <= 100; n++ {
			k.publishN("a", 1)
			require.Equal(k, span("a", n, n), k.takes(p, 10))
		}
		p.Done(time.Now())
		require.NoError(k, s.CheckAck(90))
		require.NoError(k, s.CheckAck(100))
		require.ErrorIs(k, s.CheckAck(100-17), &wire.Problem{Code: wire.CodeStaleAck}, "beyond the window")
		require.ErrorIs(k, s.CheckAck(101), &wire.Problem{Code: wire.CodeAckBeyondSent}, "it was not sent")

		p = k.slide(s, 90)
		k.publishN("a", 2)
		require.Equal(k, span("a", 91, 94), k.takes(p, 4), "again, a part at a time")
		require.Equal(k, span("a", 95, 100), k.takes(p, 6))
		require.Equal(k, span("a", 101, 102), k.takes(p, 10))
		p.Done(time.Now())
		require.Error(k, s.CheckAck(89), "it said that it had more")
		require.Equal(k, span("a", 98, 102), k.poll(s, 97), "and with acks, as any session")
	})
}

// All frames of one Take are kept, whatever the window's size.
func TestOneTakeFitsIntoASlidingWindow(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 8, Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 30)
		p := k.slide(s, 0)
		require.Equal(k, span("a", 1, 7), k.takes(p, 1000))
		require.NoError(k, s.CheckAck(0))
		require.Equal(k, span("a", 8, 14), k.takes(p, 1000))
		require.NoError(k, s.CheckAck(7))
		l := k.registry.List(1, ByLag, time.Now())
		require.NotEqual(k, waitAck, l.Sessions[0].Why, "it waits for no ack")
		p.Done(time.Now())
	})
}

// A reload makes the bound smaller while the window is full.
func TestASlidingWindowShrinksOnReload(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 64}, func(k *kit) {
		s := k.open("a")
		p := k.slide(s, 0)
		k.publishN("a", 20)
		k.takes(p, 64)
		k.registry.Reload(Config{Unacked: 4})
		k.publishN("a", 1)
		require.Equal(k, "a21", k.takes(p, 64))
		require.NoError(k, s.CheckAck(20))
		require.Error(k, s.CheckAck(16))
		p.Done(time.Now())
	})
}

func TestAnAckIsCheckedOnlyWhereItCounts(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		trusting, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		require.NoError(k, trusting.CheckAck(99), "a session without acks ignores them")
		s := k.open("a")
		require.NoError(k, s.CheckAck(0))
		k.registry.End(s)
		require.True(k, ClosedByClient(s.CheckAck(0)))
		_, err = k.registry.Get([]byte(s.ID()))
		require.True(k, ClosedByClient(err))
		_, err = k.registry.Get([]byte("nobody"))
		require.False(k, ClosedByClient(err))
	})
}
