package session

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// few holds three messages of each topic.
var few = broker.Config{HistoryMessages: 3}

// say publishes a message of a client to a topic, and lets the fan-out finish.
func (k *kit) say(topic, client string) {
	k.Helper()
	_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Client: client}, 0, time.Now())
	require.NoError(k, err)
	synctest.Wait()
}

// sweepFor lets time pass, as the daemon's sweeper does.
func (k *kit) sweepFor(d time.Duration) {
	const step = 250 * time.Millisecond
	for range d / step {
		time.Sleep(step)
		k.registry.Sweep(time.Now())
		synctest.Wait()
	}
}

// An answer that ends tells the positions past own messages. Nobody acks that, so each idle answer
// tells it again; an answer with frames tells only what is new.
func TestAnAnswerEndsWithMovedPositions(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a", "b")
		k.say("a", "you")
		require.Equal(k, "a1", k.poll(s, 0))
		waiting := k.park(s, 1)
		for range 5 {
			k.say("a", "me")
		}
		waiting.wantFrames("moved(a6)")
		require.Equal(k, "moved(a6)", k.poll(s, 1))
		k.say("b", "you")
		require.Equal(k, "b1 moved(a6)", k.poll(s, 1))
		k.say("b", "me")
		k.say("b", "you")
		require.Equal(k, "b3", k.poll(s, 2))
		k.say("b", "me")
		k.say("a", "you")
		require.Equal(k, "a7 moved(b4)", k.poll(s, 3))
		require.Equal(k, "moved(b4)", k.poll(s, 4))

		k.registry.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(math.MaxInt)
		p, err := s.Poll(4, false, time.Now())
		require.Nil(k, p)
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeDraining})
		require.Equal(k, []string{"a7", "b4"}, offsets(s.ended.Positions), "where another session continues")
	})
}

func offsets(positions []wire.Position) (words []string) {
	for _, p := range positions {
		words = append(words, fmt.Sprintf("%s%d", p.Topic, p.Offset))
	}
	return words
}

// Whoever knows the moved position gets no gap for own messages that were evicted.
func TestAMovedPositionResumesWithoutAGap(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		for range 6 {
			k.say("a", "me")
		}
		k.say("a", "you")
		require.Equal(k, "a7", k.poll(k.openNoEcho("me", "a@EPOCH:6"), 0))
		require.Equal(k, "gap(evicted a1-4) a7", k.poll(k.openNoEcho("me", "a@EPOCH:1"), 0))
	})
}

// What was sent and lost comes again before the position moves past it, and what waits in the queue
// or in the history comes first.
func TestAPositionMovesBehindAllFrames(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 2}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		k.publishAs("you", "you", "me")
		synctest.Wait()
		one := frame.Limit{Frames: 1, Bytes: math.MaxInt}
		said := func(ack uint64) string {
			said, err := k.tryPoll(s, ack, one)
			require.NoError(k, err)
			return said
		}
		require.Equal(k, "a1", said(0), "a2 waits in the queue")
		require.Equal(k, "a2 moved(a3)", said(1))
		k.publishAs("me", "you", "you", "you", "me")
		synctest.Wait()
		require.Equal(k, "a2", said(1), "it was lost")
		require.Equal(k, "a5", said(2), "one waits in the queue, one in the history")
		require.Equal(k, "a6", said(3))
		require.Equal(k, "a7 moved(a8)", said(4))

		lost := k.openNoEcho("me", "a@EPOCH:4")
		require.Equal(k, "a5 a6 a7 moved(a8)", k.poll(lost, 0))
		k.say("a", "me")
		back, err := k.tryPoll(lost, 0, one)
		require.NoError(k, err)
		require.Equal(k, "a5", back, "the others have to come again first")
		require.Equal(k, "moved(a9)", k.poll(lost, 3))
	})
}

// A stream gets moved positions at most once a second, only if own messages are the last.
func TestAStreamGetsMovedPositionsOnceASecond(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a", "b")
		l := &line{k: k, then: Parked}
		p := k.parkOn(l, s, true)
		k.say("a", "me")
		k.sweepFor(time.Second)
		l.wants()
		k.sweepFor(time.Second)
		l.wants("moved(a1)")
		k.sweepFor(10 * time.Second)
		l.wants()

		k.say("a", "me")
		k.say("a", "you")
		k.sweepFor(3 * time.Second)
		l.wants("a3")
		for range 40 {
			k.say("b", "me")
			k.sweepFor(250 * time.Millisecond)
		}
		require.GreaterOrEqual(k, len(l.told), 4)
		require.LessOrEqual(k, len(l.told), 10)
		k.sweepFor(3 * time.Second)
		require.Equal(k, "moved(b40)", l.told[len(l.told)-1])
		l.told = nil
		k.sweepFor(patience)
		l.wants("") // a heartbeat
		p.Unpark()
		p.Done(time.Now())
	})
}

// A stream whose goroutine waits on the queue is woken.
func TestAGoroutineOfAStreamGetsMovedPositions(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		p, err := s.Poll(0, true, time.Now())
		require.NoError(k, err)
		told := make(chan string)
		go func() {
			for {
				frames, err := p.Take(context.Background(), everything, patience)
				if err != nil {
					close(told)
					return
				}
				told <- said(frames)
			}
		}()
		began := time.Now()
		k.say("a", "me")
		go k.sweepFor(5 * time.Second)
		require.Equal(k, "moved(a1)", <-told)
		require.LessOrEqual(k, time.Since(began), 3*time.Second)
		require.Equal(k, "", <-told, "the next is a heartbeat")
		k.registry.End(s)
		<-told
		p.Done(time.Now())
	})
}

