package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAParkedPollIsAnsweredByTheNextMessage(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		p := k.park(s, 0)
		k.publish("a")
		p.wantFrames("a1")
		k.publishN("a", 3)
		require.Equal(k, "a2 a3 a4", k.poll(s, 1), "what came between the polls comes at once")
		begun := time.Now()
		k.park(s, 4).wantFrames("")
		require.Equal(k, patience, time.Since(begun), "and nothing after the poll's patience")
	})
}

func TestAnUnackedAnswerIsResentWithTheSameNumbers(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a", "b")
		k.publishN("a", 2)
		k.publishN("b", 1)
		require.Equal(k, "a1 a2 b1", k.poll(s, 0))
		k.publishN("a", 1)
		require.Equal(k, "a1 a2 b1 a3", k.poll(s, 0), "the answer was lost: all of it, then what is new")
		require.Equal(k, "b1 a3", k.poll(s, 2), "two frames of it arrived")
		k.publishN("b", 1)
		require.Equal(k, "b2", k.poll(s, 4))
		require.Equal(k, 3.0+2, testutil.ToFloat64(k.registry.metrics.Resent))
	})
}

func TestImpossibleAcksAreRefusedAndChangeNothing(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		k.poll(s, 0)
		p := k.park(s, 2)
		_, err := k.tryPoll(s, 1, everything)
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeStaleAck})
		_, err = k.tryPoll(s, 3, everything)
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeAckBeyondSent})
		k.publish("a")
		p.wantFrames("a3")
	})
}

func TestANewerPollEndsTheParkedOne(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		older := k.park(s, 0)
		newer := k.park(s, 0)
		older.wantProblem(wire.CodePollReplaced)
		k.publish("a")
		newer.wantFrames("a1")
	})
}

// Two polls begin in the opposite order of their requests.
func TestOfTwoPollsTheLaterRequestWinsUnlessItsClientHasLeft(t *testing.T) {
	replaced := &wire.Problem{Code: wire.CodePollReplaced}
	for name, c := range map[string]struct {
		late, early leaver // clients of the later and the earlier request
		want        error  // of the earlier request, which begins last
	}{
		"both are alive":           {false, false, replaced},
		"the earlier one has left": {false, true, context.Canceled},
		"the later one has left":   {true, false, nil},
		"both have left":           {true, true, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, broker.Config{}, Config{}, func(k *kit) {
				s := k.open("a")
				now := time.Now()
				var late, early Reader
				require.NoError(k, late.Begin(s, 0, AcksNext, Arrival{now, c.late}, now))
				err := early.Begin(s, 0, AcksNext, Arrival{now.Add(-time.Millisecond), c.early}, now)
				require.ErrorIs(k, err, c.want)
				if c.want == nil {
					require.Same(k, &early, s.readers.newest)
					early.Done(now)
				} else {
					require.Same(k, &late, s.readers.newest)
				}
				late.Done(now)
			})
		})
	}
}

type leaver bool

func (l leaver) Left() bool { return bool(l) }

// A poll was replaced while it wrote. Its next Take returns the problem at once, although
// the newer poll is parked.
func TestAPollThatWasReplacedWhileItWroteEndsAtOnce(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 1)
		older, err := s.Poll(0, false, time.Now())
		require.NoError(k, err)
		frames, err := older.Take(context.Background(), everything, patience)
		require.NoError(k, err)
		require.Equal(k, "a1", said(frames))
		newer := k.park(s, 1)
		begun := time.Now()
		_, err = older.Take(context.Background(), everything, patience)
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodePollReplaced})
		require.Zero(k, time.Since(begun))
		k.publish("a")
		newer.wantFrames("a2")
	})
}

// A connection forgets a poll that was replaced while it waited. Its next poll waits as usual.
func TestAForgottenPollBeginsAnew(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		p, err := s.Poll(0, false, time.Now())
		require.NoError(k, err)
		ended := make(chan error, 1)
		go func() {
			_, err := p.Take(context.Background(), everything, patience)
			ended <- err
		}()
		synctest.Wait()
		k.park(s, 0)
		require.ErrorIs(k, <-ended, &wire.Problem{Code: wire.CodePollReplaced})
		p.Done(time.Now())
		p.Forget()

		another := k.open("a")
		require.NoError(k, p.Begin(another, 0, AcksNext, Arrival{}, time.Now()))
		begun := time.Now()
		frames, err := p.Take(context.Background(), everything, patience)
		require.NoError(k, err)
		require.Empty(k, frames)
		require.Equal(k, patience, time.Since(begun))
	})
}

func TestAGapForAnUnackedMessageHasItsReason(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Minute}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 1)
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, time.Second, time.Now())
		require.NoError(k, err)
		k.publishN("a", 1)
		require.Equal(k, "a1 a2 a3", k.poll(s, 0))
		time.Sleep(time.Second)
		require.Equal(k, "a1 gap(expired a1-2) a3", k.poll(s, 0), "its own life is over")
		time.Sleep(time.Minute)
		k.broker.Sweep(time.Now())
		require.Equal(k, "gap(expired a0-1) gap(expired a1-2) gap(expired a2-3)", k.poll(s, 0), "the history's age is over")
	})
}

func TestAnEvictedUnackedMessageIsAGapForGood(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 3}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		require.Equal(k, "a1 a2", k.poll(s, 0))
		k.publishN("a", 2)
		require.Equal(k, "gap(evicted a0-1) a2 a3 a4", k.poll(s, 0))
		require.Equal(k, "gap(evicted a0-1) a2 a3 a4", k.poll(s, 0), "the same again")
		k.publishN("a", 2)
		require.Equal(k, "gap(evicted a2-3) a4 a5 a6", k.poll(s, 2), "numbers stay: each lost frame is a gap of its own")
	})
}

