package session

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestASessionWithoutPollsEndsAndIsRemembered(t *testing.T) {
	story(t, broker.Config{}, Config{InactivityTimeout: time.Minute}, func(k *kit) {
		s := k.open("a")
		time.Sleep(50 * time.Second)
		k.registry.Sweep(time.Now())
		k.park(s, 0).wantFrames("") // 25 s
		time.Sleep(50 * time.Second)
		k.registry.Sweep(time.Now())
		_, err := k.registry.Get([]byte(s.ID()))
		require.NoError(k, err, "it was polled 50 s ago")
		p := k.park(s, 0)
		k.registry.Sweep(time.Now().Add(time.Hour))
		k.publish("a")
		p.wantFrames("a1") // a parked poll keeps its session
		time.Sleep(time.Minute)
		k.registry.Sweep(time.Now().Add(time.Hour)) // no earlier than before: the clock never goes back
		_, err = k.registry.Get([]byte(s.ID()))
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionEnded})
		require.Contains(k, err.Error(), "inactivity")
		state, _ := k.broker.Topic("a")
		require.Zero(k, state.Subscriptions)
	})
}

func TestEndedSessionsAreRememberedUpToABound(t *testing.T) {
	story(t, broker.Config{}, Config{EndedRemembered: 2}, func(k *kit) {
		sessions := []*Session{k.open("a"), k.open("a"), k.open("a")}
		for _, s := range sessions {
			k.registry.End(s)
			k.registry.End(s) // a second End does nothing
		}
		_, err := k.registry.Get([]byte(sessions[0].ID()))
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionUnknown})
		for _, s := range sessions[1:] {
			_, err := k.registry.Get([]byte(s.ID()))
			require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionEnded})
		}
		require.Len(k, k.registry.ended.reasons, 2)
		require.Zero(k, k.registry.open.Load())
	})
}

func TestEndingASessionAnswersItsPoll(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		p := k.park(s, 0)
		k.registry.End(s)
		p.wantProblem(wire.CodeSessionEnded)
		_, err := s.Poll(0, false, time.Now())
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionEnded})
		_, err = s.Change(k.starts("b"), nil, nil)
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionEnded})
	})
}

// A connection may hold a session long after its end. The session holds no topic for it, and the
// client still learns its positions.
func TestAnEndedSessionHoldsNoTopic(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a", "b", "c.*")
		k.publish("c.1")
		reader := k.begin(s)
		want := reader.Hello()
		require.Len(k, want, 4)
		require.Equal(k, 4, s.Subscriptions())
		require.True(k, k.registry.EndNumber(s.number))
		require.Zero(k, s.Subscriptions())
		require.Equal(k, want, reader.Hello())
		reader.Done(time.Now())

		closed := k.open("a")
		reader = k.begin(closed)
		k.registry.End(closed)
		hello := wire.Content{Hello: &wire.Hello{Positions: reader.Hello()}}
		require.Contains(k, string(hello.AppendJSON(nil)), `"positions":[]`, "its client closed it")
		reader.Done(time.Now())
	})
}

func TestADrainGivesEveryPollItsPositions(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a", "b")
		k.publishN("a", 2)
		k.poll(s, 0)
		parkedPoll := k.park(s, 2)
		unacked := k.open("a@oldest")
		k.poll(unacked, 0)
		stateless, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		statelessPoll := k.park(stateless, 0)

		k.registry.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(math.MaxInt)
		require.Equal(k, []wire.Position{
			{Topic: "a", Epoch: k.epoch, Offset: 2}, {Topic: "b", Epoch: k.epoch, Offset: 0},
		}, parkedPoll.wantProblem(wire.CodeDraining).Positions)
		statelessPoll.wantProblem(wire.CodeDraining)
		_, err = unacked.Poll(0, false, time.Now())
		why, _ := errors.AsType[*wire.Problem](err)
		require.Zero(k, why.Positions[0].Offset, "nothing was acked")
		_, _, err = k.registry.Open(context.Background(), Opening{Ack: true}, time.Now())
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeDraining})
		_, err = k.registry.Get([]byte(s.ID()))
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeDraining})
	})
}

// Ephemeral sessions have their own limit and gauge.
func TestStatelessSessionsAreBoundedAndCounted(t *testing.T) {
	story(t, broker.Config{}, Config{MaxSessions: 1}, func(k *kit) {
		open := func() (*Session, error) {
			s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
			return s, err
		}
		held := func() metrics.Limit {
			var g metrics.Gauges
			k.registry.Gauges(&g)
			return g.Limits[0]
		}
		k.open("a") // counts separately
		s, err := open()
		require.NoError(k, err)
		_, err = open()
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		require.Equal(k, metrics.Limit{Name: "stateless_sessions", Most: 1, InUse: 1}, held())
		require.InDelta(k, 1, testutil.ToFloat64(k.registry.metrics.Limited.WithLabelValues("stateless_sessions")), 0)
		k.registry.End(s)
		require.Zero(k, held().InUse)
	})
}

// freeSlots are Slots that never wait.
type freeSlots struct{ free int }

