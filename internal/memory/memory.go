// Package memory accounts for the memory that clients make the daemon use. It keeps the
// budget, measures the pressure, and decides what is freed in which order.
//
// Every kind counts against memory.budget (B). Histories and encodings use what the other
// kinds leave. Clients hold the other kinds:
//
//	kind        what                                             its own bound
//	history     messages that histories hold                     settings of topics
//	frames      encodings of messages                            none
//	queues      sessions, connections of the lane, queues,        settings of sessions
//	            messages that only they hold, unacked frames      and connections
//	topics      topics, subscriptions with their rates,           B/2
//	            patterns and members of presence themselves
//	unfinished  bodies and commands until they are carried out   B/4; an address B/8
//	unread      answers that clients have not read               B/4; an address B/8
//
// Memory is freed in this order:
//
//  1. The budget is full: encodings are dropped, then the oldest messages of all topics
//     are evicted. A message that still does not fit is refused (Admit). This is normal,
//     and no pressure.
//  2. The share of unfinished or unread bytes is full, or an address has half of it: a
//     body is refused (UnfinishedBytes), a list or history is refused (AdmitAnswer), and
//     the connections of the slowest readers are closed (UnreadBytes).
//  3. Pressure is high: new sessions, lists and histories are refused.
//  4. Pressure is critical: the connections of the slowest readers are closed. Then
//     sessions that do not read are trimmed: their queues keep only messages that a
//     history holds.
//  5. Pressure is critical because of the collector's limit (GOMEMLIMIT): histories
//     shrink until the pressure ends.
//
// A Watcher measures the pressure against two bounds: what clients hold against B, and
// what a collection cannot free against GOMEMLIMIT.
package memory

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Kind is a kind of memory. The metrics count Pinned and Queues as one.
type Kind int

// The kinds. Clients hold those from Queued on.
const (
	History    Kind = iota
	Local           // kind history, of topics that no log has
	Encodings       // kind frames
	Pinned          // messages in queues or writes that no history holds
	Queued          // messages in queues; they also count as History or Pinned
	Queues          // sessions and their queues, lists of unacked frames, connections of the lane
	Topics          // topics, subscriptions, patterns, members of presence
	Unfinished      // see UnfinishedBytes
	Unread          // see UnreadBytes
	kinds
)

// DefaultBudget is the budget unless the settings or GOMEMLIMIT say less.
const DefaultBudget = 512 << 20

// Histories frees memory.
type Histories interface {
	// ForgetEncodings drops all encodings. They can be made again.
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

	makingRoom sync.Mutex   // held by MakeRoom; taken before the locks of topics
	fullUntil  atomic.Int64 // Unix nanoseconds; MakeRoom is of no use before

	pressure atomic.Int32  // a Pressure
	pressed  chan struct{} // wakes the watcher; one token; never closed

	largest atomic.Int64 // see SetLargestBody

	readersMu sync.Mutex
	readers   map[*UnreadBytes]bool // those with bytes that wait; guarded by readersMu
}

// New returns an account with a budget in bytes.
func New(budget int64, histories Histories, m *metrics.Metrics) *Account {
	a := &Account{histories: histories, metrics: m, pressed: make(chan struct{}, 1), readers: make(map[*UnreadBytes]bool)}
	a.SetBudget(budget)
	return a
}

// SetBudget changes the budget. It frees nothing itself.
func (a *Account) SetBudget(bytes int64) { a.budget.Store(bytes) }

// Add adds bytes to a kind; fewer than 0 subtracts.
func (a *Account) Add(k Kind, bytes int64) {
	if a != nil {
		a.bytes[k].Add(bytes)
	}
}

// Of returns the bytes of a kind.
func (a *Account) Of(k Kind) int64 { return a.bytes[k].Load() }

// Used returns the bytes that count against the budget.
func (a *Account) Used() (bytes int64) {
	for k := range a.bytes {
		if Kind(k) != Queued {
			bytes += a.bytes[k].Load()
		}
	}
	return bytes
}

// Held returns the bytes that clients hold, so that no eviction frees them, and the
// budget.
func (a *Account) Held() (held, budget int64) {
	for k := Queued; k < kinds; k++ {
		held += a.bytes[k].Load()
	}
	return held, a.budget.Load()
}

// Gauges adds the state of the account to g.
func (a *Account) Gauges(g *metrics.Gauges) {
	g.Memory = map[string]int64{
		"history": a.Of(History) + a.Of(Local), "frames": a.Of(Encodings), "queues": a.Of(Pinned) + a.Of(Queues), "topics": a.Of(Topics),
		"unfinished": a.Of(Unfinished), "unread": a.Of(Unread),
	}
	g.MemoryBudget = a.budget.Load()
	g.MemoryPressure = int(a.Pressure())
}

// Admit checks that the given bytes of messages fit the budget, and evicts others for them.
// The error is a *wire.Problem: overloaded.
func (a *Account) Admit(bytes int64) error {
	// A burst must not fill the budget before the watcher looks.
	held, budget := a.Held()
	if held*16/budget >= heldSteps.critical && Pressure(a.pressure.Swap(int32(Critical))) < Critical {
		a.wakeWatcher()
	}
	// Fast path: they fit.
	if used := a.Used() + bytes; used <= budget && (a.shrunk.Load() == 0 || used <= a.inForce()) {
		return nil
	}
	if time.Now().UnixNano() >= a.fullUntil.Load() && a.MakeRoom(bytes) {
		return nil
	}
	return a.refuse(wire.CodeOverloaded, "retry later, or raise memory.budget", "the daemon's memory budget is used up by memory that it cannot free")
}

