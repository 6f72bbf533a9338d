package session

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAQueueIsBoundedInBytes(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		big := make([]byte, queueBytes/2)
		for range 5 {
			_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: big}, 0, time.Now())
			require.NoError(k, err)
			synctest.Wait()
		}
		require.Len(k, s.queue.frames, 1, "two would exceed the bound")
		require.Equal(k, span("a", 1, 5), k.poll(s, 0), "the rest came from history")
		require.Zero(k, s.queue.pinned)
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: make([]byte, 2*queueBytes)}, 0, time.Now())
		require.NoError(k, err)
		synctest.Wait()
		require.Len(k, s.queue.frames, 1, "one frame always fits")
		require.Equal(k, "a6", k.poll(s, 5))
	})
}

func TestAMessageThatExpiresInTheQueueIsAGap(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 1)
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, time.Second, time.Now())
		require.NoError(k, err)
		k.publishN("a", 1)
		time.Sleep(time.Second)
		require.Equal(k, "a1 gap(expired a1-2) a3", k.poll(s, 0))
		require.Equal(k, "gap(expired a1-2) a3", k.poll(s, 1), "the gap never changes")
	})
}

// A queue with free slots must not take newer messages of a topic that is behind: they
// would overtake those in the history.
func TestATopicThatIsBehindIsNotQueued(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 6)
		got, err := k.tryPoll(s, 0, frame.Limit{Frames: 2, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1 a2", got)
		k.publishN("a", 1)
		require.Equal(k, span("a", 3, 7), k.poll(s, 2))
	})
}

// A fan-out can offer messages that the session has read from the history or that are
// older than its subscription. They are dropped.
func TestMessagesReadFromHistoryAreNotQueuedAgain(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a", 3)
		s := k.open("a@oldest")
		late, from := k.broker.ReadTopic(k.starts("a@oldest")[0], everything, time.Now())
		require.NotZero(k, from)
		require.Equal(k, span("a", 1, 3), k.poll(s, 0))
		s.subs.get("a").Offer(late, time.Now())
		k.publishN("a", 1)
		require.Equal(k, "a4", k.poll(s, 3))
	})
}

func TestAMessageThatOnlyAQueueHoldsIsCounted(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 1}, Config{Queue: 4}, func(k *kit) {
		memory := func() int64 {
			var g metrics.Gauges
			k.broker.Gauges(&g)
			return g.Memory["queues"]
		}
		s, gone, idle := k.open("a"), k.open("a"), k.open("b")
		k.publishN("a", 4)
		one := (&wire.Message{Data: []byte("1")}).Size()
		places := int64(2 * 4 * unsafe.Sizeof(queued{}))
		require.EqualValues(k, 3*sessionBytes+places+int64(3*one), memory(), "three that two queues share; the history has the fourth")
		require.Equal(k, span("a", 1, 4), k.poll(s, 0))
		require.GreaterOrEqual(k, memory(), places+int64(3*one), "the other queue has them still")
		k.registry.End(gone)
		k.registry.End(s)
		require.EqualValues(k, sessionBytes, memory())
		waiting := k.park(idle, 0)
		k.registry.End(idle)
		waiting.wantProblem(wire.CodeSessionEnded)
		require.Zero(k, memory())
	})
}

// A frame that does not fit into an answer is left for the next. The session may end first.
func TestALeftoverFrameIsCountedUntilTheEnd(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 1}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 4)
		got, err := k.tryPoll(s, 0, frame.Limit{Frames: 1, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1", got)
		require.NotNil(k, s.queue.leftover.frame)
		k.registry.End(s)
		var g metrics.Gauges
		k.broker.Gauges(&g)
		require.Zero(k, g.Memory["queues"])
	})
}

func never() bool { return false }

// trimAll waits for stallAfter and trims the stalled sessions.
func (k *kit) trimAll() int {
	k.Helper()
	time.Sleep(stallAfter)
	return k.registry.Trim(time.Now(), never)
}

// queueBytes returns the memory of queues and of messages that only they hold.
func (k *kit) queueBytes() int64 {
	var g metrics.Gauges
	k.broker.Gauges(&g)
	return g.Memory["queues"]
}

func TestATrimmedSessionContinuesFromHistory(t *testing.T) {
	story(t, broker.Config{Rules: []broker.Rule{{Pattern: "short", HistoryMessages: 1}}}, Config{}, func(k *kit) {
		s := k.open("a", "short")
		k.publishN("a", 2)
		require.Equal(k, "a1 a2", k.poll(s, 0))
		k.publishN("short", 3)
		k.publishN("a", 2)
		require.Equal(k, 1, k.trimAll())
		require.Zero(k, s.queue.pinned)
		k.publishN("a", 1)
		require.Zero(k, s.queue.pinned, "it comes after what is to be read")
		const rest = "gap(slow short0-2) short3 a3 a4 a5"
		require.Equal(k, "a1 a2 "+rest, k.poll(s, 0), "what was sent comes again as it was, and a gap only where the history has passed")
		require.Equal(k, rest, k.poll(s, 2), "which never changes")
		k.publishN("short", 1)
		require.Equal(k, "short4", k.poll(s, 7), "it is live again")
		require.Zero(k, k.trimAll())
	})
}

