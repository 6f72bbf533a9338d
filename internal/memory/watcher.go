package memory

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// A Watcher measures the pressure and frees memory, in the order of the package comment. It also
// returns memory to the kernel; see waste.
//
// Against GOMEMLIMIT it counts what was alive at the last collection, with stacks and the
// runtime's own memory. The size of the process does not matter: the collector lets it
// grow up to the limit. Limits of the kernel (cgroups) are not read: set GOMEMLIMIT below
// them.
type Watcher struct {
	account  *Account
	trim     Trim
	log      *zap.Logger
	process  func() processMemory
	collect  func()
	giveBack func() // collects, and returns what is free to the kernel

	// Owned by Watch's goroutine.
	level     Pressure
	logged    Pressure // the level, as the log has it
	loggedAt  time.Time
	cuts      rate.Sometimes // samples the log of cut readers
	unlogged  int            // readers cut since the last entry
	held      bound
	live      bound
	relieved  time.Time // when memory was last freed
	collected uint64    // collections up to then
	waste     waste
}

// Trim empties the queues of sessions that do not read, until enough returns true. It
// returns the number of those sessions.
type Trim func(now time.Time, enough func() bool) (trimmed int)

// NewWatcher returns a Watcher of the account. Call Watch.
func NewWatcher(a *Account, trim Trim, log *zap.Logger) *Watcher {
	return &Watcher{
		account: a, trim: trim, log: log, process: newProcessReader(), collect: runtime.GC, giveBack: debug.FreeOSMemory,
		cuts: rate.Sometimes{Interval: logEvery},
		held: bound{steps: heldSteps}, live: bound{steps: limitSteps},
	}
}

const (
	// patience is how long a pressure may be high before it counts as critical: sessions
	// that hold it there must not keep others out for ever.
	patience = 10 * time.Second

	// lookEvery is how often the watcher looks, and the most often that it frees memory at
	// one level. A full budget or share wakes it earlier.
	lookEvery = time.Second

	// lookCloserEvery is how often it looks with a GOMEMLIMIT: large histories may fill that
	// within a second, and a look takes less than 1 µs.
	lookCloserEvery = 100 * time.Millisecond

	// logEvery is how often a falling pressure and cut readers are logged: under an attack
	// they change many times a second.
	logEvery = 10 * time.Second
)

// Watch looks until ctx ends.
func (w *Watcher) Watch(ctx context.Context) {
	timer := time.NewTimer(w.look(time.Now()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.account.pressed:
		case <-timer.C:
		}
		timer.Reset(w.look(time.Now()))
	}
}

// look looks once, frees memory if that is due, and returns when to look again.
func (w *Watcher) look(now time.Time) time.Duration {
	memory := w.measure(now)
	due := now.Sub(w.relieved) >= lookEvery || w.measured() > w.level
	if due && w.live.level == Critical && memory.collections < w.collected+2 {
		w.collect() // memory that was freed since the last collection still counts as alive
		memory = w.measure(now)
	}
	w.enforce(memory, now)
	freed := w.cutReaders(now, due) // they will free so many bytes
	if due {
		w.relieved, w.collected = now, memory.collections
		if w.level == Critical && freed < w.excess() {
			w.trim(now, w.enough)
		}
		switch {
		case w.live.level == Critical:
			w.account.Shrink(w.live.excess())
		case w.live.taken*16/w.live.most < limitSteps.calm-1: // more than a step below the end of calm
			w.account.Regrow()
		}
	}
	if w.waste.isDue(memory.heap, now) {
		w.giveBack()
	}
	if w.level > Calm || memory.limit != math.MaxInt64 {
		return lookCloserEvery
	}
	return lookEvery
}

func (w *Watcher) measure(now time.Time) processMemory {
	memory := w.process()
	held, budget := w.account.Held()
	w.held.measure(held, budget, now)
	w.live.measure(memory.live, memory.limit, now)
	return memory
}

// measured returns the pressure that was last measured.
func (w *Watcher) measured() Pressure { return max(w.held.level, w.live.level) }

// enforce applies the measured level, and logs a change. It logs a fall only logEvery after
// the last entry.
func (w *Watcher) enforce(memory processMemory, now time.Time) {
	level := w.measured()
	w.account.Press(level)
	w.level = level
	if level == w.logged || level < w.logged && now.Sub(w.loggedAt) < logEvery {
		return
	}
	log := w.log.Warn
	if level < w.logged {
		log = w.log.Info
	}
	fields := []zap.Field{
		zap.Stringer("was", w.logged), zap.Stringer("is", level),
		zap.Int64("clients_hold", w.held.taken), zap.Int64("budget", w.held.most),
	}
	if memory.limit != math.MaxInt64 {
		fields = append(fields, zap.Int64("process_keeps", memory.live), zap.Int64("memory_limit", memory.limit))
	}
	log("memory pressure", fields...)
	w.logged, w.loggedAt = level, now
}

// enough reports whether enough sessions were trimmed.
func (w *Watcher) enough() bool {
	held, budget := w.account.Held()
	return w.live.level < Critical && heldSteps.next(w.held.level, held, budget) == Calm
}

// excess returns how many bytes must be freed until it is calm.
func (w *Watcher) excess() int64 { return max(w.held.excess(), w.live.excess()) }

// cutReaders cuts the slowest readers if their share is full, or if the pressure is
// critical and freeing is due. It returns how many bytes that will free.
func (w *Watcher) cutReaders(now time.Time, due bool) int64 {
	var excess int64
	if w.level == Critical && due {
		excess = w.excess()
	}
	cut, freed := w.account.cutSlowest(now, excess)
	if w.unlogged += cut; w.unlogged > 0 {
		w.cuts.Do(func() {
			w.log.Warn("memory is short: connections of clients that do not read were closed",
				zap.Int("connections", w.unlogged), zap.Int64("unread", w.account.Of(Unread)), zap.Int64("share", w.account.share()))
			w.unlogged = 0
		})
	}
	return freed
}

// A bound has how much of a budget or limit is taken, and the resulting pressure.
type bound struct {
	steps       steps
	level       Pressure
	since       time.Time // when it was last calm
	taken, most int64
}

func (b *bound) measure(taken, most int64, now time.Time) {
	b.taken, b.most = taken, most
	b.level = b.steps.next(b.level, taken, most)
	switch {
	case b.level == Calm || b.since.IsZero():
		b.since = now
	case now.Sub(b.since) >= patience:
		b.level = Critical
	}
}

// excess returns how much must be freed to be calm, with a step to spare.
func (b *bound) excess() int64 { return b.taken - b.most/16*(b.steps.calm-1) }

// A processMemory has the memory of the process and its limit.
type processMemory struct {
	live  int64 // that the last collection could not free, and other memory
	limit int64 // math.MaxInt64: none; at least 1, though GOMEMLIMIT may be 0

	collections uint64 // so far
	heap        heapMemory
}

// newProcessReader returns a function that reads the process's memory. The memory besides
// the heap is that of stacks and of the runtime.
func newProcessReader() func() processMemory {
	samples := []runtimemetrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/gomemlimit:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	return func() processMemory {
		runtimemetrics.Read(samples)
		value := func(i int) int64 { return int64(min(samples[i].Value.Uint64(), math.MaxInt64)) }
		besides := value(3) - value(4) - value(5) - value(6) - value(7)
		return processMemory{
			live: value(0) + besides, limit: max(1, value(1)), collections: samples[2].Value.Uint64(),
			heap: heapMemory{objects: value(4), marked: value(0), free: value(6)},
		}
	}
}
