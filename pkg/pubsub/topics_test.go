package pubsub

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestWhatASubscriberHas(t *testing.T) {
	at := func(s string) wire.Position { return position(t, s) }
	message := func(s string) Item { return Item{Message: &wire.Message{Position: at(s)}} }
	gap := func(reason wire.GapReason, after, to string) Item {
		return Item{Gap: &wire.Gap{Topic: "a", Reason: reason, After: at(after), Position: at(to)}}
	}
	mark := &topicMark{known: true, received: at("a@k3:10")}
	for _, c := range []struct {
		name string
		item Item
		has  bool
	}{
		{"the next message", message("a@k3:11"), false},
		{"a message further on", message("a@k3:99"), false},
		{"the last message again", message("a@k3:10"), true},
		{"an older message", message("a@k3:1"), true},
		{"a message of another epoch", message("a@k4:1"), false},
		{"a gap that goes on", gap(wire.GapSlow, "a@k3:10", "a@k3:20"), false},
		{"a gap of a topic that is left out", gap(wire.GapUnfollowed, "a@k3:10", "a@k3:10"), false},
		{"an older gap of a topic that was left out", gap(wire.GapUnfollowed, "a@k3:5", "a@k3:5"), true},
		{"a gap of a topic that fits again", gap(wire.GapUnfollowed, "a@k3:5", "a@k3:12"), false},
		{"a gap that overlaps", gap(wire.GapSlow, "a@k3:5", "a@k3:20"), false},
		{"a gap that was passed", gap(wire.GapSlow, "a@k3:5", "a@k3:10"), true},
		{"a gap of nothing", gap(wire.GapExpired, "a@k3:10", "a@k3:10"), true},
		{"a restart to another epoch", gap(wire.GapRestarted, "a@k3:10", "a@k4:0"), false},
		{"a restart that leads back", gap(wire.GapRestarted, "a@k3:10", "a@k3:4"), false},
		{"a restart that was passed", gap(wire.GapRestarted, "a@k3:50", "a@k3:4"), true},
		{"a reason of the future", gap("tired", "a@k3:10", "a@k3:12"), false},
	} {
		require.Equal(t, c.has, mark.has(c.item), c.name)
	}
}

func TestEditKeepsWhatStays(t *testing.T) {
	list, err := newTopicList([]wire.Start{FromNow("a"), FromNow("b"), FromNow("c")})
	require.NoError(t, err)
	list.settle([]wire.Position{position(t, "a@k3:1"), position(t, "b@k3:2"), position(t, "c@k3:3")})

	e := list.edit([]wire.Start{FromOldest("b"), FromNow("c"), FromOldest("d")}, []string{"b", "x"})
	require.Equal(t, []string{"b"}, e.remove)
	require.Equal(t, []wire.Start{FromOldest("b"), FromOldest("d")}, e.add)
	require.Same(t, list.byName["a"], e.next.byName["a"])
	require.Same(t, list.byName["c"], e.next.byName["c"])
	require.NotSame(t, list.byName["b"], e.next.byName["b"], "it begins anew")
	require.Equal(t, []wire.Start{FromPosition(position(t, "a@k3:1")), FromPosition(position(t, "c@k3:3")), FromOldest("b"), FromOldest("d")}, e.next.starts())
	require.True(t, list.edit([]wire.Start{FromOldest("a")}, []string{"x"}).empty())
}

func TestPositionsThatAnswerStarts(t *testing.T) {
	for _, c := range []struct {
		starts, positions []string
		ok                bool
	}{
		{nil, nil, true},
		{[]string{"a", "b@oldest"}, []string{"a@k3:1", "b@k3:0"}, true},
		{[]string{"a", "b@oldest"}, []string{"b@k3:0", "a@k3:1"}, true},
		{[]string{"a", "x.*"}, []string{"a@k3:1", "x.*@k3:0", "x.y@k3:4"}, true},
		{[]string{"x.y", "x.*"}, []string{"x.*@k3:0", "x.y@k3:4", "x.z@k3:4"}, true},
		{[]string{"a"}, nil, false},
		{[]string{"a", "b"}, []string{"a@k3:1"}, false},
		{[]string{"a"}, []string{"a@k3:1", "b@k3:1"}, false},
		{[]string{"a", "x.*"}, []string{"a@k3:1", "x.*@k3:0", "x.y.z@k3:4"}, false},
		{nil, []string{"a@k3:1"}, false},
	} {
		var starts []wire.Start
		for _, text := range c.starts {
			start, err := wire.ParseStart(text)
			require.NoError(t, err)
			starts = append(starts, start)
		}
		var positions []wire.Position
		for _, text := range c.positions {
			positions = append(positions, position(t, text))
		}
		require.Equal(t, c.ok, checkPositions(http.StatusOK, starts, positions) == nil, "%v %v", c.starts, c.positions)
	}
}

// A pattern matches so many topics that most are left out, now this one, now that one. A client
// that kept their positions would name more than the daemon takes.
func TestPositionsOfTopicsThatAreLeftOutAreForgotten(t *testing.T) {
	list, err := newTopicList([]wire.Start{FromNow("a.*"), FromNow("b")})
	require.NoError(t, err)
	l := &loop{s: newSubscription(list, nil), stay: countingStay{}, answer: &answer{}}
	left := func(at string) wire.Content {
		p := position(t, at)
		return wire.Content{Gap: &wire.Gap{Topic: p.Topic, Reason: wire.GapUnfollowed, After: p, Position: p}}
	}
	l.accept(wire.Content{Message: &wire.Message{Position: position(t, "a.1@k3:5")}})
	require.Len(t, l.s.topics.starts(), 3)
	l.accept(left("a.1@k3:7")) // it was forgotten and made again
	l.accept(left("a.2@k3:7"))
	l.accept(left("a.*@k3:2"))
	l.accept(left("b@k3:2")) // the answer is older than the change in which the program named it
	starts := l.s.topics.starts()
	require.Len(t, starts, 2)
	require.Equal(t, "a.*", starts[0].Topic)
	require.Equal(t, "b", starts[1].Topic)
	require.Len(t, l.waiting, 5)
}

// A countingStay is a stay of which nothing is asked.
type countingStay struct{ stay }

func (countingStay) counted() {}
