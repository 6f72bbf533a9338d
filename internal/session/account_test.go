//go:build !race

package session

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The memory account has what sessions and subscriptions add to the heap, within 20 %.
func TestTheAccountIsNearTheHeap(t *testing.T) {
	named := func(format string, n int) (starts []wire.Start) {
		for i := range n {
			starts = append(starts, wire.Start{Topic: fmt.Sprintf(format, i)})
		}
		return starts
	}
	common := func(n int) func(int) []wire.Start {
		return func(int) []wire.Start { return named("common.%d", n) }
	}
	for name, c := range map[string]struct {
		sessions int
		topics   func(i int) []wire.Start
		before   int // topics that exist before
	}{
		"a topic each":      {5000, common(1), 0},
		"2 topics each":     {2000, common(2), 0},
		"10 topics each":    {500, common(10), 0},
		"100 topics each":   {50, common(100), 0},
		"1000 topics each":  {10, common(1000), 0},
		"1000 topics alone": {10, func(i int) []wire.Start { return named(fmt.Sprintf("own.%d.%%d", i), 1000) }, 0},
		"positions": {50, func(int) []wire.Start {
			return every(named("common.%d", 1000), wire.Start{From: wire.FromPosition, Epoch: "e", After: 7})
		}, 0},
		"rates":               {50, func(int) []wire.Start { return every(named("common.%d", 1000), wire.Start{Every: time.Hour}) }, 0},
		"topics of a pattern": {50, func(int) []wire.Start { return []wire.Start{{Topic: "common.*"}} }, 990},
		"shared patterns":     {300, func(int) []wire.Start { return named("*.common%d", 60) }, 0},
		"patterns alone":      {300, func(i int) []wire.Start { return named(fmt.Sprintf("*.own%d.p%%d", i), 60) }, 0},
		"deep patterns":       {300, func(i int) []wire.Start { return named(fmt.Sprintf("*.own%d.p%%d.a.b.c.d.e.f.g.h.i", i), 30) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := metrics.New("test")
			b := broker.New(broker.Config{MemoryBudget: 1 << 30}, m, time.Now())
			r := NewRegistry(Config{}, b, m)
			for _, start := range named("common.%d", c.before) {
				_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: start.Topic}, Data: []byte("1")}, 0, time.Now())
				require.NoError(t, err)
			}
			sessions := make([]*Session, c.sessions)
			heap, used := live(), b.Memory().Used()
			for i := range sessions {
				s, _, err := r.Open(context.Background(), Opening{Topics: c.topics(i), Ack: true}, time.Now())
				require.NoError(t, err)
				s.armPaces()
				sessions[i] = s
			}
			require.InEpsilon(t, live()-heap, b.Memory().Used()-used, 0.2, "bytes of the heap, and counted")
			for _, s := range sessions {
				r.End(s)
			}
			b.Close()
			b.Sweep(time.Now().Add(time.Hour))
			require.EqualValues(t, 0, b.Memory().Used(), "nothing is left")
		})
	}
}

// every gives all starts what how has.
func every(starts []wire.Start, how wire.Start) []wire.Start {
	for i := range starts {
		how.Topic = starts[i].Topic
		starts[i] = how
	}
	return starts
}

// armPaces makes the timers that early messages need.
func (s *Session) armPaces() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs.all() {
		if sub.pace != nil {
			sub.pace.next = time.Now().Add(time.Hour)
			sub.pace.armLocked(sub, time.Now())
		}
	}
}

// live returns the bytes of the heap that are in use.
func live() int64 {
	runtime.GC()
	runtime.GC() // empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
