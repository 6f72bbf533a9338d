package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A way is one way to be subscribed; every story that does not depend on it is told
// for each.
type way struct {
	name    string
	options []SubscribeOption
}

func ways() []way {
	var all []way
	for _, mode := range []Mode{Batch, Single, Multiple, Stream} {
		all = append(all,
			way{"session " + string(mode), []SubscribeOption{WithMode(mode)}},
			way{"stateless " + string(mode), []SubscribeOption{WithMode(mode), Stateless()}})
	}
	for _, t := range []Transport{SSE, WebSocket, TCP} {
		all = append(all, way{string(t), []SubscribeOption{WithTransport(t)}})
	}
	for _, t := range []Transport{LongPoll, HTTPStream, WebSocket} {
		all = append(all, way{string(t) + " cbor", []SubscribeOption{WithTransport(t), WithFormat(CBOR)}})
	}
	return all
}

func (w way) isStateless() bool {
	var o subscribeOptions
	for _, option := range w.options {
		option(&o)
	}
	return o.stateless || o.transport == SSE
}

// inEveryWay tells a story in a bubble of its own for every way.
func inEveryWay(t *testing.T, story func(t *testing.T, w way)) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { story(t, w) })
		})
	}
}

func subscribe(t *testing.T, c *Client, starts []wire.Start, opts ...SubscribeOption) *Subscription {
	s, err := c.Subscribe(t.Context(), starts, opts...)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// text writes an item shortly: a position, or "reason after-position".
func text(item Item) string {
	if g := item.Gap; g != nil {
		return fmt.Sprintf("%s %s-%s", g.Reason, g.After, g.Position)
	}
	return item.Message.Position.String()
}

// wantNext requires the next items to be these, in order.
func wantNext(t *testing.T, s *Subscription, want ...string) {
	t.Helper()
	for _, w := range want {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		item, err := s.Next(ctx)
		cancel()
		require.NoError(t, err, "waiting for %s", w)
		require.Equal(t, w, text(item))
	}
}

// wantQuiet requires that nothing comes for a while.
func wantQuiet(t *testing.T, s *Subscription) {
	t.Helper()
	wantQuietFor(t, s, 5*time.Minute)
}

func wantQuietFor(t *testing.T, s *Subscription, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	item, err := s.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "got %+v", item)
}

func wantPositions(t *testing.T, s *Subscription, want ...string) {
	t.Helper()
	got := []string{}
	for _, p := range s.Positions() {
		got = append(got, p.String())
	}
	require.Equal(t, want, got)
}

func wantEnd(t *testing.T, s *Subscription, target error) {
	t.Helper()
	for range 2 {
		_, err := s.Next(t.Context())
		require.ErrorIs(t, err, target)
	}
}

func position(t *testing.T, s string) wire.Position {
	p, err := wire.ParsePosition(s)
	require.NoError(t, err)
	return p
}

func TestWhatIsPublishedAfterSubscribeArrives(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 2)
		f.publish("b", 3)
		f.publish("c", 2)
		s := subscribe(t, c, []wire.Start{FromNow("a"), FromOldest("b"), FromPosition(position(t, "c@k3:1"))}, w.options...)
		wantPositions(t, s, "a@k3:2", "b@k3:0", "c@k3:1")
		wantNext(t, s, "b@k3:1", "b@k3:2", "b@k3:3", "c@k3:2")
		f.publish("a", 2)
		wantNext(t, s, "a@k3:3", "a@k3:4")
		wantQuiet(t, s)
		wantPositions(t, s, "a@k3:4", "b@k3:3", "c@k3:2")
	})
}

// The name of a presence topic may be longer than that of another topic.
func TestThePresenceOfTheLongestTopicArrives(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		topic := wire.PresenceTopic(strings.Repeat("x", wire.MaxTopicBytes))
		f.publish(topic, 1)
		s := subscribe(t, c, []wire.Start{FromOldest(topic)}, w.options...)
		wantNext(t, s, topic+"@k3:1")
		f.publish(topic, 1)
		wantNext(t, s, topic+"@k3:2")
	})
}

// An answer may break after any byte. Whatever came whole is used, the rest comes
// again, and nothing comes twice.
func TestResumeAfterACutAtEveryByte(t *testing.T) {
	step := exhaustive.Step(29)
	for i, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for at := i % step; ; at += step {
				ended := false
				synctest.Test(t, func(t *testing.T) { ended = cutAt(t, w, at) })
				if ended {
					require.Greater(t, at, 50, "the cuts went through an answer")
					return
				}
			}
		})
	}
}

