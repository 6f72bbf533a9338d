package session

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
)

func TestASubscriberThatFellBehindReadsTheRestFromHistory(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 10)
		require.True(k, subscriptionsOf(s)[0].Behind)
		require.Equal(k, span("a", 1, 10), k.poll(s, 0))
		require.False(k, subscriptionsOf(s)[0].Behind)
		p := k.park(s, 10)
		k.publish("a")
		p.wantFrames("a11")
	})
}

func TestASlowSubscriberGetsOneGapForEvictedMessages(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 5}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 20)
		require.Equal(k, span("a", 1, 4)+" gap(slow a4-15) "+span("a", 16, 20), k.poll(s, 0))
		k.publishN("a", 1)
		require.Equal(k, "a21", k.poll(s, 10))
	})
}

// A busy topic must not starve other topics of the same answer.
func TestTopicsThatAreBehindTakeTurns(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 1}, func(k *kit) {
		k.publishN("flood", 500)
		k.publishN("quiet", 2)
		s := k.open("flood@oldest", "quiet@oldest")
		got, err := k.tryPoll(s, 0, frame.Limit{Frames: 100, Bytes: 1 << 20})
		require.NoError(k, err)
		require.Equal(k, span("flood", 1, 64)+" quiet1 quiet2 "+span("flood", 65, 98), got)
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

// A subscription switches between live offers and the history without a loss or a
// duplicate, wherever the switch happens.
func TestFallingBehindAndCatchingUpLosesAndRepeatsNothing(t *testing.T) {
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
					frames, err := p.Take(k.Context(), frame.Limit{Frames: 50, Bytes: 1 << 20}, time.Second)
					frames = slices.Clone(frames) // Done releases them
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
