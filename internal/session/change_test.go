package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestSubscriptionsChangeWhileAPollIsParked(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("b", 2)
		s := k.open("a")
		p := k.park(s, 0)
		positions, err := s.Change(k.starts("b@oldest"), nil, nil)
		require.NoError(k, err)
		require.Zero(k, positions[0].Offset)
		p.wantFrames("b1 b2")

		p = k.park(s, 2)
		_, err = s.Change(k.starts("c"), []string{"a"}, nil)
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
		_, err := s.Change(nil, []string{"a", "never-had"}, nil)
		require.NoError(k, err)
		require.Equal(k, span("b", 1, 5), k.poll(s, 0))
	})
}

func TestAddingATopicAgainChangesNothing(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 2)
		k.poll(s, 0)
		k.publishN("a", 1)
		positions, err := s.Change(k.starts("a@oldest"), nil, nil)
		require.NoError(k, err)
		require.Zero(k, positions[0].Offset, "what is acked: the rest may not have arrived")
		require.Equal(k, "a3", k.poll(s, 2))
		positions, err = s.Change(k.starts("a@oldest"), []string{"a"}, nil)
		require.NoError(k, err)
		require.Zero(k, positions[0].Offset, "named in both, it moves")
		require.Equal(k, "a1 a2 a3", k.poll(s, 3))
	})
}

func TestAChangeIsAtomic(t *testing.T) {
	story(t, broker.Config{MaxTopics: 4}, Config{Subscriptions: 3}, func(k *kit) {
		s := k.open("a", "b")
		for _, c := range []struct {
			code wire.Code
			add  []string
		}{
			{wire.CodeTooManySubscriptions, []string{"c", "d"}},
			{wire.CodeInvalidRequest, []string{"c", "c"}},
		} {
			_, err := s.Change(k.starts(c.add...), nil, nil)
			require.ErrorIs(k, err, &wire.Problem{Code: c.code})
			require.Len(k, subscriptionsOf(s), 2)
		}
		_, err := s.Change(k.starts("c", "d"), []string{"a"}, nil) // _epoch, a, b, c: no room for d
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		require.Len(k, subscriptionsOf(s), 2)
		k.publishN("a", 1)
		require.Equal(k, "a1", k.poll(s, 0), "a was not dropped")
		state, _ := k.broker.Topic("c")
		require.Zero(k, state.Subscriptions, "c was left again")
	})
}

// A change that fails half-way leaves nothing behind: no deliveries of topics that the
// session does not have, and no memory.
func TestAFailedChangeDeliversNothing(t *testing.T) {
	story(t, broker.Config{MaxTopics: 2}, Config{}, func(k *kit) {
		k.publishN("a", 3)
		s := k.open()
		for range 3 {
			_, err := s.Change(k.starts("a@oldest", "one-too-many"), nil, nil)
			require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		}
		require.Empty(k, s.behind)
		_, err := s.Change(k.starts("a@oldest"), nil, nil)
		require.NoError(k, err)
		require.Equal(k, "a1 a2 a3", k.poll(s, 0))
	})
}
