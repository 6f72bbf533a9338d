package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// hearing begins a poll of s whose client acks while it lasts.
func (k *kit) hearing(s *Session, ack uint64) *Poll {
	k.Helper()
	p, err := s.Poll(ack, false, time.Now())
	require.NoError(k, err)
	p.HearAcks()
	return p
}

// waitsFor takes what is there or comes, and returns it with how long that took.
func (k *kit) waitsFor(p *Poll) (string, time.Duration) {
	k.Helper()
	begun := time.Now()
	frames, err := p.Take(context.Background(), everything, patience)
	require.NoError(k, err)
	return said(frames), time.Since(begun)
}

// A poll that goes on waits for an ack where one that ends would be answered, and
// nothing is sent twice on it, or out of order.
func TestAPollThatIsFullWaitsForAnAck(t *testing.T) {
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

// What comes while the window is full is queued behind what waits for the ack.
func TestAFullPollThatIsParkedKeepsTheOrder(t *testing.T) {
	for _, queue := range []int{1, 8} {
		story(t, broker.Config{}, Config{Unacked: 2, Queue: queue}, func(k *kit) {
			s := k.open("a")
			l := &line{k: k, then: Parked}
			p := k.hearing(s, 0)
			park := func() string {
				k.Helper()
				frames, became, err := p.TakeOrPark(l, everything, patience, time.Now())
				require.NoError(k, err)
				require.Equal(k, len(frames) == 0, became == DidPark)
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

// Who acks what an earlier connection brought is not sent it again.
func TestAnAckMayComeWhileFramesAreSentAgain(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 4)
		require.Equal(k, span("a", 1, 4), k.poll(s, 0))
		p := k.hearing(s, 0)
		frames, err := p.Take(context.Background(), broker.Limit{Frames: 1, Bytes: 1000}, patience)
		require.NoError(k, err)
		require.Equal(k, "a1", said(frames))
		require.NoError(k, s.Ack(3))
		got, _ := k.waitsFor(p)
		require.Equal(k, "a4", got)
		synctest.Wait()
		p.Done(time.Now())
	})
}

// A window that a reload widens while a poll is full does not let what comes overtake
// what waits.
func TestAFullPollKeepsTheOrderThoughItsWindowWidens(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 2, Queue: 8}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Parked}
		p := k.hearing(s, 0)
		_, became, err := p.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, DidPark, became)
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

// An older connection may bring an ack in the moment that a newer poll begins.
func TestAnAckMayComeWhileAPollBegins(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		require.Equal(k, "a1 a2", k.poll(s, 0))
		p, err := s.Poll(0, false, time.Now())
		require.NoError(k, err)
		go func() { require.NoError(k, s.Ack(1)) }()
		p.HearAcks()
		synctest.Wait()
		got, _ := k.waitsFor(p)
		require.Equal(k, "a2", got)
		p.Done(time.Now())
	})
}
