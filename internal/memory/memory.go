// Package memory is the one account of the memory that clients make the daemon use: its
// kinds, its budget, the pressure, and who gives up what, in which order.
//
// Every kind counts against memory.budget (B). Histories and encodings use whatever the
// other kinds leave of it. The other kinds are held by clients:
//
//	kind        what                                             bound by itself
//	history     messages that histories hold                     settings of topics
//	frames      encodings of messages                            none
//	queues      session queues, messages that only they hold,    settings of sessions
//	            lists of unacked frames
//	topics      topics, subscriptions and patterns themselves    B/2
//	unfinished  bodies and commands whose end has not come       B/4; an address B/8
//	unread      answers that clients have not read               B/4; an address B/8
//
// Relief comes in this order:
//
//  1. The budget is full: encodings go, then the oldest messages of all topics. What
//     still does not fit is refused (Admit). This is no pressure: it is normal.
//  2. The share of unfinished or unread bytes is full, or an address has half of it: a
//     body is refused (Unfinished), a list or history is not begun (AdmitAnswer), and the
//     slowest readers are cut (Unread).
//  3. Pressure is high: no session is opened, and no list or history is begun.
//  4. Pressure is critical: the slowest readers are cut; then sessions that do not read
//     are trimmed; queues hold nothing that a history does not.
//  5. Pressure is critical because of the collector's limit (GOMEMLIMIT): histories
//     shrink, until there is room again.
//
// Pressure is measured against two bounds: what clients hold against B, and what a
// collection cannot free against GOMEMLIMIT. A Watcher looks at both.
package memory

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Kind is a kind of memory. The metrics count Pinned and Queues as one.
type Kind int

// The kinds.
const (
	History    Kind = iota
	Encodings       // kind frames
	Queued          // messages that queues hold, whether or not a history does; overlaps History and Pinned
	Pinned          // messages that queues or writes hold, and no history does
	Queues          // the queues themselves, and lists of unacked frames
	Topics          // topics, subscriptions and patterns
	Unfinished      // see UnfinishedBytes
	Unread          // see UnreadBytes
	kinds
)

// DefaultBudget is the budget unless the settings or GOMEMLIMIT say less.
const DefaultBudget = 512 << 20

// Histories is what makes room.
type Histories interface {
	// ForgetEncodings drops all encodings. They are made again on demand.
	ForgetEncodings()
	// EvictOldest evicts messages, the oldest of all topics first, until enough returns
	// true.
	EvictOldest(enough func() bool)
}

// An Account counts memory by kind. All methods may be called concurrently. Add may be
// called on nil.
type Account struct {
	histories Histories // immutable, like metrics
	metrics   *metrics.Metrics

	bytes  [kinds]atomic.Int64
	budget atomic.Int64 // by the settings
	shrunk atomic.Int64 // the budget for now if it is smaller; 0: it is not

	makingRoom sync.Mutex   // held while room is made; before the locks of topics
	fullUntil  atomic.Int64 // Unix nanoseconds; looking for room is of no use before

	pressure atomic.Int32  // a Pressure
	pressed  chan struct{} // holds a token once the pressure rose or a share is full; never closed

	largest atomic.Int64 // see SetLargestBody
	readers readers
}

// New returns an account with a budget in bytes, for which histories make room.
func New(budget int64, histories Histories, m *metrics.Metrics) *Account {
	a := &Account{histories: histories, metrics: m, pressed: make(chan struct{}, 1)}
	a.readers.waiting = make(map[*UnreadBytes]bool)
	a.SetBudget(budget)
	return a
}

// SetBudget changes the budget. Nothing is given up at once.
func (a *Account) SetBudget(bytes int64) { a.budget.Store(bytes) }

// Add counts so many bytes more, or fewer, of a kind.
func (a *Account) Add(k Kind, bytes int64) {
	if a != nil {
		a.bytes[k].Add(bytes)
	}
}

// Of returns the bytes of a kind.
func (a *Account) Of(k Kind) int64 { return a.bytes[k].Load() }

// Used returns the bytes that count against the budget.
func (a *Account) Used() int64 {
	return a.Of(History) + a.Of(Encodings) + a.Of(Pinned) + a.Of(Queues) + a.Of(Topics) + a.Of(Unfinished) + a.Of(Unread)
}

// Held returns the bytes that count against the budget and no eviction frees, since
// clients hold them; and the budget.
func (a *Account) Held() (held, budget int64) {
	return a.Of(Queued) + a.Of(Queues) + a.Of(Topics) + a.Of(Unfinished) + a.Of(Unread), a.budget.Load()
}