// AdmitTopics checks that topics, subscriptions and patterns use at most half of the
// budget. The error is as Admit's.
func (a *Account) AdmitTopics() error {
	if a.Of(Topics) <= a.budget.Load()/2 {
		return nil
	}
	return a.refuse(wire.CodeOverloaded, "retry later, or raise memory.budget",
		"the daemon's memory budget is used up by topics and subscriptions, which may use half of it")
}

func (a *Account) refuse(code wire.Code, remedy, detail string) *wire.Problem {
	a.metrics.Limited.WithLabelValues("memory").Inc()
	return problem.New(code, remedy, "%s", detail).Retry(time.Second)
}

// fullFor is how long Admit refuses messages after MakeRoom has failed.
const fullFor = 100 * time.Millisecond

// Slack is the part of the budget that evictions free beyond what is needed, so that not
// every publish has to evict.
const Slack = 16

// MakeRoom frees memory for need bytes, and reports whether they fit.
func (a *Account) MakeRoom(need int64) bool {
	a.makingRoom.Lock()
	defer a.makingRoom.Unlock()
	budget := a.inForce()
	if a.Used()+need <= budget {
		return true // another call freed memory
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

// spare is the part of the budget that stays for messages after Shrink. Without it,
// publishers could publish nothing.
const spare = 8

// inForce returns the budget of the settings, or the shrunk one.
func (a *Account) inForce() int64 {
	held, budget := a.Held()
	shrunk := a.shrunk.Load()
	if shrunk == 0 {
		return budget
	}
	return min(budget, max(shrunk, held+budget/spare))
}

// Shrink reduces the budget to the bytes in use now minus the given bytes, until Regrow. It
// evicts the oldest messages.
func (a *Account) Shrink(bytes int64) {
	a.shrunk.Store(max(1, a.Used()-bytes))
	a.MakeRoom(0)
}

// grown is the part of the budget that each Regrow gives back.
const grown = 32

// Regrow gives back a part of the budget that Shrink took.
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
// or half of the limit, whichever is less. The other half is for garbage.
func Budget(configured int, limit int64) int64 {
	if configured != 0 {
		return int64(configured)
	}
	return min(DefaultBudget, limit/2)
}

// LogBudget logs a budget that the limit makes smaller than the default. It warns of one
// above three quarters of the limit. At 8/11 the collector has enough free memory
// (deploy/README.md).
func LogBudget(log *zap.Logger, configured int, limit int64) {
	budget := Budget(configured, limit)
	sizes := []zap.Field{zap.Int64("budget", budget), zap.Int64("memory_limit", limit)}
	switch {
	case configured == 0 && budget < DefaultBudget:
		log.Info("memory.budget is half of GOMEMLIMIT", sizes...)
	case budget > limit/4*3:
		log.Warn("memory.budget is more than three quarters of GOMEMLIMIT: histories that fill it will be cut short; lower memory.budget or raise GOMEMLIMIT", sizes...)
	}
}

// A Pressure is how short of memory the daemon is.
type Pressure int32

// The pressures. Histories that fill the budget are no pressure: they can be evicted.
const (
	Calm     Pressure = iota
	High              // new sessions are refused, so that the open ones keep working
	Critical          // memory of clients that do not read is freed
)

// String returns the pressure's name in the log.
func (p Pressure) String() string { return [...]string{"none", "high", "critical"}[p] }

// A steps has the parts of a bound, in sixteenths, at which the pressure changes. It ends
// well below where it began: refused clients retry at once, and must not bring it back.
type steps struct{ calm, high, critical int64 }

// next returns the pressure that follows another one, with so much of the bound taken.
// Critical lasts until calm, so that the watcher frees memory until new clients fit.
func (s steps) next(after Pressure, taken, bound int64) Pressure {
	switch part := taken * 16 / bound; {
	case part >= s.critical:
		return Critical
	case part < s.calm:
		return Calm
	case part >= s.high:
		return max(after, High)
	}
	return after
}

// heldSteps are for the bytes that clients hold against the budget. Topics may use half of
// it without pressure. At the last step a quarter is left for histories, from which
// clients that read get their messages.
var heldSteps = steps{calm: 9, high: 10, critical: 12}

// limitSteps are for the bytes that a collection cannot free against the collector's
// limit. At the last step a collection frees so little that the next follows at once. The
// first step is above 8/11: deploy/README.md recommends a limit of which a full budget
// uses so much.
var limitSteps = steps{calm: 13, high: 14, critical: 15}

// Pressure returns how short of memory the daemon is. It is cheap.
func (a *Account) Pressure() Pressure {
	p := Pressure(a.pressure.Load())
	if p < High { // clients may open sessions faster than the watcher looks
		held, budget := a.Held()
		p = heldSteps.next(p, held, budget)
	}
	return p
}

// Tight reports whether queues must hold nothing more. It costs one load.
func (a *Account) Tight() bool { return Pressure(a.pressure.Load()) >= Critical }

// Press sets the pressure. The watcher calls it.
func (a *Account) Press(p Pressure) { a.pressure.Store(int32(p)) }

func (a *Account) wakeWatcher() {
	select {
	case a.pressed <- struct{}{}:
	default: // it is awake already
	}
}
