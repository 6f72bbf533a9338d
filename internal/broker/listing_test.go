package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func everyTopic(string) bool { return true }

// all returns a listing of all topics.
func all() *Listing { return NewListing([]string{">", "_>"}, everyTopic) }

func TestTopicsAreListedInPages(t *testing.T) {
	b := newBroker(Config{})
	for _, name := range []string{"c", "a", "b", "hidden"} {
		publish(t, b, name)
	}
	l := NewListing([]string{">"}, func(name string) bool { return name != "hidden" })
	batch := b.Topics(l, "", 2)
	require.Equal(t, "b", batch.Next)
	require.Equal(t, "a", batch.Topics[0].Topic)
	batch = b.Topics(l, batch.Next, 2)
	require.Empty(t, batch.Next)
	require.Len(t, batch.Topics, 1)
	require.Equal(t, "c", batch.Topics[0].Topic)
}

// An operator lists all topics. Hidden topics do not make batches shorter, and forgotten ones
// are not listed.
func TestEveryPageOfTopicsIsFull(t *testing.T) {
	b := newBroker(Config{HistoryAge: time.Minute})
	hidden := func(name string) bool { return strings.HasPrefix(name, "m") }
	var want []string
	for i := range 100 {
		for _, name := range []string{fmt.Sprintf("a.%02d", i), fmt.Sprintf("m.%02d", i), fmt.Sprintf("z.%02d", i)} {
			publish(t, b, name)
			if !hidden(name) {
				want = append(want, name)
			}
		}
	}
	slices.Sort(want)
	for n, after := 0, ""; n < 200; n += 7 {
		batch := b.Topics(NewListing([]string{">"}, func(name string) bool { return !hidden(name) }), after, 7)
		for i, topic := range batch.Topics {
			require.Equal(t, want[n+i], topic.Topic)
		}
		require.Len(t, batch.Topics, min(7, 200-n))
		require.Equal(t, n+7 < 200, batch.Next != "", after)
		after = batch.Next
	}
	b.Sweep(time.Now().Add(time.Hour))
	require.Empty(t, b.Topics(all(), "", 7).Topics, "forgotten ones are not listed")
	require.Empty(t, b.names.after("", all().spans, 7), "their names are dropped")
}

// makeTopics makes topics without messages.
func makeTopics(t testing.TB, b *Broker, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := b.Join(wire.Start{Topic: name}, &recorder{}, true)
		require.NoError(t, err)
	}
}

// A client may see few of many topics. The listing examines only names that begin as its
// patterns do.
func TestAListingExaminesOnlyWhatPatternsMayMatch(t *testing.T) {
	b := newBroker(Config{})
	for i := range 100 {
		makeTopics(t, b, fmt.Sprintf("other.%d", i), fmt.Sprintf("chat-%d", i), fmt.Sprintf("chat.%02d", i), fmt.Sprintf("_presence.other.%d", i))
	}
	makeTopics(t, b, "chat", "room", "room.a", "rooms")
	for patterns, most := range map[string]int{
		"":                               0,
		"nothing.>":                      0,
		"room":                           1,
		"room.*":                         1,
		"chat.42 room chat.42":           2,
		"chat.*":                         100,
		"chat.> chat.* chat.*.a chat.42": 100,
		"_presence.other.*":              100,
		">":                              304,
		"> chat.* *.a":                   304,
	} {
		examined := make(map[string]int)
		l := NewListing(strings.Fields(patterns), func(name string) bool { examined[name]++; return false })
		batch := b.Topics(l, "", 1000)
		require.Empty(t, batch.Topics)
		require.Empty(t, batch.Next)
		require.Len(t, examined, most, patterns)
		for name, times := range examined {
			require.Equal(t, 1, times, name)
		}
	}
}

