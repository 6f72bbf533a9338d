package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestASubscriberThatFellBehindReadsTheRestFromHistory(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 10)
		require.True(k, s.State(time.Now()).Subscriptions[0].Behind)
		require.Equal(k, span("a", 1, 10), k.poll(s, 0))
		require.False(k, s.State(time.Now()).Subscriptions[0].Behind)
		p := k.park(s, 10)
		k.publish("a")
		p.wantFrames("a11")
	})
}

func TestASlowSubscriberGetsOneGapForWhatHistoryLost(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 5}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 20)
		require.Equal(k, span("a", 1, 4)+" gap(slow a4-15) "+span("a", 16, 20), k.poll(s, 0))
		k.publishN("a", 1)
		require.Equal(k, "a21", k.poll(s, 10))
	})
}

// One topic that floods must not starve the others of a bounded answer.
func TestTopicsThatAreBehindTakeTurns(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 1}, func(k *kit) {
		k.publishN("flood", 500)
		k.publishN("quiet", 2)
		s := k.open("flood@oldest", "quiet@oldest")
		got, err := k.tryPoll(s, 0, broker.Limit{Frames: 100, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, span("flood", 1, 64)+" quiet1 quiet2 "+span("flood", 65, 98), got)
	})
}

func TestSubscriptionsChangeWhileAPollIsParked(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("b", 2)
		s := k.open("a")
		p := k.park(s, 0)
		positions, err := s.Change(k.starts("b@oldest"), nil)
		require.NoError(k, err)
		require.Zero(k, positions[0].Offset)
		p.wantFrames("b1 b2")

		p = k.park(s, 2)
		_, err = s.Change(k.starts("c"), []string{"a"})
		require.NoError(k, err)
		k.publishN("a", 1)
		k.publishN("c", 1)
		p.wantFrames("c1")
	})
}

func TestDroppingATopicRemovesWhatWasNotSent(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 2}, func(k *kit) {
		s := k.open("a", "b")
		k.publishN("a", 5)
		k.publishN("b", 5)
		_, err := s.Change(nil, []string{"a", "never-had"})
		require.NoError(k, err)
		require.Equal(k, span("b", 1, 5), k.poll(s, 0))
	})
}

func TestAddingAPresentTopicChangesNothing(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		k.poll(s, 0)
		k.publishN("a", 1)
		positions, err := s.Change(k.starts("a@oldest"), nil)
		require.NoError(k, err)
		require.Zero(k, positions[0].Offset, "what is acked: the rest may not have arrived")
		require.Equal(k, "a3", k.poll(s, 2))
		positions, err = s.Change(k.starts("a@oldest"), []string{"a"})
		require.NoError(k, err)
		require.Zero(k, positions[0].Offset, "named in both, it moves")
		require.Equal(k, "a1 a2 a3", k.poll(s, 3))
	})
}

func TestAChangeIsDoneWholeOrNotAtAll(t *testing.T) {
	story(t, broker.Config{MaxTopics: 4}, Config{Subscriptions: 3}, func(k *kit) {
		s := k.open("a", "b")
		for _, c := range []struct {
			code wire.Code
			add  []string
		}{
			{wire.CodeTooManySubscriptions, []string{"c", "d"}},
			{wire.CodeInvalidRequest, []string{"c", "c"}},
		} {
			_, err := s.Change(k.starts(c.add...), nil)
			require.ErrorIs(k, err, &wire.Problem{Code: c.code})
			require.Len(k, s.State(time.Now()).Subscriptions, 2)
		}
		_, err := s.Change(k.starts("c", "d"), []string{"a"}) // _epoch, a, b, c: no room for d
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		require.Len(k, s.State(time.Now()).Subscriptions, 2)
		k.publishN("a", 1)
		require.Equal(k, "a1", k.poll(s, 0), "a was not dropped")
		state, _ := k.broker.Topic("c")
		require.Zero(k, state.Subscriptions, "c was left again")
	})
}

// A change that fails half-way leaves nothing behind: neither deliveries of topics
// that the session does not have, nor anything that grows.
func TestAFailedChangeDeliversNothing(t *testing.T) {
	story(t, broker.Config{MaxTopics: 2}, Config{}, func(k *kit) {
		k.publishN("a", 3)
		s := k.open()
		for range 3 {
			_, err := s.Change(k.starts("a@oldest", "one-too-many"), nil)
			require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		}
		require.Empty(k, s.behind)
		_, err := s.Change(k.starts("a@oldest"), nil)
		require.NoError(k, err)
		require.Equal(k, "a1 a2 a3", k.poll(s, 0))
	})
}

