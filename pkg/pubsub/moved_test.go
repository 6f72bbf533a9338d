package pubsub

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func textsOf(t *testing.T, positions []wire.Position) (texts []string) {
	t.Helper()
	for _, p := range positions {
		texts = append(texts, p.String())
	}
	return texts
}

// A connection that breaks resumes at once from a moved position. The program reaches it when it
// has taken the items before.
func TestAMovedPositionIsKeptLikeThatOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list, err := newTopicList([]wire.Start{Now("a"), Now("b.*")})
		require.NoError(t, err)
		list.settle([]wire.Position{position(t, "a@k3:1"), position(t, "b.*@k3:0")})
		l := &loop{s: newSubscription(list, nil), stay: countingStay{}, answer: &answer{}}
		moved := func(texts ...string) wire.Content {
			var positions []wire.Position
			for _, text := range texts {
				positions = append(positions, position(t, text))
			}
			return wire.Content{Moved: &wire.Moved{Positions: positions}}
		}
		resumes := func(want ...string) {
			t.Helper()
			var texts []string
			for _, start := range l.s.topics.starts() {
				texts = append(texts, start.String())
			}
			require.Equal(t, want, texts)
		}
		l.accept(wire.Content{Message: &wire.Message{Position: position(t, "a@k3:5")}})
		l.accept(moved("a@k3:9", "b.1@k3:2", "c@k3:7"))
		require.True(t, l.answer.useful)
		resumes("a@k3:9", "b.*@k3:0", "b.1@k3:2")
		l.accept(moved("a@k3:9", "a@k3:8", "a@k4:20"))
		resumes("a@k3:9", "b.*@k3:0", "b.1@k3:2")
		require.Len(t, l.waiting, 3)
		l.accept(wire.Content{Message: &wire.Message{Position: position(t, "a@k3:9")}})
		require.Len(t, l.waiting, 3, "the position is past it")

		for _, r := range l.waiting {
			l.s.items <- r
		}
		require.Equal(t, []string{"a@k3:1", "b.*@k3:0"}, textsOf(t, l.s.Positions()))
		item, err := l.s.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, "a@k3:5", item.Position().String())
		require.Equal(t, []string{"a@k3:5", "b.*@k3:0"}, textsOf(t, l.s.Positions()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.s.Next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "there is no other item")
		require.Equal(t, []string{"a@k3:9", "b.*@k3:0", "b.1@k3:2"}, textsOf(t, l.s.Positions()))
	})
}