// cutAt breaks the first two polls after so many bytes, and reports whether nothing
// was left to break.
func cutAt(t *testing.T, w way, at int) (whole bool) {
	f := newFake()
	c := serveFake(t, f)
	f.publish("a", 3)
	f.evict("a", 1)
	f.cut = func(poll int) int {
		if poll < 2 {
			return at
		}
		return -1
	}
	retries := 0
	notify := WithRetryNotify(func(error, time.Duration) { retries++ })
	s := subscribe(t, c, []wire.Start{FromPosition(position(t, "a@k3:0"))}, append(w.options, notify)...)
	wantNext(t, s, "evicted a@k3:0-a@k3:1", "a@k3:2", "a@k3:3")
	f.publish("a", 1)
	wantNext(t, s, "a@k3:4")
	wantQuietFor(t, s, time.Minute) // more than a wait and a poll, and no more: there are many cuts
	wantPositions(t, s, "a@k3:4")
	f.set(func() {
		require.LessOrEqual(t, len(f.sessions), 1, "a session given up is ended")
		require.Zero(t, f.stale, "no ack is too low")
	})
	s.Close()
	return retries == 0 || at > 2000
}

// The answer is lost as a whole: the daemon wrote it, the client saw none of it.
func TestALostAnswerIsAskedForAgainWithTheSameAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 2)
		f.cut = func(poll int) int {
			if poll == 1 {
				return 0
			}
			return -1
		}
		s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithMode(Batch))
		wantNext(t, s, "a@k3:1", "a@k3:2")
		f.publish("a", 3)
		wantNext(t, s, "a@k3:3", "a@k3:4", "a@k3:5")
		synctest.Wait()

		var acks []string
		for _, p := range f.seen() {
			acks = append(acks, p.ack)
		}
		require.Equal(t, []string{"0", "2", "2", "5"}, acks)
		require.Equal(t, 1, f.opened, "the session was kept")
	})
}

func TestAnEndedSessionIsReopenedFromThePositions(t *testing.T) {
	for _, mode := range []Mode{Batch, Single, Multiple, Stream} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				f.publish("a", 2)
				s := subscribe(t, c, []wire.Start{FromOldest("a"), FromNow("b")}, WithMode(mode))
				wantNext(t, s, "a@k3:1", "a@k3:2")
				f.endSessions()
				f.publish("a", 1)
				f.publish("b", 1)
				wantNext(t, s, "a@k3:3", "b@k3:1")
				require.Equal(t, 2, f.opened)
				wantQuiet(t, s)
			})
		})
	}
}

// Every problem that says that the session is of no use leads to a new one.
func TestASessionThatIsLostIsReopened(t *testing.T) {
	for _, code := range []wire.Code{
		wire.CodeStaleAck, wire.CodeAckBeyondSent, wire.CodeSessionEnded, wire.CodeSessionUnknown, wire.CodePollReplaced, wire.CodeDraining,
	} {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				refused := false
				f.script = func(w http.ResponseWriter, r *http.Request) bool {
					if refused || r.Method != http.MethodGet {
						return false
					}
					refused = true
					refuse(w, problem.New(code, "", "as told"))
					return true
				}
				began := time.Now()
				s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
				f.publish("a", 1)
				wantNext(t, s, "a@k3:1")
				require.True(t, refused)
				require.Equal(t, code == wire.CodeDraining, time.Since(began) > 0, "only who goes away is given time")
				require.Equal(t, 2, f.opened)
				wantQuiet(t, s)
			})
		})
	}
}

func TestARestartMovesThePositionToTheNewEpoch(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
		f.publish("a", 7)
		wantNext(t, s, "a@k3:1", "a@k3:2", "a@k3:3", "a@k3:4", "a@k3:5", "a@k3:6", "a@k3:7")
		f.restart("k4")
		f.publish("a", 2)
		// The daemon's death cuts the poll too; ours goes on to a gap when it comes back.
		wantNext(t, s, "restarted a@k3:7-a@k4:0", "a@k4:1", "a@k4:2")
		wantPositions(t, s, "a@k4:2")
		wantQuiet(t, s)
	})
}