func TestAQueueIsBoundedInBytes(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		big := make([]byte, queueBytes/2)
		for range 5 {
			_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: big}, 0, time.Now())
			require.NoError(k, err)
			synctest.Wait()
		}
		require.Len(k, s.queue, 1, "two would exceed the bound")
		require.Equal(k, span("a", 1, 5), k.poll(s, 0), "the rest came from history")
		require.Zero(k, s.pinned)
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: make([]byte, 2*queueBytes)}, 0, time.Now())
		require.NoError(k, err)
		synctest.Wait()
		require.Len(k, s.queue, 1, "one frame always fits")
		require.Equal(k, "a6", k.poll(s, 5))
	})
}

func TestAPositionIsResumedExactly(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 4}, Config{}, func(k *kit) {
		k.publishN("a", 6)
		for start, want := range map[string]string{
			"a@EPOCH:6": "",
			"a@EPOCH:4": "a5 a6",
			"a@EPOCH:1": "gap(evicted a1-2) a3 a4 a5 a6",
			"a@oldest":  "a3 a4 a5 a6",
			"a@old:3":   "gap(restarted a3-2) a3 a4 a5 a6",
			"a@EPOCH:9": "gap(restarted a9-2) a3 a4 a5 a6",
			"a":         "",
		} {
			got, err := k.tryPoll(k.open(start), 0, everything)
			require.NoError(k, err)
			require.Equal(k, want, got, start)
		}
		fresh := k.open("fresh@old:3")
		require.Equal(k, "gap(restarted fresh3-0)", k.poll(fresh, 0), "announced even where nothing is held")
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

// Live offers and reading from history hand over to each other without losing or
// doubling a message, wherever the switch happens.
func TestFallingBehindAndCatchingUpNeverDoublesOrLoses(t *testing.T) {
	for _, queue := range []int{1, 2, 7} {
		t.Run(fmt.Sprint("queue ", queue), func(t *testing.T) {
			story(t, broker.Config{HistoryMessages: 1 << 20, HistoryBytes: 1 << 30}, Config{Queue: queue}, func(k *kit) {
				s := k.open("a", "b")
				const messages = 2000
				for _, topic := range []string{"a", "b"} {
					go func() {
						for i := range messages {
							k.publish(topic)
							if i%97 == 0 {
								time.Sleep(time.Millisecond)
							}
						}
					}()
				}
				want := map[string]uint64{}
				var got uint64
				for got < 2*messages {
					p, err := s.Poll(got, false, time.Now())
					require.NoError(k, err)
					frames, err := p.Take(k.Context(), broker.Limit{Frames: 50, Bytes: 1 << 20}, time.Second)
					p.Done(time.Now())
					require.NoError(k, err)
					for _, f := range frames {
						at := f.Position()
						want[at.Topic]++
						require.Nil(k, f.Gap())
						require.Equal(k, want[at.Topic], at.Offset)
					}
					got += uint64(len(frames))
				}
				synctest.Wait()
			})
		})
	}
}

// A queue that has room again must not take newer messages of a topic that is
// behind: they would overtake those in history.
func TestABehindTopicIsNotOfferedUntilItCaughtUp(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 6)
		got, err := k.tryPoll(s, 0, broker.Limit{Frames: 2, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, "a1 a2", got)
		k.publishN("a", 1)
		require.Equal(k, span("a", 3, 7), k.poll(s, 2))
	})
}

// The fan-out may lag behind a session that read the same messages from history,
// or that joined after them: such offers are dropped.
func TestWhatWasReadFromHistoryIsNotQueuedAgain(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a", 3)
		s := k.open("a@oldest")
		late, ok := k.broker.ReadTopic(k.starts("a@oldest")[0], everything, time.Now())
		require.True(k, ok)
		require.Equal(k, span("a", 1, 3), k.poll(s, 0))
		s.subs["a"].Offer(late)
		k.publishN("a", 1)
		require.Equal(k, "a4", k.poll(s, 3))
	})
}
