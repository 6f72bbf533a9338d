package broker

import (
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Results are what publishes with idempotency keys were answered with, so that each
// is done once however often it is asked for.
//
// A publish that is under way is among them, for those who ask meanwhile to wait
// for. One that fails leaves nothing: who waited tries it then. Those that are over
// stay until the window has passed, and at most so many: the oldest go first.
// All methods may be called concurrently.
type Results struct {
	metrics *metrics.Metrics // immutable

	mu             sync.Mutex // guards the fields below; no call out is made under it
	window         time.Duration
	most           int
	byScope        map[Digest]*result
	oldest, newest *result // of those that are over
	over           int     // how many of them there are
}

// A result is under way until underWay is nil; then it is linked.
type result struct {
	Result
	underWay chan struct{} // closed at the end of the publish
	next     *result       // the next newer one
}

func newResults(cfg Config, m *metrics.Metrics) *Results {
	return &Results{window: cfg.IdempotencyWindow, most: cfg.IdempotencyKeys, metrics: m, byScope: make(map[Digest]*result)}
}

// reload puts another window and another bound in force.
func (r *Results) reload(cfg Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window, r.most = cfg.IdempotencyWindow, cfg.IdempotencyKeys
	r.boundLocked()
}

// do returns what publish returns, or what it returned before for the same.
func (r *Results) do(await Await, asked Result, now time.Time, publish func() (wire.Published, error)) (wire.Published, error) {
	for {
		mine, found, wait := r.begin(asked, now)
		switch {
		case mine != nil:
			return r.publish(mine, publish)
		case wait == nil:
			return r.repeat(asked, found)
		}
		if err := await(wait); err != nil {
			return wire.Published{}, err
		}
	}
}

// begin returns a result to fill, or the one found, or what to wait for.
func (r *Results) begin(asked Result, now time.Time) (mine *result, found Result, wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byScope[asked.Scope]
	if known == nil || known.underWay == nil && r.passed(known, now) {
		mine = &result{Result: asked, underWay: make(chan struct{})}
		r.byScope[asked.Scope] = mine
		return mine, Result{}, nil
	}
	return nil, known.Result, known.underWay
}

// isUnderWay reports whether do would wait for a publish with that scope now.
func (r *Results) isUnderWay(scope Digest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byScope[scope]
	return known != nil && known.underWay != nil
}

func (r *Results) publish(mine *result, publish func() (wire.Published, error)) (published wire.Published, err error) {
	done := false // not if publish panics
	defer func() { r.end(mine, published, done && err == nil) }()
	published, err = publish()
	done = true
	return published, err
}

// end ends what was under way and lets those who wait for it go on.
func (r *Results) end(mine *result, published wire.Published, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(mine.underWay)
	mine.underWay = nil
	if !ok {
		delete(r.byScope, mine.Scope)
		return
	}
	mine.Published = published
	r.linkLocked(mine)
}

// repeat answers a publish that was done before.
func (r *Results) repeat(asked, found Result) (wire.Published, error) {
	if asked.Fingerprint != found.Fingerprint {
		r.metrics.IdempotencyMismatched.Inc()
		return wire.Published{}, wire.NewProblem(wire.CodeIdempotencyMismatch, "use a key of its own for each message",
			"the idempotency key was used for another message to this topic, %s", found.Published.Position)
	}
	r.metrics.IdempotencyRepeated.Inc()
	return found.Published, nil
}

// linkLocked makes n the newest, for which the oldest may have to go.
func (r *Results) linkLocked(n *result) {
	if r.oldest == nil {
		r.oldest = n
	} else {
		r.newest.next = n
	}
	r.newest = n
	r.over++
	r.boundLocked()
}

func (r *Results) boundLocked() {
	for r.over > r.most {
		r.dropLocked()
		r.metrics.IdempotencyEvicted.Inc()
	}
}

// dropLocked forgets the oldest. Its key may have been used anew since.
func (r *Results) dropLocked() {
	o := r.oldest
	if r.oldest = o.next; r.oldest == nil {
		r.newest = nil
	}
	r.over--
	if r.byScope[o.Scope] == o {
		delete(r.byScope, o.Scope)
	}
}

func (r *Results) passed(n *result, now time.Time) bool {
	return now.UnixMilli()-n.Published.Time >= r.window.Milliseconds()
}

// sweepTurn is how many results are forgotten before publishes may go on.
const sweepTurn = 1000

// sweep forgets what the window has passed for.
func (r *Results) sweep(now time.Time) {
	for r.sweepSome(now) {
	}
}

func (r *Results) sweepSome(now time.Time) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range sweepTurn {
		if r.oldest == nil || !r.passed(r.oldest, now) {
			return false
		}
		r.dropLocked()
	}
	return true
}

// Each calls f with each result that is over, the oldest first.
func (r *Results) Each(f func(Result)) {
	for _, held := range r.held() {
		f(held)
	}
}

func (r *Results) held() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Result, 0, r.over)
	for n := r.oldest; n != nil; n = n.next {
		all = append(all, n.Result)
	}
	return all
}

// Add makes a result that Each told the newest, unless there is one in its scope.
func (r *Results) Add(restored Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byScope[restored.Scope] != nil {
		return
	}
	n := &result{Result: restored}
	r.byScope[restored.Scope] = n
	r.linkLocked(n)
}

func (r *Results) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}
