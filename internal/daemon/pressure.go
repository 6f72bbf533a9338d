package daemon

import (
	"context"
	"math"
	"runtime"
	runtimemetrics "runtime/metrics"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
)

// A pressure looks at how short of memory the daemon is, and has it give way in this
// order, before the others notice anything: no session is opened any more; then
// sessions that do not read are trimmed, by their topics' policies; and histories
// shrink, if it is the process that is short.
//
// Two bounds press. One is memory.budget, by what clients hold of it: whatever
// histories and encodings have makes room anyway. The other is the limit of the
// collector (GOMEMLIMIT), if there is one, by what it cannot free: what was alive at
// its last collection, with stacks and the runtime's own. What the process has from the
// system, which is what the limit is compared with, says nothing: the collector lets
// that grow up to the limit before it looks for garbage, as it should. The kernel's
// limits (a control group's) are not read: who sets one says GOMEMLIMIT below it.
//
// It belongs to watch's goroutine.
type pressure struct {
	broker   *broker.Broker
	sessions *session.Registry
	log      *zap.Logger
	memory   func() processMemory
	collect  func()

	level     broker.Pressure
	logged    broker.Pressure // the level, as the log has it
	loggedAt  time.Time
	budget    bound
	process   bound
	relieved  time.Time // when something was last done about it
	collected uint64    // collections up to then
}

func newPressure(b *broker.Broker, r *session.Registry, log *zap.Logger) *pressure {
	return &pressure{
		broker: b, sessions: r, log: log, memory: newMemoryReader(), collect: runtime.GC,
		budget: bound{steps: broker.Pressing}, process: bound{steps: collecting},
	}
}

// collecting are the steps of what cannot be collected in the collector's limit. At
// the last a collection makes so little room that the next follows at once; the first
// is above 8/11, which is what a full budget takes of the limit that
// deploy/README.md recommends, with its clients.
var collecting = broker.Steps{Calm: 13, High: 14, Critical: 15}

// patience is how long a pressure may be high before it counts as critical: sessions
// that fill just so much must not keep others out for good.
const patience = 10 * time.Second

const (
	// lookEvery is how often memory is looked at, and the most often that something is
	// done about one level. What fills the budget meanwhile says so itself.
	lookEvery = time.Second
	// lookCloserEvery is how often if there is a limit: histories that are larger may
	// fill it within a second, and to look takes less than 1 µs.
	lookCloserEvery = 100 * time.Millisecond
)

// watch looks until ctx ends.
func (p *pressure) watch(ctx context.Context) {
	timer := time.NewTimer(p.look(time.Now()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.broker.Pressed():
		case <-timer.C:
		}
		timer.Reset(p.look(time.Now()))
	}
}

// look looks once, does what is to be done, and says when to look again.
func (p *pressure) look(now time.Time) time.Duration {
	memory := p.see(now)
	due := now.Sub(p.relieved) >= lookEvery || p.found() > p.level
	if due && p.process.level == broker.Critical && memory.collections < p.collected+2 {
		p.collect() // what was let go of since the last collection is not known to be gone
		memory = p.see(now)
	}
	p.tell(p.found(), memory, now)
	if due {
		p.relieved, p.collected = now, memory.collections
		p.relieve(now)
	}
	if p.level > broker.Calm || memory.limit != math.MaxInt64 {
		return lookCloserEvery
	}
	return lookEvery
}

func (p *pressure) see(now time.Time) processMemory {
	memory := p.memory()
	held, budget := p.broker.Held()
	p.budget.see(held, budget, now)
	p.process.see(memory.kept, memory.limit, now)
	return memory
}

// found is the pressure that was last seen.
func (p *pressure) found() broker.Pressure { return max(p.budget.level, p.process.level) }

