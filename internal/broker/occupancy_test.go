package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Subscribers come, leave and come back at random, also by reloads and forgotten topics.
// What is told alternates for each topic, ends with the truth, and a topic is told as
// vacant only after the grace.
func TestOccupancyIsExact(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		now := time.Now()
		on := Config{HistoryAge: time.Millisecond, WatchedTopics: []string{"a.*"}}
		off := on
		off.WatchedTopics = []string{"b"}
		b := newBroker(on)
		const grace = 10 * time.Second
		told := map[string]bool{}
		var subs []*Subscription
		collect := func(at time.Time, grace time.Duration) {
			lost := b.Occupancies(at, grace, func(topic string, occupied bool, since time.Time) {
				require.NotEqual(t, told[topic], occupied, "%s is told twice", topic)
				require.True(t, occupied || at.Sub(since) >= grace)
				told[topic] = occupied
			})
			require.Zero(t, lost)
		}
		for range 500 {
			topic := fmt.Sprint("a.", random.IntN(5))
			switch random.IntN(8) {
			case 0, 1, 2:
				j, err := b.Join(wire.Start{Topic: topic}, nobody{}, random.IntN(2) == 0)
				require.NoError(t, err)
				subs = append(subs, j.Subscription)
			case 3, 4, 5:
				if len(subs) > 0 {
					i := random.IntN(len(subs))
					subs[i].Leave()
					subs = append(subs[:i], subs[i+1:]...)
				}
			case 6:
				b.Reload(map[bool]Config{true: on, false: off}[random.IntN(2) == 0], now)
				b.Sweep(now.Add(time.Hour))
			default:
				now = now.Add(time.Duration(random.IntN(6)) * time.Second)
				collect(now, grace)
			}
		}
		b.Reload(on, now)
		collect(now.Add(time.Hour), 0)
		for i := range 5 {
			topic, occupied := fmt.Sprint("a.", i), false
			for _, s := range subs {
				occupied = occupied || s.Topic() == topic && !s.Gone()
			}
			require.Equal(t, occupied, told[topic], topic)
		}
		require.Empty(t, b.occupancy.vacant)
		b.Close()
	}
}

// nobody is a Subscriber of topics to which nothing is published.
type nobody struct{ Subscriber }

func (nobody) Forgotten() {}

// A subscriber that is back within the grace is not told. Topics that no pattern selects
// are never told.
func TestOccupancyHasAGrace(t *testing.T) {
	b := newBroker(Config{WatchedTopics: []string{"a"}})
	join := func(topic string) *Subscription {
		j, err := b.Join(wire.Start{Topic: topic}, nobody{}, true)
		require.NoError(t, err)
		return j.Subscription
	}
	wantTold := func(after time.Duration, want ...bool) {
		t.Helper()
		var told []bool
		b.Occupancies(time.Now().Add(after), 5*time.Second, func(topic string, occupied bool, _ time.Time) {
			require.Equal(t, "a", topic)
			told = append(told, occupied)
		})
		require.Equal(t, want, told)
	}
	first := join("a")
	join("b").Leave()
	second := join("a")
	wantTold(0, true)
	first.Leave()
	second.Leave()
	wantTold(4 * time.Second)
	first = join("a")
	wantTold(time.Hour)
	first.Leave()
	wantTold(6*time.Second, false)
	join("a").Leave()
	wantTold(6*time.Second, true, false)
}

// However many topics change, the notes are bounded, and lost ones are counted.
func TestNotesOfOccupancyAreBounded(t *testing.T) {
	b := newBroker(Config{})
	now := time.Now()
	for n := range 2*maxNotes + 7 {
		b.occupancy.add(fmt.Sprint(n), n%2 == 0, now)
	}
	require.Len(t, b.occupancy.vacant, maxNotes)
	told := 0
	tell := func(string, bool, time.Time) { told++ }
	require.Equal(t, 7, b.Occupancies(now, time.Hour, tell))
	require.Equal(t, maxNotes, told)
	require.Zero(t, b.Occupancies(now, time.Hour, tell))
}
