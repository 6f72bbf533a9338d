package session

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
)

// slide begins a poll that slides.
func (k *kit) slide(s *Session, ack uint64) *Poll {
	k.Helper()
	p, err := s.Poll(ack, false, time.Now())
	require.NoError(k, err)
	p.Slide()
	return p
}

// takes takes so many frames at most.
func (k *kit) takes(p *Poll, frames int) string {
	k.Helper()
	taken, err := p.Take(context.Background(), broker.Limit{Frames: frames, Bytes: 1 << 20}, time.Second)
	require.NoError(k, err)
	return said(taken)
}

// A client reads on and on and says nothing. It comes back with what it had, and gets
// the rest with the numbers that it has; what is older than the window it had.
func TestAPollThatSlidesIsNotHeldUpAndGoesBack(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 16}, func(k *kit) {
		s := k.open("a")
		p := k.slide(s, 0)
		for n := 1; n <= 100; n++ {
			k.publishN("a", 1)
			require.Equal(k, span("a", n, n), k.takes(p, 10))
		}
		p.Done(time.Now())
		require.True(k, s.GoesBackTo(90))
		require.True(k, s.GoesBackTo(100))
		require.False(k, s.GoesBackTo(100-17), "beyond the window")
		require.False(k, s.GoesBackTo(101), "it was not sent")

		p = k.slide(s, 90)
		k.publishN("a", 2)
		require.Equal(k, span("a", 91, 94), k.takes(p, 4), "again, a part at a time")
		require.Equal(k, span("a", 95, 100), k.takes(p, 6))
		require.Equal(k, span("a", 101, 102), k.takes(p, 10))
		p.Done(time.Now())
		require.False(k, s.GoesBackTo(89), "it said that it had more")
		require.Equal(k, span("a", 98, 102), k.poll(s, 97), "and with acks, as any session")
	})
}

// What is sent together is kept together, whatever the window holds.
func TestASlidingPollTakesNoMoreThanItsWindow(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 8, Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 30)
		p := k.slide(s, 0)
		require.Equal(k, span("a", 1, 7), k.takes(p, 1000))
		require.True(k, s.GoesBackTo(0))
		require.Equal(k, span("a", 8, 14), k.takes(p, 1000))
		require.True(k, s.GoesBackTo(7))
		l := k.registry.List(1, ByLag, time.Now())
		require.NotEqual(k, WaitAck, l.Sessions[0].Why, "it waits for no ack")
		p.Done(time.Now())
	})
}

// The bound is made smaller while a window is full.
func TestAWindowShrinksWithItsBound(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 64}, func(k *kit) {
		s := k.open("a")
		p := k.slide(s, 0)
		k.publishN("a", 20)
		k.takes(p, 64)
		k.registry.Reload(Config{Unacked: 4})
		k.publishN("a", 1)
		require.Equal(k, "a21", k.takes(p, 64))
		require.True(k, s.GoesBackTo(20))
		require.False(k, s.GoesBackTo(16))
		p.Done(time.Now())
	})
}

func TestOnlyASessionThatKeepsWhatItSentGoesBack(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		trusting, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		require.False(k, trusting.GoesBackTo(0))
		s := k.open("a")
		require.True(k, s.GoesBackTo(0))
		k.registry.End(s)
		require.False(k, s.GoesBackTo(0))
		_, err = k.registry.Get(s.ID())
		require.True(k, ClosedByClient(err))
		_, err = k.registry.Get("nobody")
		require.False(k, ClosedByClient(err))
	})
}