func (s *freeSlots) Enter(context.Context, *memory.Client) error {
	if s.free == 0 {
		return problem.New(wire.CodeOverloaded, "later", "full")
	}
	s.free--
	return nil
}

func (s *freeSlots) Leave() { s.free++ }

func TestASessionHoldsASlotUntilItEnds(t *testing.T) {
	slots := &freeSlots{free: 2}
	story(t, broker.Config{}, Config{Slots: slots, Subscriptions: 2}, func(k *kit) {
		s := k.open("a")
		_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a", "b", "c")}, time.Now())
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeTooManySubscriptions})
		require.Equal(k, 1, slots.free, "a session that failed to open holds none")
		k.open("a")
		_, _, err = k.registry.Open(context.Background(), Opening{Ack: true}, time.Now())
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		k.registry.End(s)
		k.registry.End(s)
		require.Equal(k, 1, slots.free)
		k.open("a")
		time.Sleep(2 * Config{}.WithDefaults().InactivityTimeout)
		k.registry.Sweep(time.Now())
		require.Equal(k, 2, slots.free, "a swept session holds none")
	})
}

// pressed are Slots that call press while they wait.
type pressed struct {
	freeSlots
	press func()
}

func (p *pressed) Enter(ctx context.Context, of *memory.Client) error {
	p.press()
	return p.freeSlots.Enter(ctx, of)
}

func TestMemoryIsCheckedAgainAfterTheWaitForASlot(t *testing.T) {
	slots := &pressed{freeSlots: freeSlots{free: 1}, press: func() {}}
	story(t, broker.Config{}, Config{Slots: slots}, func(k *kit) {
		slots.press = func() { k.broker.Memory().Press(memory.High) }
		_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a")}, time.Now())
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		require.Equal(k, 1, slots.free)
		_, ok := k.broker.Topic("a")
		require.False(k, ok)
		k.broker.Memory().Press(memory.Calm)
		slots.press = func() {}
		k.open("a")
	})
}

func TestStatelessPollsHaveTheirOwnBound(t *testing.T) {
	story(t, broker.Config{}, Config{MaxSessions: 1}, func(k *kit) {
		k.open("a")
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		_, _, err = k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeOverloaded})
		k.registry.End(s)
		_, _, err = k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
	})
}

func TestAStatelessSessionHasNoID(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		require.Empty(k, s.ID())
		_, err = k.registry.Get([]byte(s.id))
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionUnknown})
		k.registry.End(s)
		_, err = k.registry.Get([]byte(s.id))
		require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeSessionUnknown}, "nor is it remembered")
	})
}

func TestGaugesSumAllSessions(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 4}, func(k *kit) {
		s := k.open("a")
		k.publishN("a", 6)
		var g metrics.Gauges
		k.registry.Gauges(&g)
		require.Equal(k, []int{1, 4, 1, 0}, []int{g.Sessions, g.Queued, g.Behind, g.Unacked})
		k.poll(s, 0)
		g = metrics.Gauges{}
		k.registry.Gauges(&g)
		require.Equal(k, []int{1, 0, 0, 6}, []int{g.Sessions, g.Queued, g.Behind, g.Unacked})
		k.broker.Gauges(&g)
		require.Positive(k, g.Memory["queues"])
	})
}

func draining() *wire.Problem { return problem.New(wire.CodeDraining, "", "") }

func (k *kit) countOpen() int {
	var g metrics.Gauges
	k.registry.Gauges(&g)
	return g.Sessions
}

// During a drain, a session that is not ended yet can poll and change its subscriptions.
func TestADrainServesSessionsUntilItEndsThem(t *testing.T) {
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
				if _, err := k.registry.Get([]byte(s.ID())); err != nil {
					require.ErrorIs(k, err, draining())
					continue
				}
				served++
				_, err = s.Change(k.starts("b"), nil, nil)
				require.NoError(k, err)
				require.Equal(k, span("a", 1, all-left+1), k.poll(s, 0))
			}
			require.Equal(k, left, served)
			d.End(1)
		}
		require.Zero(k, d.Left())
		d.End(1) // does nothing
		d.End(-1)
	})
}

// A client between two polls gets the same problem as one whose poll waits.
func TestADrainRemembersThePositionsForTheNextPoll(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, closed := k.open("a"), k.open("a")
		k.publishN("a", 1)
		k.poll(s, 0)
		_, err := s.Poll(1, false, time.Now())
		require.NoError(k, err)
		k.registry.End(closed)
		k.registry.BeginDrain(draining()).End(math.MaxInt)
		_, err = k.registry.Get([]byte(s.ID()))
		why, ok := errors.AsType[*wire.Problem](err)
		require.True(k, ok)
		require.Equal(k, wire.CodeDraining, why.Code)
		require.Equal(k, []wire.Position{{Topic: "a", Epoch: k.epoch, Offset: 1}}, why.Positions)
		_, err = k.registry.Get([]byte(closed.ID()))
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
			if _, err := k.registry.Get([]byte(id)); err != nil {
				early++
			}
		}
		require.InDelta(k, all/4, early, all/8, "of those who came early, as many as of the others")
		d.End(all)
	})
}