// A stream that begins tells at once what moved while nobody read.
func TestAStreamBeginsWithMovedPositions(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		k.say("a", "me")
		p, err := s.Poll(0, true, time.Now())
		require.NoError(k, err)
		require.Equal(k, []string{"a1"}, offsets(p.Hello()), "hello has it, too")
		frames, became, err := p.TakeOrPark(&line{k: k, then: Parked}, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, Over, became)
		require.Equal(k, "moved(a1)", said(frames))
		p.Done(time.Now())
	})
}

// A parked poll whose answer is handed over ends with moved positions.
func TestAParkedPollEndsWithMovedPositions(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a", "b")
		l := &line{k: k, then: Over}
		k.parkOn(l, s, false)
		k.say("a", "me")
		k.sweepFor(patience - time.Second)
		l.wants()
		k.say("b", "you")
		l.wants("b1 moved(a1)")

		p := &Reader{}
		require.NoError(k, p.Begin(s, 1, AcksNext, Arrival{}, time.Now()))
		_, became, err := p.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, Parked, became)
		k.sweepFor(patience + time.Second)
		l.wants("moved(a1)")
	})
}

// A frame has a bounded number of positions. The others come later.
func TestManyMovedPositionsComeInSeveralFrames(t *testing.T) {
	story(t, few, Config{Subscriptions: 1000}, func(k *kit) {
		var topics []string
		for i := range 2*maxMoved + 10 {
			topics = append(topics, fmt.Sprintf("t.%d", i))
		}
		s := k.openNoEcho("me", topics...)
		l := &line{k: k, then: Parked}
		p := k.parkOn(l, s, true)
		for _, topic := range topics {
			k.say(topic, "me")
		}
		k.sweepFor(10 * time.Second)
		var numbers []int
		for _, told := range l.told {
			numbers = append(numbers, strings.Count(told, "t."))
		}
		require.Equal(k, []int{maxMoved, maxMoved, 10}, numbers)
		p.Unpark()
		p.Done(time.Now())
	})
}

// A topic that is forbidden after its position has moved ends there, and not before.
func TestAForbiddenTopicEndsWhereItHasMoved(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a", "b")
		k.say("a", "me")
		k.say("b", "you")
		require.Equal(k, "b1 moved(a1)", k.poll(s, 0))
		s.mu.Lock()
		s.forbidLocked(func(name string) (string, bool) { return "", name == "a" })
		s.mu.Unlock()
		require.Equal(k, "gap(forbidden a1-1)", k.poll(s, 1))
	})
}

// A poll that was replaced tells no position: the newer poll has taken frames before it.
func TestAReplacedPollTellsNoMovedPosition(t *testing.T) {
	for _, acking := range []Acking{AcksNext, AcksDuring} {
		story(t, few, Config{}, func(k *kit) {
			s := k.openNoEcho("me", "a")
			k.say("a", "you")
			older := k.take(s, 0, acking, "a1")
			k.say("a", "you")
			k.say("a", "me")
			newer := k.take(s, 1, acking, "a2")
			require.Equal(k, "a1", said(older.WithMoved(older.Taken())))
			require.Empty(k, older.WithMoved(nil))
			older.Done(time.Now())
			require.Equal(k, "a2 moved(a3)", said(newer.WithMoved(newer.Taken())))
			newer.Done(time.Now())
		})
	}
}

// take begins a poll that takes the frames.
func (k *kit) take(s *Session, ack uint64, acking Acking, want string) *Reader {
	k.Helper()
	p := &Reader{}
	require.NoError(k, p.Begin(s, ack, acking, Arrival{}, time.Now()))
	frames, err := p.Take(context.Background(), everything, patience)
	require.NoError(k, err)
	require.Equal(k, want, said(frames))
	return p
}

// One offer has a message of another client and, after it, own ones. The answer ends with both.
func TestAnAnswerHasThePositionOfItsOffer(t *testing.T) {
	story(t, few, Config{}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		l := &line{k: k, then: Over}
		k.parkOn(l, s, false)
		var frames []*frame.Frame
		for i, client := range []string{"me", "you", "me", "me"} {
			at := wire.Position{Topic: "a", Epoch: k.epoch, Offset: uint64(i) + 1}
			frames = append(frames, frame.New(&wire.Message{Position: at, Client: client}, time.Now(), 0, nil))
		}
		s.subs.get("a").Offer(frames, time.Now())
		l.wants("a2 moved(a4)")
	})
}

// The server does not know the position of a client, which is beyond all messages. Own messages that
// move past it do not stand for the gap and the message that are not acked.
func TestAnUnknownPositionIsNotReached(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.say("a", "you")
		s := k.openNoEcho("me", "a@EPOCH:5")
		require.Equal(k, "gap(restarted a5-0) a1", k.poll(s, 0))
		for range 6 {
			k.say("a", "me")
		}
		reader := k.begin(s)
		require.Equal(k, []string{"a5"}, offsets(reader.Hello()), "from there both come again")
		reader.Done(time.Now())
		require.Equal(k, "moved(a7)", k.poll(s, 2))
	})
}
