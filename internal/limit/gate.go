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

// A Gate has so many places. Who finds none waits for one, in order, up to a stated
// time; only so many wait. All methods may be called concurrently.
type Gate struct {
	name, setting string // immutable
	limited       prometheus.Counter
	waited        prometheus.Observer

	mu      sync.Mutex // guards the fields below
	places  int
	most    int // that wait
	wait    time.Duration
	taken   int       // places; after Set there may be fewer than that
	waiting list.List // of chan struct{}, each closed once its place is taken for it
}

// NewGate returns a gate that metrics know as name and operators by a setting. It has
// so many places; most wait for one, each for the given time.
func NewGate(name, setting string, places, most int, wait time.Duration, m *metrics.Metrics) *Gate {
	return &Gate{
		name: name, setting: setting, places: places, most: most, wait: wait,
		limited: m.Limited.WithLabelValues(name), waited: m.WaitSeconds.WithLabelValues(name),
	}
}

// Enter takes a place, now or after a wait. The error is a *wire.Problem, overloaded:
// no place came free in time, or too many wait. If ctx ends first, or had ended and
// it would have to wait, the error is ctx's. Without an error Leave must follow.
func (g *Gate) Enter(ctx context.Context) error {
	g.mu.Lock()
	// Fast path: there is a place.
	if g.taken < g.places { // so nobody waits
		g.taken++
		g.mu.Unlock()
		return nil
	}
	if g.waiting.Len() >= g.most {
		defer g.mu.Unlock()
		return g.refuseLocked("and as many wait as may")
	}
	if err := ctx.Err(); err != nil {
		g.mu.Unlock()
		return err
	}
	ready, wait := make(chan struct{}), g.wait
	place := g.waiting.PushBack(ready)
	g.mu.Unlock()
	return g.await(ctx, place, ready, wait)
}

func (g *Gate) await(ctx context.Context, place *list.Element, ready <-chan struct{}, wait time.Duration) error {
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
	case <-ready: // at the last moment
		if err != nil {
			g.leaveLocked()
		}
		return err
	default:
	}
	g.waiting.Remove(place)
	if err == nil {
		err = g.refuseLocked("and none ended within " + wait.String())
	}
	return err
}

// Leave gives a place up, to whoever has waited longest.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked()
}

func (g *Gate) leaveLocked() {
	g.taken--
	if g.taken < 0 {
		panic("BUG: more left the gate of " + g.name + " than entered")
	}
	g.admitLocked()
}

func (g *Gate) admitLocked() {
	for g.taken < g.places && g.waiting.Len() > 0 {
		g.taken++
		close(g.waiting.Remove(g.waiting.Front()).(chan struct{}))
	}
}

// Set changes the bounds. Who has a place keeps it, who waits goes on waiting as long
// as it was to.
func (g *Gate) Set(places, most int, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places, g.most, g.wait = places, most, wait
	g.admitLocked()
}

// Gauge returns how many have a place, and how many wait.
func (g *Gate) Gauge() metrics.Limit {
	g.mu.Lock()
	defer g.mu.Unlock()
	return metrics.Limit{Name: g.name, Most: g.places, InUse: g.taken, Waiting: g.waiting.Len()}
}

func (g *Gate) refuseLocked(why string) error {
	g.limited.Inc()
	return wire.NewProblem(wire.CodeOverloaded, "wait as retry_after_ms says, or raise "+g.setting,
		"%s allows %d at a time, %s", g.setting, g.places, why).Retry(max(time.Second, g.wait/2))
}
