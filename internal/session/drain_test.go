package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func draining() *wire.Problem { return wire.NewProblem(wire.CodeDraining, "", "") }

func (k *kit) countOpen() int {
	var g metrics.Gauges
	k.registry.Gauges(&g)
	return g.Sessions
}

// While others are ended, a session whose turn has not come polls, and polls anew, and
// changes its subscriptions.
func TestASessionIsServedUntilItsTurnComes(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		const all = 10
		sessions := make([]*Session, all)
		for i := range sessions {
			sessions[i] = k.open("a")
		}
		d := k.registry.BeginDrain(draining())
		require.Equal(k, all, d.Left())
		_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a")}, time.Now())
		require.ErrorIs(k, err, draining())
		_, _, err = k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
		require.ErrorIs(k, err, draining())

		for left := all; left > 0; left-- {
			require.Equal(k, left, k.countOpen())
			k.publishN("a", 1)
			served := 0
			for _, s := range sessions {
				if _, err := k.registry.Get(s.ID()); err != nil {
					require.ErrorIs(k, err, draining())
					continue
				}
				served++
				_, err = s.Change(k.starts("b"), nil)
				require.NoError(k, err)
				require.Equal(k, span("a", 1, all-left+1), k.poll(s, 0))
			}
			require.Equal(k, left, served)
			d.End(1)
		}
		require.Zero(k, d.Left())
		d.End(1) // is nothing
		d.End(-1)
	})
}

// A client may be between two polls when its turn comes. It is told what one is
// whose poll waits.
func TestWhoIsBetweenTwoPollsIsToldItsPositions(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, closed := k.open("a"), k.open("a")
		k.publishN("a", 1)
		k.poll(s, 0)
		_, err := s.Poll(1, false, time.Now())
		require.NoError(k, err)
		k.registry.End(closed)
		k.registry.Drain(draining())
		_, err = k.registry.Get(s.ID())
		why, ok := errors.AsType[*wire.Problem](err)
		require.True(k, ok)
		require.Equal(k, wire.CodeDraining, why.Code)
		require.Equal(k, []wire.Position{{Topic: "a", Epoch: k.epoch, Offset: 1}}, why.Positions)
		_, err = k.registry.Get(closed.ID())
		require.ErrorIs(k, err, draining(), "it would only be refused another")
	})
}

func TestSessionsLeaveInRandomOrder(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		const all = 200
		var ids []string
		for range all {
			ids = append(ids, k.open("a").ID())
		}
		d := k.registry.BeginDrain(draining())
		d.End(all / 2)
		early := 0
		for _, id := range ids[:all/2] {
			if _, err := k.registry.Get(id); err != nil {
				early++
			}
		}
		require.InDelta(k, all/4, early, all/8, "of those who came early, as many as of the others")
		d.End(all)
	})
}