// tell puts a level in force, and logs what is new to the log: that it falls only a
// while after what was logged last, as who fills what was just trimmed would have it
// rise and fall many times a second.
func (p *pressure) tell(level broker.Pressure, memory processMemory, now time.Time) {
	p.broker.Press(level)
	p.level = level
	if level == p.logged || level < p.logged && now.Sub(p.loggedAt) < listen.LogEvery {
		return
	}
	log := p.log.Warn
	if level < p.logged {
		log = p.log.Info
	}
	fields := []zap.Field{
		zap.Stringer("was", p.logged), zap.Stringer("is", level),
		zap.Int64("clients_hold", p.budget.taken), zap.Int64("budget", p.budget.most),
	}
	if memory.limit != math.MaxInt64 {
		fields = append(fields, zap.Int64("process_keeps", memory.kept), zap.Int64("memory_limit", memory.limit))
	}
	log("memory pressure", fields...)
	p.logged, p.loggedAt = level, now
}

// relieve does what the pressure asks for.
func (p *pressure) relieve(now time.Time) {
	if p.level == broker.Critical {
		p.sessions.Trim(now, p.enough)
	}
	switch {
	case p.process.level == broker.Critical:
		p.broker.Shrink(p.process.excess())
	case !p.process.near():
		p.broker.Regrow()
	}
}

// enough reports whether no more is to be trimmed.
func (p *pressure) enough() bool {
	held, budget := p.broker.Held()
	return p.process.level < broker.Critical && broker.Pressing.Next(p.budget.level, held, budget) == broker.Calm
}

// A bound is how much of something is taken, and the pressure that makes.
type bound struct {
	steps       broker.Steps
	level       broker.Pressure
	since       time.Time // when it was last calm
	taken, most int64
}

func (b *bound) see(taken, most int64, now time.Time) {
	b.taken, b.most = taken, most
	b.level = b.steps.Next(b.level, taken, most)
	switch {
	case b.level == broker.Calm || b.since.IsZero():
		b.since = now
	case now.Sub(b.since) >= patience:
		b.level = broker.Critical
	}
}

// near reports whether it is one step from being more than calm.
func (b *bound) near() bool { return b.taken*16/b.most >= b.steps.Calm-1 }

// excess is how much less has to be taken to be calm, with a step to spare.
func (b *bound) excess() int64 { return b.taken - b.most/16*(b.steps.Calm-1) }

// A processMemory is what the process has, against what it may have.
type processMemory struct {
	kept  int64 // that no collection frees, as of the last
	limit int64 // math.MaxInt64: none; at least 1, though GOMEMLIMIT may be 0

	collections uint64 // so far
}

// Names of runtime/metrics. All classes without the heap's are what the process has
// besides: stacks and the runtime's own.
const (
	liveBytes     = "/gc/heap/live:bytes"
	limitBytes    = "/gc/gomemlimit:bytes"
	mappedBytes   = "/memory/classes/total:bytes"
	objectBytes   = "/memory/classes/heap/objects:bytes"
	unusedBytes   = "/memory/classes/heap/unused:bytes"
	freeBytes     = "/memory/classes/heap/free:bytes"
	releasedBytes = "/memory/classes/heap/released:bytes"
	collections   = "/gc/cycles/total:gc-cycles"
)

// newMemoryReader returns a function that reads the process's memory.
func newMemoryReader() func() processMemory {
	names := []string{liveBytes, limitBytes, mappedBytes, objectBytes, unusedBytes, freeBytes, releasedBytes, collections}
	samples := make([]runtimemetrics.Sample, len(names))
	for i, name := range names {
		samples[i].Name = name
	}
	return func() processMemory {
		runtimemetrics.Read(samples)
		value := func(i int) int64 { return int64(min(samples[i].Value.Uint64(), math.MaxInt64)) }
		besides := value(2) - value(3) - value(4) - value(5) - value(6)
		return processMemory{kept: value(0) + besides, limit: max(1, value(1)), collections: samples[7].Value.Uint64()}
	}
}