func TestATrimFollowsTheTopicsPolicy(t *testing.T) {
	for policy, want := range map[broker.Slow]string{
		broker.Resume:     "a1 a2 a3 a4",
		broker.DropOldest: "gap(slow a0-3) a4",
		broker.Conflate:   "gap(conflated a0-2) a3 a4",
	} {
		story(t, slow(policy, 1), Config{}, func(k *kit) {
			s := k.open("a")
			k.publishKeys("x", "y", "x", "y")
			require.Equal(k, 1, k.trimAll())
			require.Equal(k, want, k.poll(s, 0), policy)
			k.publishKeys("x")
			require.Equal(k, "a5", k.poll(s, k.sent(s)), "the policy was for once")
		})
	}
}

func TestATrimEndsASessionUnderThePolicyDisconnect(t *testing.T) {
	story(t, slow(broker.Disconnect, 0), Config{}, func(k *kit) {
		s, other := k.open("b", "a"), k.open("b")
		k.publishN("b", 1)
		k.publishN("a", 2)
		k.publishN("b", 1)
		require.Equal(k, 2, k.trimAll())
		_, err := k.tryPoll(s, 0, everything)
		require.ErrorIs(k, err, tooSlow("a"))
		require.Equal(k, "b1 b2", k.poll(other, 0))
	})
}

// A healthy session has an empty queue or takes from it.
func TestATrimDoesNotTouchHealthySessions(t *testing.T) {
	story(t, slow(broker.DropOldest, 1), Config{Queue: 4, Unacked: 4}, func(k *kit) {
		idle, waits, reads, away := k.open("b"), k.open("a"), k.open("a"), k.open("a")
		parked := k.park(waits, 0)
		one := frame.Limit{Frames: 1, Bytes: 1 << 20}
		k.publishN("a", 4)
		parked.wantFrames("a1")
		require.Equal(k, "a2 a3 a4", k.poll(waits, 1))
		time.Sleep(stallAfter - 1)
		require.Zero(k, k.registry.Trim(time.Now(), never), "it may be between two polls")
		got, err := k.tryPoll(reads, 0, one)
		require.NoError(k, err)
		require.Equal(k, "a1", got)
		time.Sleep(time.Nanosecond)
		require.Equal(k, 1, k.registry.Trim(time.Now(), never), "one is away")
		require.Equal(k, "a2 a3 a4", k.poll(reads, 1))
		require.Equal(k, "gap(slow a0-3) a4", k.poll(away, 0))
		k.publishN("b", 1)
		require.Equal(k, "b1", k.poll(idle, 0))
	})
}

// Polls without a new ack take nothing from the queue, however often they come.
func TestASessionThatOnlyRepeatsItsPollIsStalled(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 1}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 3)
		require.Equal(k, "a1", k.poll(s, 0))
		for range 4 {
			time.Sleep(stallAfter / 2)
			require.Equal(k, "a1", k.poll(s, 0))
		}
		require.Equal(k, 1, k.registry.Trim(time.Now(), never))
		require.Equal(k, "a2", k.poll(s, 1))
	})
}

func TestATrimBeginsWithSlowSessionsAndStopsWhenItIsEnough(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 2}, func(k *kit) {
		var quiet []*Session
		for range 20 {
			quiet = append(quiet, k.open("a"))
		}
		behind := k.open("b")
		k.publishN("a", 1)
		k.publishN("b", 3)
		time.Sleep(stallAfter)
		asked := 0
		require.Equal(k, 1, k.registry.Trim(time.Now(), func() bool { asked++; return behind.queue.pinned == 0 }))
		require.Positive(k, asked)
		for _, s := range quiet {
			require.Positive(k, s.queue.pinned)
		}
		require.Equal(k, span("b", 1, 3), k.poll(behind, 0))
	})
}

func TestALeftoverFrameIsTrimmedToo(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 1}, Config{}, func(k *kit) {
		s := k.open("a", "b")
		k.publishN("a", 2)
		k.publishN("b", 1)
		k.publishN("a", 1)
		got, err := k.tryPoll(s, 0, frame.Limit{Frames: 1, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1", got)
		require.NotNil(k, s.queue.leftover.frame)
		before := k.queueBytes()
		require.Equal(k, 1, k.trimAll())
		require.Less(k, k.queueBytes(), before, "what only the queue held is gone")
		require.Equal(k, "gap(slow a1-2) a3 b1", k.poll(s, 1))
	})
}