// Gauges adds the account's part to g.
func (a *Account) Gauges(g *metrics.Gauges) {
	g.HistoryBytes = a.Of(History)
	g.FrameBytes = a.Of(Encodings)
	g.QueueBytes = a.Of(Pinned) + a.Of(Queues)
	g.TopicBytes = a.Of(Topics)
	g.UnfinishedBytes = a.Of(Unfinished)
	g.UnreadBytes = a.Of(Unread)
	g.MemoryBudget = a.budget.Load()
	g.MemoryPressure = int(a.Pressure())
}

// Admit makes sure that the budget has room for so many bytes of messages. The error is
// a *wire.Problem: overloaded.
func (a *Account) Admit(bytes int64) error {
	a.noticePressure()
	// Fast path: there is room.
	if a.Used()+bytes <= a.inForce() {
		return nil
	}
	if time.Now().UnixNano() >= a.fullUntil.Load() && a.MakeRoom(bytes) {
		return nil
	}
	return a.usedUp("by what it may not let go of")
}

// AdmitTopics makes sure that topics, subscriptions and patterns, which cannot make
// room, take at most half of the budget. The error is as Admit's.
func (a *Account) AdmitTopics() error {
	if a.Of(Topics) <= a.budget.Load()/2 {
		return nil
	}
	return a.usedUp("by topics and subscriptions, as far as they may")
}

func (a *Account) usedUp(how string) *wire.Problem {
	a.metrics.Limited.WithLabelValues("memory").Inc()
	return wire.NewProblem(wire.CodeOverloaded, "retry later, or raise memory.budget",
		"the daemon's memory budget is used up %s", how).Retry(time.Second)
}

// fullFor is how long nobody looks for room again after there was none.
const fullFor = 100 * time.Millisecond

// Slack is which part of the budget is made free beyond what is needed, so that not
// every publish has to make room.
const Slack = 16

// MakeRoom makes room for so many bytes, and reports whether there is.
func (a *Account) MakeRoom(need int64) bool {
	a.makingRoom.Lock()
	defer a.makingRoom.Unlock()
	budget := a.inForce()
	if a.Used()+need <= budget {
		return true // another call made room
	}
	a.histories.ForgetEncodings()
	if a.Used()+need > budget {
		a.histories.EvictOldest(func() bool { return a.Used() <= budget-budget/Slack-need })
	}
	if a.Used()+need > budget {
		a.fullUntil.Store(time.Now().Add(fullFor).UnixNano())
		return false
	}
	return true
}

// spare is which part of the budget stays for messages however much it was shrunk:
// without any nothing can be published.
const spare = 8

// inForce is the budget as the settings have it, or as it was shrunk.
func (a *Account) inForce() int64 {
	held, budget := a.Held()
	shrunk := a.shrunk.Load()
	if shrunk == 0 {
		return budget
	}
	return min(budget, max(shrunk, held+budget/spare))
}

// Shrink bounds histories and encodings to so many bytes less than they use now, until
// Regrow. The oldest messages go.
func (a *Account) Shrink(bytes int64) {
	a.shrunk.Store(max(1, a.Used()-bytes))
	a.MakeRoom(0)
}

// grown is which part of the budget comes back with each Regrow.
const grown = 32

// Regrow gives back a part of what Shrink took.
func (a *Account) Regrow() {
	shrunk := a.shrunk.Load()
	if shrunk == 0 {
		return
	}
	budget := a.budget.Load()
	if shrunk = max(shrunk, a.Used()) + budget/grown; shrunk >= budget {
		shrunk = 0
	}
	a.shrunk.Store(shrunk)
}

// Limit is the collector's limit (GOMEMLIMIT); math.MaxInt64: none.
func Limit() int64 { return debug.SetMemoryLimit(-1) }

// Budget returns the budget to use: the configured one, or, if that is 0, the default
// or half of the limit, whichever is less. The other half is for what is not collected
// yet.
func Budget(configured int, limit int64) int64 {
	if configured != 0 {
		return int64(configured)
	}
	return min(DefaultBudget, limit/2)
}

// LogBudget logs a budget that the limit makes smaller than the default, and warns of
// one that leaves too little of the limit. At 8/11 the collector is at ease
// (deploy/README.md).
func LogBudget(log *zap.Logger, configured int, limit int64) {
	budget := Budget(configured, limit)
	sizes := []zap.Field{zap.Int64("budget", budget), zap.Int64("memory_limit", limit)}
	switch {
	case configured == 0 && budget < DefaultBudget:
		log.Info("memory.budget is half of GOMEMLIMIT", sizes...)
	case budget > limit/4*3:
		log.Warn("memory.budget takes more than three quarters of GOMEMLIMIT: when histories fill it they will be cut short; lower one or raise the other", sizes...)
	}
}