// All topics but one are hidden. A listing examines a bounded number, and the next one
// continues after them.
func TestAListingExaminesABoundedNumberOfNames(t *testing.T) {
	b := newBroker(Config{MemoryBudget: 1 << 30})
	const topics = 2*mostExamined + mostExamined/2
	for i := range topics {
		makeTopics(t, b, fmt.Sprintf("hidden.%06d", i))
	}
	makeTopics(t, b, "z")
	var found []wire.TopicState
	listings, after := 0, ""
	for more := true; more; {
		examined := 0
		l := NewListing([]string{">"}, func(name string) bool { examined++; return name == "z" })
		for part := 0; part < 3 && more; part++ {
			batch := b.Topics(l, after, 64)
			found, after = append(found, batch.Topics...), batch.Next
			more = after != ""
		}
		require.LessOrEqual(t, examined, mostExamined)
		listings++
	}
	require.Len(t, found, 1)
	require.Equal(t, "z", found[0].Topic)
	require.Equal(t, 3, listings)
}

// Each name is compared with all patterns. So a listing with many patterns examines fewer.
func TestAListingWithManyPatternsExaminesFewerNames(t *testing.T) {
	b := newBroker(Config{})
	for i := range 2000 {
		makeTopics(t, b, fmt.Sprintf("a.%04d", i))
	}
	patterns := []string{"a.>"}
	for len(patterns) < 256 {
		patterns = append(patterns, fmt.Sprintf("*.b%d", len(patterns)))
	}
	batch := b.Topics(NewListing(patterns, everyTopic), "", 1000)
	require.Len(t, batch.Topics, mostExamined/(1+256/manyPatterns))
	require.Equal(t, "a.0587", batch.Next)
	batch = b.Topics(NewListing(patterns, everyTopic), batch.Next, 1000)
	require.Equal(t, "a.0588", batch.Topics[0].Topic)
}

// Whatever the patterns and the sizes of batches, listings find each visible topic once, in
// order.
func TestListingsFindEachVisibleTopicOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := newBroker(Config{})
	tokens := []string{"a", "b", "a-b", "A", "_presence", "0"}
	names := make(map[string]bool)
	for len(names) < 150 {
		name := tokens[rng.IntN(len(tokens))]
		for range rng.IntN(4) {
			name += "." + tokens[rng.IntN(len(tokens))]
		}
		names[name] = true
	}
	for name := range names {
		makeTopics(t, b, name)
	}
	patterns := []string{">", "*", "a.>", "a.*", "*.b", "a.*.b", "a", "a.b", "_presence.>", "_presence.a.*", "0.>", "missing.>"}
	for range 2000 {
		var chosen []string
		for range rng.IntN(4) {
			chosen = append(chosen, patterns[rng.IntN(len(patterns))])
		}
		var want, got []string
		for name := range names {
			if slices.ContainsFunc(chosen, func(p string) bool { return wire.Matches(p, name) }) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		for more, after := true, ""; more; more = after != "" {
			l := NewListing(chosen, everyTopic)
			l.left = 1 + rng.IntN(20)
			batch := b.Topics(l, after, 1+rng.IntN(10))
			for _, topic := range batch.Topics {
				got = append(got, topic.Topic)
			}
			require.True(t, batch.Next == "" || batch.Next > after, "each batch gets further")
			after = batch.Next
		}
		require.Equal(t, want, got, chosen)
	}
}

// The cost of a batch does not depend on the number of topics, however few of them the client
// may see.
func BenchmarkTopics(b *testing.B) {
	for _, topics := range []int{1000, 100_000} {
		br := newBroker(Config{MaxTopics: topics, MemoryBudget: 1 << 30})
		for i := range topics {
			makeTopics(b, br, "t."+strconv.Itoa(i))
		}
		for name, patterns := range map[string][]string{"all": {">"}, "none": nil, "one": {"t.77"}, "others": {"u.>"}, "hidden": {"*.t"}} {
			b.Run(name+"-of-"+strconv.Itoa(topics), func(b *testing.B) {
				for b.Loop() {
					br.Topics(NewListing(patterns, everyTopic), "t.5", 10)
				}
			})
		}
	}
}