func TestATrimThatEndsASessionUnpinsALeftoverFrameOnce(t *testing.T) {
	cfg := slow(broker.Disconnect, 0)
	cfg.HistoryMessages = 2
	story(t, cfg, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		got, err := k.tryPoll(s, 0, frame.Limit{Frames: 1, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1", got)
		require.NotNil(k, s.queue.leftover.frame)
		require.Equal(k, 1, k.trimAll())
		require.Zero(k, s.queue.pinned)
		k.publishN("a", 4)
		require.Zero(k, k.queueBytes(), "history has let go of it, too")
	})
}

// Polls with a full window, parked on the queue or on a connection, continue after a trim.
func TestATrimDoesNotDisturbAPollWithAFullWindow(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 2}, func(k *kit) {
		s, on := k.open("a"), k.open("a")
		p := k.hearing(s, 0)
		l := &line{k: k, then: Parked}
		direct := k.hearing(on, 0)
		_, became, err := direct.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, Parked, became)
		k.publishN("a", 4)
		l.wants("a1", "a2")
		got, _ := k.waitsFor(p)
		require.Equal(k, "a1 a2", got)
		go func() {
			time.Sleep(2 * stallAfter)
			require.Equal(k, 2, k.registry.Trim(time.Now(), never))
			synctest.Wait()
			require.NoError(k, s.Ack(2))
			require.NoError(k, on.Ack(2))
		}()
		got, waited := k.waitsFor(p)
		require.Equal(k, "a3 a4", got)
		require.Equal(k, 2*stallAfter, waited)
		synctest.Wait()
		frames, _, err := direct.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, "a3 a4", said(frames))
		p.Done(time.Now())
		direct.Done(time.Now())
	})
}

// Under pressure queues pin nothing. Polls still get every message, and no session counts
// as slow for it.
func TestUnderPressureMessagesStayInHistory(t *testing.T) {
	story(t, slow(broker.Disconnect, 0), Config{Queue: 2}, func(k *kit) {
		waits, on, away := k.open("a", "b"), k.open("a"), k.open("a")
		l := &line{k: k, then: Over}
		p := k.parkOn(l, on, false)
		k.broker.Memory().Press(memory.Critical)
		parked := k.park(waits, 0)
		k.publishN("a", 3)
		parked.wantFrames("a1")
		l.wants("a1")
		p.Done(time.Now())
		for _, s := range []*Session{waits, on, away} {
			require.Zero(k, s.queue.pinned)
		}
		require.Equal(k, "a2 a3", k.poll(waits, 1))
		require.Equal(k, "a2 a3", k.poll(on, 1))
		parked = k.park(waits, 3)
		k.publishN("b", 1)
		parked.wantFrames("b1")
		k.broker.Memory().Press(memory.Calm)
		require.Equal(k, "a1 a2 a3", k.poll(away, 0))
		k.publishN("a", 1)
		require.Positive(k, away.queue.pinned, "it is live again")
	})
}

func TestUnderPressureNoSessionIsOpenedAndOpenOnesContinue(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		for _, p := range []memory.Pressure{memory.High, memory.Critical} {
			k.broker.Memory().Press(p)
			_, _, err := k.registry.Open(k.Context(), Opening{Topics: k.starts("a"), Ack: true}, time.Now())
			require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
			poll, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
			if p == memory.Critical {
				require.ErrorContains(k, err, "short of memory")
				continue
			}
			require.NoError(k, err, "who polls without a session may have done so for long")
			k.registry.End(poll)
		}
		k.publishN("a", 1)
		require.Equal(k, "a1", k.poll(s, 0))
		_, err := s.Change(k.starts("b"), nil, nil)
		require.NoError(k, err)
		k.broker.Memory().Press(memory.Calm)
		k.open("a")
		require.EqualValues(k, 2, k.registry.open.Load())
	})
}

// pressAtRandom simulates memory pressure now and then, and trims sessions.
func (k *kit) pressAtRandom(rng *rand.Rand, done chan struct{}) {
	for {
		select {
		case <-done:
			k.broker.Memory().Press(memory.Calm)
			return
		case <-time.After(time.Duration(rng.IntN(2000)+1) * time.Microsecond):
		}
		k.broker.Memory().Press([]memory.Pressure{memory.Calm, memory.Critical}[rng.IntN(2)])
		k.registry.Trim(time.Now().Add(stallAfter), func() bool { return rng.IntN(2) == 0 })
	}
}