// A position ahead of the topic, in the same epoch: the gap leads back, and what
// follows has numbers that the client has passed.
func TestARestartedGapMayLeadBack(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 3)
		f.evict("a", 1)
		s := subscribe(t, c, []wire.Start{FromPosition(position(t, "a@k3:50"))}, w.options...)
		wantNext(t, s, "restarted a@k3:50-a@k3:1", "a@k3:2", "a@k3:3")
		wantPositions(t, s, "a@k3:3")
		wantQuiet(t, s)
	})
}

// The answer to a poll is lost, and a cache answers with the one before. Whoever counted its frames
// would acknowledge those that were lost.
func TestARepeatedAnswerLosesNothing(t *testing.T) {
	for _, mode := range []Mode{Batch, Single, Multiple} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			var cached []byte
			polls := 0
			f.script = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet {
					return false
				}
				if polls++; polls > 2 {
					return false
				}
				answer := httptest.NewRecorder()
				f.route(answer, r)
				if polls == 1 {
					cached = answer.Body.Bytes()
				}
				w.Header().Set("Content-Type", r.Header.Get("Accept"))
				_, _ = w.Write(cached)
				return true
			}
			s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, WithMode(mode))
			for _, want := range []string{"a@k3:1", "a@k3:2", "a@k3:3"} {
				f.publish("a", 1)
				wantNext(t, s, want)
			}
			require.Equal(t, 2, f.opened, "the session can be trusted no longer")
		})
	}
}

// A daemon that repeats itself within an answer, and sends what nobody asked for.
func TestRepeatedAndForeignFramesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		const body = `{"position":"a@k3:1","time":1,"data":1}
{"gap":{"topic":"a","reason":"slow","after":"a@k3:1","position":"a@k3:4"}}
{"position":"a@k3:1","time":1,"data":1}
{"gap":{"topic":"a","reason":"slow","after":"a@k3:1","position":"a@k3:4"}}
{"position":"z@k3:1","time":1,"data":1}
{"position":"a@k3:5","time":1,"data":5}
`
		acks := []string{}
		f.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			if acks = append(acks, r.FormValue("ack")); len(acks) > 1 {
				return false
			}
			w.Header().Set("Content-Type", "application/x-ndjson")
			_, _ = w.Write([]byte(body))
			return true
		}
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		wantNext(t, s, "a@k3:1", "slow a@k3:1-a@k3:4", "a@k3:5")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"0", "0"}, acks[:2], "a session sends nothing twice: it is another one")
	})
}

// Another poll has the session: it is never polled again, and not ended. The subscription goes on
// in a new one.
func TestAReplacedPollLosesTheSession(t *testing.T) {
	for _, mode := range []Mode{Batch, Multiple, Stream} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := serveFake(t, f)
				f.publish("a", 1)
				s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithMode(mode))
				wantNext(t, s, "a@k3:1")
				time.Sleep(time.Second) // the second poll is parked
				f.set(func() { close(f.sessions["session-1"].parked); f.sessions["session-1"].parked = nil })
				f.publish("a", 1)
				wantNext(t, s, "a@k3:2")
				wantQuiet(t, s)
				f.set(func() {
					require.Equal(t, 2, f.opened)
					require.Contains(t, f.sessions, "session-1", "it is left to who has it now")
					require.Nil(t, f.sessions["session-1"].parked)
				})
			})
		})
	}
}

// What Positions says before an item is returned must not include it: a program
// that dies there has not seen it.
func TestPositionsAreOfWhatNextHasReturned(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 3)
		s := subscribe(t, c, []wire.Start{FromOldest("a"), FromNow("b")}, w.options...)
		synctest.Wait()
		wantPositions(t, s, "a@k3:0", "b@k3:0")
		wantNext(t, s, "a@k3:1")
		synctest.Wait()
		wantPositions(t, s, "a@k3:1", "b@k3:0")
		kept := s.Positions()
		s.Close()
		require.Equal(t, kept, s.Positions(), "they outlive the subscription")

		var starts []wire.Start
		for _, p := range kept {
			starts = append(starts, FromPosition(p))
		}
		f.publish("b", 1)
		again := subscribe(t, c, starts, w.options...)
		wantNext(t, again, "a@k3:2", "a@k3:3", "b@k3:1")
	})
}

