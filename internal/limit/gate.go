package limit

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Gate has a number of slots. When all are in use, callers queue for one, in order,
// for a limited time; the queue is bounded. All methods may be called concurrently.
type Gate struct {
	name, setting string // immutable
	limited       prometheus.Counter
	waited        prometheus.Observer

	mu      sync.Mutex // guards the fields below
	slots   int
	queue   int // how many callers may wait
	wait    time.Duration
	taken   int       // slots in use; more than slots after Set has lowered them
	waiting list.List // of chan struct{}, closed when the caller gets a slot
}

// NewGate returns a gate of that many slots. At most queue callers wait for one, each for
// the given time. Metrics use the name; problems name the setting.
func NewGate(name, setting string, slots, queue int, wait time.Duration, m *metrics.Metrics) *Gate {
	return &Gate{
		name: name, setting: setting, slots: slots, queue: queue, wait: wait,
		limited: m.Limited.WithLabelValues(name), waited: m.WaitSeconds.WithLabelValues(name),
	}
}

// Enter takes a slot, now or after a wait. If the queue is full, or no slot became free
// in time, the error is a *wire.Problem, overloaded. If ctx ends first, or has ended when
// Enter would wait, the error is that of ctx. Without an error, call Leave.
func (g *Gate) Enter(ctx context.Context) error {
	g.mu.Lock()
	// Fast path: a slot is free, so no caller waits.
	if g.taken < g.slots {
		g.taken++
		g.mu.Unlock()
		return nil
	}
	if g.waiting.Len() >= g.queue {
		defer g.mu.Unlock()
		return g.refuseLocked("and the queue is full")
	}
	if err := ctx.Err(); err != nil {
		g.mu.Unlock()
		return err
	}
	ready, wait := make(chan struct{}), g.wait
	inQueue := g.waiting.PushBack(ready)
	g.mu.Unlock()
	return g.await(ctx, inQueue, ready, wait)
}

func (g *Gate) await(ctx context.Context, inQueue *list.Element, ready <-chan struct{}, wait time.Duration) error {
	begun := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	defer func() { g.waited.Observe(time.Since(begun).Seconds()) }()
	var err error
	select {
	case <-ready:
		return nil
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-ready: // in the last moment
		if err != nil {
			g.leaveLocked()
		}
		return err
	default:
	}
	g.waiting.Remove(inQueue)
	if err == nil {
		err = g.refuseLocked("and none became free within " + wait.String())
	}
	return err
}

// Leave frees a slot, for the caller that has waited longest.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked()
}

func (g *Gate) leaveLocked() {
	g.taken--
	if g.taken < 0 {
		panic("BUG: more calls left the gate of " + g.name + " than entered")
	}
	g.admitLocked()
}

func (g *Gate) admitLocked() {
	for g.taken < g.slots && g.waiting.Len() > 0 {
		g.taken++
		close(g.waiting.Remove(g.waiting.Front()).(chan struct{}))
	}
}

// Set changes the bounds. Callers keep their slots, and those in the queue wait as long
// as before.
func (g *Gate) Set(slots, queue int, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots, g.queue, g.wait = slots, queue, wait
	g.admitLocked()
}

// Gauge returns how many slots are in use, and how many callers wait.
func (g *Gate) Gauge() metrics.Limit {
	g.mu.Lock()
	defer g.mu.Unlock()
	return metrics.Limit{Name: g.name, Most: g.slots, InUse: g.taken, Waiting: g.waiting.Len()}
}

func (g *Gate) refuseLocked(why string) error {
	g.limited.Inc()
	return wire.NewProblem(wire.CodeOverloaded, "wait for retry_after_ms, or raise "+g.setting,
		"%s allows %d at a time, %s", g.setting, g.slots, why).Retry(max(time.Second, g.wait/2))
}
