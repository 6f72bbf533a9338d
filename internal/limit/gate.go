package limit

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Gate has a number of slots. When all are in use, callers queue for one, for a limited
// time; the queue is bounded. A slot that becomes free goes to the addresses in the queue in
// turn, and to the callers of one address in order. So an address may use every slot while
// nobody else waits, and keeps nobody else from a slot for longer than a call takes. When the
// queue is full, a caller takes a place from the address that has most in the queue: that of its
// newest caller. That address must have two callers more than the caller's own. All methods may
// be called concurrently.
type Gate struct {
	name, setting string // immutable
	limited       prometheus.Counter
	waited        prometheus.Observer

	mu      sync.Mutex // guards the fields below
	slots   int
	queue   int // how many callers may wait
	wait    time.Duration
	taken   int                      // slots in use; more than slots after Set has lowered them
	waiting int                      // callers in the queue
	lines   map[*memory.Client]*line // the queue, by address
	turns   list.List                // of *line, in the order of their turns
	ranks   []*line                  // the longest line first
	longer  []int                    // how many lines have more callers than the index
}

// A line has the callers of one address that wait, in order: at least one.
type line struct {
	of      *memory.Client // nil: callers without an address
	callers list.List      // of chan error, which gets nil with a slot, or why there is none
	turn    *list.Element  // in Gate.turns
	rank    int            // in Gate.ranks
}

// NewGate returns a gate of that many slots. At most queue callers wait for one, each for
// the given time. Metrics use the name; problems name the setting, or the name if it is empty.
func NewGate(name, setting string, slots, queue int, wait time.Duration, m *metrics.Metrics) *Gate {
	return &Gate{
		name: name, setting: setting, slots: slots, queue: queue, wait: wait, lines: make(map[*memory.Client]*line),
		limited: m.Limited.WithLabelValues(name), waited: m.WaitSeconds.WithLabelValues(name),
	}
}

// TryEnter takes a slot if one is free. Then call Leave.
func (g *Gate) TryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken >= g.slots {
		return false
	}
	g.taken++
	return true
}

// Enter takes a slot, now or after a wait. of is the memory account of the caller's address; nil:
// none. If the queue is full, or no slot became free in time, the error is a
// *wire.Problem, overloaded. If ctx ends first, or has ended when Enter would wait, the error is
// that of ctx. Without an error, call Leave.
func (g *Gate) Enter(ctx context.Context, of *memory.Client) error {
	g.mu.Lock()
	// Fast path: a slot is free, so no caller waits.
	if g.taken < g.slots {
		g.taken++
		g.mu.Unlock()
		return nil
	}
	least := 2 // callers of the line that a caller must leave: two more than the new caller's own has
	if own := g.lines[of]; own != nil {
		least += own.callers.Len()
	}
	full := g.waiting >= g.queue
	if full && (len(g.ranks) == 0 || g.ranks[0].callers.Len() < least) {
		defer g.mu.Unlock()
		return g.refuseLocked("and the queue is full")
	}
	if err := ctx.Err(); err != nil {
		g.mu.Unlock()
		return err
	}
	if full {
		longest := g.ranks[0]
		g.removeLocked(longest, longest.callers.Back()) <- g.refuseLocked("and the queue is full")
	}
	ready, wait := make(chan error, 1), g.wait
	own, inLine := g.joinLocked(of, ready)
	g.mu.Unlock()
	return g.await(ctx, own, inLine, ready, wait)
}

// joinLocked adds a caller to the queue.
func (g *Gate) joinLocked(of *memory.Client, ready chan error) (*line, *list.Element) {
	l := g.lines[of]
	if l == nil {
		l = &line{of: of, rank: len(g.ranks)}
		l.turn = g.turns.PushBack(l)
		g.lines[of] = l
		g.ranks = append(g.ranks, l)
	}
	n := l.callers.Len()
	if n == len(g.longer) {
		g.longer = append(g.longer, 0)
	}
	g.rankLocked(l, g.longer[n]) // the first of its length
	g.longer[n]++
	g.waiting++
	return l, l.callers.PushBack(ready)
}

// removeLocked removes a caller from the queue.
func (g *Gate) removeLocked(from *line, caller *list.Element) (ready chan<- error) {
	g.waiting--
	ready = from.callers.Remove(caller).(chan error)
	n := from.callers.Len()
	g.longer[n]--
	g.rankLocked(from, g.longer[n]) // the last of the length that it had
	if n == 0 {
		g.turns.Remove(from.turn)
		delete(g.lines, from.of)
		g.ranks[from.rank] = nil
		g.ranks = g.ranks[:from.rank]
	}
	return ready
}

// rankLocked exchanges a line with another of the same length.
func (g *Gate) rankLocked(l *line, to int) {
	other := g.ranks[to]
	g.ranks[l.rank], g.ranks[to] = other, l
	other.rank, l.rank = l.rank, to
}

func (g *Gate) await(ctx context.Context, in *line, inLine *list.Element, ready <-chan error, wait time.Duration) error {
	begun := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	defer func() { g.waited.Observe(time.Since(begun).Seconds()) }()
	var err error
	select {
	case err := <-ready:
		return err
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case refused := <-ready: // in the last moment
		if err == nil || refused != nil {
			return refused
		}
		g.taken--
		g.admitLocked()
		return err
	default:
	}
	g.removeLocked(in, inLine)
	if err == nil {
		err = g.refuseLocked("and none became free within " + wait.String())
	}
	return err
}

// Leave frees a slot, for the address whose turn it is.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken--
	if g.taken < 0 {
		panic("BUG: more calls left the gate of " + g.name + " than entered")
	}
	if g.waiting > 0 { // most often nobody does
		g.admitLocked()
	}
}

func (g *Gate) admitLocked() {
	for g.taken < g.slots && g.waiting > 0 {
		g.taken++
		next := g.turns.Front().Value.(*line)
		g.turns.MoveToBack(next.turn)
		g.removeLocked(next, next.callers.Front()) <- nil
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
	return metrics.Limit{Name: g.name, Most: g.slots, InUse: g.taken, Waiting: g.waiting}
}

func (g *Gate) refuseLocked(why string) error {
	g.limited.Inc()
	remedy, what := "wait for retry_after_ms", "the daemon checks "+g.name+","
	if g.setting != "" {
		remedy, what = remedy+", or raise "+g.setting, g.setting+" allows"
	}
	return problem.New(wire.CodeOverloaded, remedy, "%s %d at a time, %s", what, g.slots, why).Retry(max(time.Second, g.wait/2))
}