// A caller that takes nothing stops the asking; once it takes again it has all.
func TestASlowCallerHoldsThePollsUpAndLosesNothing(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 5*itemBuffer)
		s := subscribe(t, c, []wire.Start{FromOldest("a")}, w.options...)
		time.Sleep(10 * time.Minute)
		require.LessOrEqual(t, len(f.seen()), itemBuffer+2, "it polls no further than the buffer reaches")
		require.LessOrEqual(t, len(s.items), itemBuffer)
		for i := range 5 * itemBuffer {
			wantNext(t, s, fmt.Sprintf("a@k3:%d", i+1))
		}
		wantQuiet(t, s)
	})
}

func TestCloseTellsTheDaemonAndEndsNext(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
		waiting := make(chan error, 1)
		go func() {
			_, err := s.Next(context.Background())
			waiting <- err
		}()
		synctest.Wait()
		s.Close()
		s.Close()
		require.ErrorIs(t, <-waiting, ErrClosed)
		require.Empty(t, f.sessions)
		for item, err := range s.All(t.Context()) {
			require.Fail(t, "All ends quietly", "%v %v", item, err)
		}
		_, err := s.Change(t.Context(), []wire.Start{FromNow("b")}, nil)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// The daemon is gone and does not answer: Close must not wait for it.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		s := subscribe(t, c, []wire.Start{FromNow("a")}, WithMode(Batch))
		f.set(func() {
			f.script = hang
		})
		began := time.Now()
		s.Close()
		require.LessOrEqual(t, time.Since(began), closeTimeout)
	})
}

// A test's FailNow in a callback ends the loop's goroutine, and so the subscription. Next says so.
func TestACallbackThatEndsItsGoroutineEndsTheSubscription(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		exit := WithRetryNotify(func(error, time.Duration) { runtime.Goexit() })
		s := subscribe(t, serveFake(t, f), []wire.Start{FromNow("a")}, append(w.options, exit)...)
		f.goDown()
		wantEnd(t, s, errGoexit)
		s.Close()
	})
}

func TestTheContextOfSubscribeIsTheLifeOfTheSubscription(t *testing.T) {
	inEveryWay(t, func(t *testing.T, w way) {
		f := newFake()
		c := serveFake(t, f)
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		s, err := c.Subscribe(ctx, []wire.Start{FromNow("a")}, w.options...)
		require.NoError(t, err)
		cancel(why)
		wantEnd(t, s, why)
		s.Close()
		wantEnd(t, s, why)
		require.Empty(t, f.sessions)
	})
}

func TestAllRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		f.publish("a", 3)
		s := subscribe(t, c, []wire.Start{FromOldest("a")}, WithMode(Batch))
		var got []string
		for item, err := range s.All(t.Context()) {
			require.NoError(t, err)
			if got = append(got, text(item)); len(got) == 2 {
				break
			}
		}
		require.Equal(t, []string{"a@k3:1", "a@k3:2"}, got)
		wantNext(t, s, "a@k3:3")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var errs []error
		for _, err := range s.All(ctx) {
			errs = append(errs, err)
		}
		require.Equal(t, []error{context.Canceled}, errs)
	})
}

func TestSubscribeRefusesWhatCannotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		for _, starts := range [][]wire.Start{{FromNow("")}, {FromNow("a..b")}, {FromNow("a"), FromOldest("a")}, {FromNewest("a", 0)}, {FromNewest("a", 1001)}, {FromNewest("a", -1)}, {FromNewest("a", math.MaxInt)}} {
			_, err := c.Subscribe(t.Context(), starts)
			require.ErrorContains(t, err, "subscribe: ")
		}
		_, err := c.Subscribe(t.Context(), []wire.Start{FromNow("a")}, WithMode("morse"))
		require.ErrorContains(t, err, "morse")
		_, err = c.Subscribe(t.Context(), nil, Stateless())
		require.ErrorContains(t, err, "needs a topic")
		require.Zero(t, f.opened)
	})
}

func manyStarts(n int) (starts []wire.Start) {
	for i := range n {
		starts = append(starts, FromNow(fmt.Sprintf("topic.number-%d", i)))
	}
	return starts
}

// Many topics do not fit a request line.
func TestAStatelessPollOfManyTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := serveFake(t, f)
		starts := manyStarts(500)
		s := subscribe(t, c, starts, Stateless())
		f.publish("topic.number-499", 1)
		wantNext(t, s, "topic.number-499@k3:1")
		require.Len(t, s.Positions(), 500)
		require.Equal(t, http.MethodPost, f.seen()[1].method)
	})
}