func TestUnackedFramesAreBounded(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 4, Queue: 2}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 6)
		require.Equal(k, "a1 a2 a3 a4", k.poll(s, 0))
		require.Equal(k, "a1 a2 a3 a4", k.poll(s, 0))
		require.Equal(k, "a4 a5 a6", k.poll(s, 3))
		p, err := s.Poll(3, false, time.Now())
		require.NoError(k, err)
		defer p.Done(time.Now())
		frames, err := p.Take(context.Background(), everything, patience)
		require.NoError(k, err)
		require.Equal(k, "a4 a5 a6", said(frames))
		k.publishN("a", 2)
		frames, err = p.Take(context.Background(), everything, patience)
		require.NoError(k, err)
		require.Equal(k, "a7", said(frames), "one more fits")
		begun := time.Now()
		frames, err = p.Take(context.Background(), everything, patience)
		require.NoError(k, err)
		require.Empty(k, frames)
		require.Zero(k, time.Since(begun), "an answer ends when nothing can be sent before an ack")
		p.Done(time.Now())
		require.Equal(k, "a8", k.poll(s, 7), "and nothing was lost by it")
	})
}

func TestASessionThatTrustsItsConnectionKeepsNothing(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a"), Ack: false}, time.Now())
		require.NoError(k, err)
		k.publishN("a", 2)
		require.Equal(k, "a1 a2", k.poll(s, 0))
		k.publishN("a", 1)
		require.Equal(k, "a3", k.poll(s, 0))
	})
}

// A poll may have just taken a frame from the queue when it must end. The next poll gets
// the frame, even without acks.
func TestAPollThatMustEndPutsItsFrameBack(t *testing.T) {
	gone, leave := context.WithCancel(context.Background())
	leave()
	for name, over := range map[string]struct {
		ctx      context.Context
		replaced bool
		want     error
	}{
		"the client left":   {ctx: gone, want: context.Canceled},
		"a newer poll came": {ctx: context.Background(), replaced: true, want: &wire.Problem{Code: wire.CodePollReplaced}},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, broker.Config{}, Config{}, func(k *kit) {
				s, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a"), Ack: false}, time.Now())
				require.NoError(k, err)
				p, err := s.Poll(0, false, time.Now())
				require.NoError(k, err)
				k.publishN("a", 2)
				inHand := <-s.queue.frames
				if over.replaced {
					_, err = s.Poll(0, false, time.Now())
					require.NoError(k, err)
				}
				_, _, err = p.collect(over.ctx, inHand, everything)
				require.ErrorIs(k, err, over.want)
				p.Done(time.Now())
				require.Equal(k, "a1 a2", k.poll(s, 0))
			})
		})
	}
}

func TestAStreamContinuesWhereAPollEnded(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 3)
		require.Equal(k, "a1 a2 a3", k.poll(s, 0))
		p, err := s.Poll(1, true, time.Now())
		require.NoError(k, err)
		require.EqualValues(k, 1, p.Hello()[0].Offset, "hello says what is acked: the rest comes again")
		frames, err := p.Take(context.Background(), frame.Limit{Frames: 1, Bytes: 1 << 20}, patience)
		require.NoError(k, err)
		require.Equal(k, "a2", said(frames))
		k.consistent(s)
		frames, err = p.Take(context.Background(), everything, patience)
		require.NoError(k, err)
		require.Equal(k, "a3", said(frames))
		p.Done(time.Now())
		_, err = k.tryPoll(s, 2, everything)
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeStaleAck}, "what a stream wrote counts as acked")
		k.publishN("a", 1)
		require.Equal(k, "a4", k.poll(s, 3))
	})
}

// Polls replace each other while messages arrive. If a client acks the frames of the
// answers that it received, it gets every message once and in order.
func TestPollsThatReplaceEachOtherLoseNothing(t *testing.T) {
	for _, cfg := range []Config{{Queue: 4}, {Queue: 2, Unacked: 3}} {
		t.Run(fmt.Sprintf("unacked %d", cfg.Unacked), func(t *testing.T) { replaceEachOther(t, cfg) })
	}
}

func replaceEachOther(t *testing.T, cfg Config) {
	story(t, broker.Config{HistoryMessages: 100_000, HistoryBytes: 1 << 30}, cfg, func(k *kit) {
		s := k.open("a")
		const messages = 3000
		var published atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for range messages {
				k.publish("a")
				time.Sleep(time.Millisecond)
			}
			published.Store(true)
		})
		rng := rand.New(rand.NewPCG(3, 4))
		var got uint64 // frames that arrived; each is message number got+1
		for done := false; !done; {
			done = published.Load() && got == messages
			// An intruder replaces the client's poll now and then, with the same ack.
			var intruder sync.WaitGroup
			if rng.IntN(3) == 0 {
				ack := got
				intruder.Go(func() {
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
					_, _ = k.tryPoll(s, ack, frame.Limit{Frames: 3, Bytes: 1 << 20})
				})
			}
			p, err := s.Poll(got, false, time.Now())
			require.NoError(k, err)
			frames, err := p.Take(context.Background(), everything, 10*time.Millisecond)
			frames = slices.Clone(frames) // Done releases them
			p.Done(time.Now())
			intruder.Wait()
			if err != nil || rng.IntN(4) == 0 {
				continue // replaced, or the answer was lost
			}
			for _, f := range frames[:rng.IntN(len(frames)+1)] { // or cut somewhere
				got++
				require.Equal(k, got, f.Position().Offset)
				require.Nil(k, f.Gap())
			}
		}
		wg.Wait()
	})
}
