//go:build !race

// The simulator runs one goroutine at a time: the race detector finds nothing, and takes ten
// times as long.

package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/entry"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A world has one folder, the daemons that run on it one after the other, and their clients.
// Everything in it follows from the seed.
type world struct {
	*promises
	seed  uint64
	rng   *rand.Rand
	fs    *simFS
	cfg   WALConfig
	began time.Time

	epoch  string
	boot   int        // number of the kernel's run
	ended  bool       // the last process has ended in order
	closed bool       // so had the one before it
	silent bool       // a planted bug: a loss is not announced
	hasty  bool       // a planted bug: a checkpoint does not wait for a batch that is applied
	faulty bool       // calls of the file system fail now and then
	saved  []*message // were fragile when the checkpoint began
	due    extent     // durable at the last sync of this process: the next one puts it into the mark
	marked extent     // the mark reaches at least as far
	losses int        // so many short lives end one after the other with a loss of power
	short  bool       // this life is one of them
	hurt   *damage    // of the newest segment; nil: none, or a start has accepted it
	begins func()     // begins a checkpoint while a batch is applied, once; nil: none

	metrics *metrics.Metrics
	process *process
	clients []*client
	pending []*try // without an answer

	report     report
	transcript []line
}

// A damage is what a loss of power should not do to a file.
type damage struct {
	kind, name string
	whole      *simFile // as it should be
	prev       uint64   // the last entry before the file
}

// An extent is the newest segment and its size. Zero: unknown.
type extent struct {
	name string
	size int
}

func (w *world) extent() extent {
	name := w.fs.newestSegment()
	return extent{name, len(w.fs.names[name].cache)}
}

// A report counts what happened.
type report struct {
	seeds, lives, operations, acked, refused, delivered int

	gaps, faults map[string]int
}

func newReport() report { return report{gaps: make(map[string]int), faults: make(map[string]int)} }

func (r *report) add(o report) {
	r.seeds++
	r.lives += o.lives
	r.operations += o.operations
	r.acked += o.acked
	r.refused += o.refused
	r.delivered += o.delivered
	for reason, n := range o.gaps {
		r.gaps[reason] += n
	}
	for kind, n := range o.faults {
		r.faults[kind] += n
	}
}

// String returns a table.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d lives, %d operations, %d messages published, %d refused, %d delivered\n", r.lives, r.operations, r.acked, r.refused, r.delivered)
	for _, kind := range sortedKeys(r.faults) {
		fmt.Fprintf(&b, "  %-28s %8d\n", kind, r.faults[kind])
	}
	for _, reason := range sortedKeys(r.gaps) {
		fmt.Fprintf(&b, "  %-28s %8d\n", "gap: "+reason, r.gaps[reason])
	}
	return b.String()
}

// A process is one run of the daemon.
type process struct {
	broker   *broker.Broker
	wal      *WAL
	tap      *tap
	registry *session.Registry
}

// A client is a follower that has a session now and then.
type client struct {
	*follower
	session *session.Session // nil: it has left
	opened  time.Time
	saved   *follower // an earlier state
}

// A tap is the log as the broker sees it. It knows which calls have no answer yet. Answers
// are delivered one after the other, while no other goroutine runs: each may wake some.
type tap struct {
	*WAL
	world   *world
	waiting []*call // oldest first
	sweeps  bool    // changes are collected, not appended
	swept   []broker.Entry
	ended   bool // the process has ended
}

// A call is a call of Append.
type call struct {
	done      func([]broker.Result)
	deletions []*deletion // one for each entry; nil: it is none
	results   []broker.Result
}

// Append implements broker.Log.
func (l *tap) Append(e []broker.Entry, done func([]broker.Result)) {
	if l.sweeps {
		l.swept = append(l.swept, e...)
		return
	}
	c := &call{done: done, deletions: make([]*deletion, len(e))}
	for i, entry := range e {
		if topic := entry.Message.Position.Topic; entry.Op == broker.OpDelete {
			c.deletions[i] = &deletion{life: l.world.life}
			l.world.deletions[topic] = append(l.world.deletions[topic], c.deletions[i])
		}
	}
	l.waiting = append(l.waiting, c)
	if l.ended {
		c.results = failed(len(e), errDown)
		return
	}
	l.WAL.Append(e, func(results []broker.Result) {
		if c.results != nil {
			broken("the callback of an entry was called twice")
		}
		c.results = results
	})
}

// deliver delivers the answers that have come.
func (l *tap) deliver() {
	synctest.Wait()
	for i := 0; i < len(l.waiting); {
		c := l.waiting[i]
		if c.results == nil {
			i++
			continue
		}
		l.waiting = slices.Delete(l.waiting, i, i+1)
		for i, r := range c.results {
			if d := c.deletions[i]; d != nil && !errors.Is(r.Err, errDown) {
				d.acked, d.failed, d.offset, d.at = r.Err == nil, r.Err != nil, r.Position.Offset, time.Now()
			}
			if r.Err == nil {
				l.world.reached = max(l.world.reached, r.Position.Offset)
			}
		}
		c.done(c.results)
		synctest.Wait()
	}
}

// end ends the process: calls get no answer any more.
func (l *tap) end() {
	l.ended = true
	for _, c := range l.waiting {
		c.results = failed(len(c.deletions), errDown)
	}
	l.deliver()
}

const maxSize = 4096

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 17))
	cfg := broker.Config{
		HistoryMessages:   3 + rng.IntN(30),
		HistoryAge:        time.Duration(2+rng.IntN(60)) * time.Second,
		IdempotencyWindow: time.Duration(2+rng.IntN(20)) * time.Second,
	}
	losses := 0
	if rng.IntN(12) == 0 {
		losses, cfg.HistoryMessages, cfg.HistoryAge = 40, 1000, time.Hour
	}
	w := &world{
		promises: newPromises(cfg), seed: seed, rng: rng, fs: newSimFS(rng), began: time.Now(), metrics: metrics.New("test"),
		report: newReport(), losses: losses,
	}
	w.faulty = rng.IntN(2) == 0
	numbers := rand.New(rand.NewPCG(seed, 18))
	w.cfg = WALConfig{
		FS: w.fs, Seed: numbers.Uint64,
		segmentBytes: int64(1024 << rng.IntN(4)), checkpointBytes: int64(2048 << rng.IntN(5)),
		leaseNumbers: uint64(16 << rng.IntN(5)), pendingBytes: int64(8192 << rng.IntN(4)),
		Metrics: &w.metrics.Store,
	}
	switch rng.IntN(8) {
	case 0:
		w.cfg.Bytes, w.tight = int64(16<<10+rng.IntN(64<<10)), true
	case 1:
		cfg.MemoryBudget, w.tight = 48<<10+rng.IntN(128<<10), true
		w.config = cfg.WithDefaults()
	}
	w.fs.say, w.fs.beside = w.say, w.meanwhile
	if rng.IntN(6) == 0 {
		w.fs.space = 32<<10 + rng.IntN(96<<10)
		if rng.IntN(2) == 0 {
			w.cfg.checkpointBytes, cfg.HistoryMessages = 1<<20, 3 // only a full disk makes one due
			w.config = cfg.WithDefaults()
		}
	}
	w.cfg.Sync = w.anyMode()
	return w
}

// importState makes the state of a daemon with SyncStop, with which the log begins.
func (w *world) importState() {
	b := broker.New(w.config, w.metrics, time.Now())
	w.process = &process{broker: b}
	for range w.rng.IntN(60) {
		switch w.rng.IntN(20) {
		case 0:
			if state, err := b.Delete(w.anyTopic(), time.Now()); err == nil {
				d := &deletion{acked: true, offset: state.Position.Offset, at: time.Now()}
				w.deletions[state.Topic] = append(w.deletions[state.Topic], d)
				w.imported = max(w.imported, d.offset)
			}
		case 1:
			time.Sleep(w.config.HistoryAge / 3)
			b.Sweep(time.Now())
		default:
			w.imported++ // at least as high as any topic
			w.try(w.newAttempt())
			w.collect()
		}
	}
	w.process = nil
	for _, m := range w.fragile() {
		m.durable = true
	}
	cfg := w.cfg
	cfg.Sync = SyncStop
	l := NewStopLog(cfg, b)
	err := l.wal.open(func(broker.Entry) error { return nil }, time.Now())
	if err = cmp.Or(err, l.wal.writeState()); err != nil {
		panic(err)
	}
	l.wal.abandon()
	w.reached = max(w.reached, w.imported)
}

func (w *world) anyMode() SyncMode {
	return []SyncMode{SyncEverySecond, SyncEverySecond, SyncAlways, SyncNever}[w.rng.IntN(4)]
}

// say adds a line to the transcript. It is formatted only if somebody reads it.
func (w *world) say(format string, args ...any) {
	w.transcript = append(w.transcript, line{w.life, time.Since(w.began), format, args})
}

// A line is one line of a transcript.
type line struct {
	life   int
	at     time.Duration
	format string
	args   []any
}

func (l line) String() string {
	return fmt.Sprintf("%3d %8.3f  ", l.life, l.at.Seconds()) + fmt.Sprintf(l.format, l.args...)
}

// story returns the transcript of the last two lives.
func (w *world) story() string {
	var b strings.Builder
	for i, l := range w.transcript {
		if i == 0 || l.life >= w.life-1 || os.Getenv("CRASH_ALL") != "" {
			fmt.Fprintln(&b, l)
		}
	}
	return b.String()
}

// The simulation runs as long as these say, in the environment:
//
//	CRASH_SEED=17      one seed, with its transcript
//	CRASH_SEEDS=1000   so many seeds
//	CRASH_BASE=5       from this seed on; default: a random one if tests are exhaustive
//
// Without them, it runs for 30 s if tests are exhaustive, else a few seeds.
const (
	fewSeeds = 40
	longRun  = 30 * time.Second
)

func numberFrom(t *testing.T, variable string) (n uint64, ok bool) {
	text, ok := os.LookupEnv(variable)
	if ok {
		var err error
		n, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, variable)
	}
	return n, ok
}

// Daemons crash while clients publish, delete, read and resume: they are killed, or power is
// lost, or the disk fails. What clients were told stays true.
func TestACrashBreaksNoPromise(t *testing.T) {
	if seed, ok := numberFrom(t, "CRASH_SEED"); ok {
		w, failure := simulate(t, seed, untuned)
		t.Log(w.story())
		require.NoError(t, failure, "seed %d", seed)
		return
	}
	seeds, bounded := numberFrom(t, "CRASH_SEEDS")
	base, given := numberFrom(t, "CRASH_BASE")
	if !given && exhaustive.On() {
		base = rand.Uint64N(1e12)
	}
	until := time.Now().Add(longRun)
	if !exhaustive.On() && !bounded {
		seeds, bounded = fewSeeds, true
	}
	t.Logf("the first seed is %d", base)
	var next atomic.Uint64
	sum, mu := newReport(), sync.Mutex{}
	t.Run("cores", func(t *testing.T) {
		for core := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(core), func(t *testing.T) {
				t.Parallel()
				for !t.Failed() {
					n := next.Add(1) - 1
					if bounded && n >= seeds || !bounded && !time.Now().Before(until) {
						return
					}
					w, failure := simulate(t, base+n, untuned)
					mu.Lock()
					sum.add(w.report)
					mu.Unlock()
					if failure != nil {
						require.NoError(t, failure, "CRASH_SEED=%d runs it again\n%s", base+n, w.story())
					}
				}
			})
		}
	})
	t.Logf("%d seeds: %s", sum.seeds, &sum)
}

func untuned(*world) {}

// The simulator finds bugs that others had.
func TestPlantedBugsAreFound(t *testing.T) {
	for bug, plant := range map[string]func(w *world){
		"a segment is overwritten at boot":              func(w *world) { w.fs.bugs.overwrites = true },
		"a torn tail of a quiet topic":                  func(w *world) { w.silent = true },
		"an acknowledged deletion comes back":           func(w *world) { w.fs.bugs.unsynced = entry.Delete },
		"a checkpoint needs a segment that was removed": func(w *world) { w.fs.bugs.removesSoon = true },
		"a lease is used before it is synced":           func(w *world) { w.fs.bugs.unsynced = kindLease },
		"a log ends before its mark":                    func(w *world) { w.fs.bugs.hidesMark = true },
		"a full disk stays full":                        func(w *world) { w.fs.bugs.noSpace = w.isFullCheckpoint },
		"a checkpoint does not wait for a batch":        func(w *world) { w.hasty = true },
	} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(1000) {
				if _, failure := simulate(t, seed, plant); failure != nil {
					t.Logf("seed %d finds it: %v", seed, failure)
					return
				}
			}
			require.Fail(t, "no seed finds it")
		})
	}
}

// isFullCheckpoint reports whether a new file is a checkpoint that a full disk needs.
func (w *world) isFullCheckpoint(name string) bool {
	return strings.HasSuffix(name, checkpointSuffix+unfinishedSuffix) && w.process != nil && w.process.wal.faults.full != nil
}

// simulate runs the world of a seed. It returns the broken promise, or nil.
func simulate(t *testing.T, seed uint64, tune func(*world)) (w *world, failure error) {
	synctest.Test(t, func(*testing.T) {
		w = newWorld(seed)
		tune(w)
		defer func() {
			switch why := recover().(type) {
			case nil:
			case violation:
				failure = errors.New(string(why))
				w.fs.kill()
				w.process.end()
			default:
				w.say("panic: %v", why)
				fmt.Println(w.story())
				panic(why)
			}
			w.report.faults = w.fs.injected
		}()
		w.run()
	})
	return w, failure
}

const (
	fewestCrashes    = 3
	fewestOperations = 200
	manyLives        = 100 // more, but for the losses in a row, mean that the daemon does not serve again
)

func (w *world) run() {
	w.say("seed %d: sync %s, %d messages and %v a history, keys %v, segments %d, checkpoints %d, lease %d, bytes %d, memory %d, faults %v",
		w.seed, w.cfg.Sync, w.config.HistoryMessages, w.config.HistoryAge, w.config.IdempotencyWindow,
		w.cfg.segmentBytes, w.cfg.checkpointBytes, w.cfg.leaseNumbers, w.cfg.Bytes, w.config.MemoryBudget, w.faulty)
	if w.rng.IntN(6) == 0 {
		w.importState()
	}
	for crashes := 0; crashes < fewestCrashes+w.losses || w.report.operations < fewestOperations; crashes++ {
		if w.short = crashes > 0 && crashes <= w.losses; w.short && crashes == w.losses {
			w.fs.injected["many losses in a row"]++
		}
		if w.start() {
			w.live()
		}
		w.crash()
		w.tamper()
	}
	w.fs.heal()
	w.faulty = false
	w.startAgain()
	w.wantService()
	w.audit()
	w.end()
}

// start starts a daemon. It reports false if the process was killed, or if a call of the
// file system failed: then it does not serve.
func (w *world) start() bool {
	w.life++
	if w.report.lives++; w.report.lives > manyLives+w.losses {
		broken("after %d lives there were only %d operations", w.report.lives, w.report.operations)
	}
	w.fs.boot()
	w.due, w.closed, w.ended = extent{}, w.ended, false
	if w.cfg.BootID == "" {
		w.outages++ // the daemon before did not know the kernel's run
	}
	w.cfg.BootID = fmt.Sprint("boot", w.boot)
	if w.rng.IntN(20) == 0 {
		w.cfg.BootID = ""
		w.outages++
	}
	if w.rng.IntN(10) == 0 {
		w.cfg.Sync = w.anyMode()
	}
	if w.rng.IntN(5) == 0 {
		w.fs.untilCrash = 1 + w.rng.IntN(40)
	}
	if w.faulty && w.rng.IntN(4) == 0 {
		w.armOne()
	}
	if w.cfg.Sync == SyncNever {
		w.marked = extent{} // a loss of power may take what its mark names
	}
	w.say("process starts: boot id %q, sync %s, files %s", w.cfg.BootID, w.cfg.Sync, w.fs.listing())
	before := w.fs.failures()
	p, found, err := w.launch()
	if w.hurt != nil && w.endDamage(p != nil, err != nil && w.fs.failures() == before) {
		return false
	}
	switch {
	case p == nil && err == nil:
		return false // killed
	case err != nil && w.fs.failures() == before:
		broken("the daemon refuses to start: %v", err)
	case err != nil:
		w.say("the daemon does not start: %v", err)
		return false
	}
	w.process = p
	w.say("it serves: %+v", found)
	if w.epoch == "" {
		w.epoch = found.Epoch
	}
	if w.rng.IntN(2) == 0 {
		p.broker.KeepTopics(time.Now().Add(time.Minute))
	}
	w.audit()
	return true
}

// launch starts a daemon. It returns nothing if the process was killed.
func (w *world) launch() (p *process, found Recovery, err error) {
	cfg := w.cfg
	cfg.Recovered = func(r Recovery) { found = r }
	p = &process{}
	p.broker = broker.NewWithLog(w.config, w.metrics, time.Now(), func(b *broker.Broker) broker.Log {
		p.wal = NewWAL(cfg, b)
		p.tap = &tap{WAL: p.wal, world: w}
		return p.tap
	})
	killed := w.fs.guard(func() {
		err = p.wal.open(func(e broker.Entry) error {
			if w.silent && e.Op == broker.OpEpoch && e.State.Lost > 0 {
				return nil
			}
			if w.begins != nil {
				w.begins()
			}
			_, err := p.broker.Apply(e)
			return err
		}, time.Now())
	})
	if killed || err != nil {
		return nil, found, err
	}
	synctest.Wait()
	p.registry = session.NewRegistry(session.Config{InactivityTimeout: 1000 * time.Hour}, p.broker, w.metrics)
	return p, found, nil
}

// startAgain starts a daemon whose file system has no faults.
func (w *world) startAgain() {
	for !w.start() {
		w.crash()
	}
	w.fs.untilCrash = 0
}

// live has clients and publishers use the daemon until it crashes.
func (w *world) live() {
	length := 20 + w.rng.IntN(120)
	if w.short {
		length = 1 + w.rng.IntN(6)
	}
	if w.fs.untilCrash == 0 && w.rng.IntN(2) == 0 {
		w.fs.untilCrash = 1 + w.rng.IntN(200)
	}
	if w.short && w.fs.guard(w.separate) {
		return
	}
	for range length {
		w.report.operations++
		time.Sleep(time.Millisecond)
		if w.fs.guard(w.operate) {
			return
		}
	}
	if w.rng.IntN(4) == 0 {
		w.fs.guard(w.end)
	}
}

// separate makes an entry durable: two losses without one between them are one.
func (w *world) separate() {
	w.publish()
	w.settle()
	w.sync()
}

// crash ends the process: it is killed, or power is lost.
func (w *world) crash() {
	w.fs.kill()
	w.process.end()
	w.process = nil
	w.collect()
	if w.short || w.rng.IntN(2) == 0 {
		w.boot++
		w.say("power is lost")
		w.outages++
		w.promises.losePower()
		w.fs.losePower()
		if !w.ended {
			w.marked = extent{} // the name of the mark may not be durable
		}
		if w.hurt == nil && w.rng.IntN(4) == 0 {
			w.hurt = w.beginDamage()
		}
	} else {
		w.say("the process has ended")
		w.fs.injected["killed"]++
		if w.fs.names[failedSyncName] != nil {
			w.outages++
		}
		if w.fs.reverted {
			w.promises.losePower()
		}
	}
	for _, c := range w.clients {
		c.session = nil
		if c.saved != nil && w.rng.IntN(2) == 0 {
			c.follower, c.saved = c.saved, nil
		}
	}
	if w.rng.IntN(2) == 0 {
		w.fs.heal()
	}
	time.Sleep(time.Duration(1+w.rng.IntN(2000)) * time.Millisecond)
}

// beginDamage damages the newest segment as a disk does that breaks its word: one bit of its
// header flips, or that is zeros; or if the mark names the segment, it is missing.
func (w *world) beginDamage() *damage {
	name := w.fs.newestSegment()
	number, _ := numberOf(name, segmentSuffix)
	disk := newSimFS(w.rng) // without faults
	disk.names = w.fs.names
	l, _, err := openFile(disk, name, segmentMagic, number)
	if err != nil {
		return nil // there is none
	}
	d := &damage{"the newest segment has no header", name, w.fs.names[name], l.prev}
	r := &recovering{wal: &WAL{fs: disk, apply: func(broker.Entry) error { return nil }}}
	if m, _, err := r.readMark(); err == nil && m.segment == number && w.rng.IntN(2) == 0 {
		d.kind = "the newest segment is gone"
		w.fs.removeNewest()
	} else {
		content := bytes.Clone(d.whole.cache)
		if w.rng.IntN(2) == 0 {
			content[w.rng.IntN(int(l.at))] ^= 1 << w.rng.IntN(8)
		} else {
			clear(content[:l.at])
		}
		w.fs.names[name] = &simFile{cache: content, disk: bytes.Clone(content)}
		w.fs.disk[name] = w.fs.names[name]
	}
	if w.closed {
		d.kind += ", after a clean end"
	}
	w.say("%s: %s, whose entries follow %d", d.kind, name, d.prev)
	return d
}

// endDamage reports whether a start was refused because of the damage: then the segment is put
// back. Else what it had may be lost, and is announced.
func (w *world) endDamage(serves, refused bool) bool {
	d := w.hurt
	switch {
	case refused:
		w.say("it is refused, and %s is put back", d.name)
		w.fs.injected[d.kind+": refused"]++
		w.fs.names[d.name], w.fs.disk[d.name] = d.whole, d.whole
		w.hurt = nil
		return true
	case serves:
		w.fs.injected[d.kind+": announced"]++
		w.hurt = nil
	}
	w.promises.loseAfter(d.prev) // also if the start was killed: it may have gone on without the segment
	return false
}

// tamper removes the newest segment, or puts an older copy of it in its place, which is shorter:
// a start is refused. Then the files are as before.
func (w *world) tamper() {
	if w.marked.name == "" || w.rng.IntN(3) > 0 {
		return
	}
	names, disk, moves, faults, full, space := w.fs.names, w.fs.disk, w.fs.moves, w.fs.faults, w.fs.full, w.fs.space
	w.fs.names, w.fs.disk, w.fs.faults, w.fs.full = maps.Clone(names), maps.Clone(disk), nil, false
	segment := w.fs.names[w.marked.name]
	for name := w.fs.newestSegment(); name >= w.marked.name; name = w.fs.newestSegment() {
		w.fs.removeNewest()
	}
	kind := "the newest segment is missing"
	if w.rng.IntN(2) == 0 && segment != nil && !w.faulty && space == 0 { // a write that failed leaves bytes that the mark does not have
		kind = "the newest segment is an older copy"
		w.fs.names[w.marked.name] = &simFile{cache: segment.cache[:w.rng.IntN(w.marked.size)]}
	}
	w.say("%s: %s of %d bytes; files %s", kind, w.marked.name, w.marked.size, w.fs.listing())
	w.fs.injected[kind]++
	w.fs.space = 0
	w.fs.boot()
	if p, _, err := w.launch(); err == nil {
		w.process = p
		broken("%s, and the daemon starts", kind)
	}
	w.fs.kill()
	w.fs.names, w.fs.disk, w.fs.moves, w.fs.faults, w.fs.full, w.fs.space = names, disk, moves, faults, full, space
}

// end ends the calls of a process that get no answer.
func (p *process) end() {
	if p != nil {
		p.tap.end()
		if c := p.wal.checkpoint; c != nil {
			c.stop() // it has a goroutine
		}
		p.broker.Close()
	}
}

// end ends the daemon in order.
func (w *world) end() {
	w.leaveAll()
	w.settle()
	failures := w.fs.failures()
	err := w.process.wal.close(time.Now())
	w.say("the daemon ends in order: %v", err)
	if err == nil {
		secure(w.fragile())
		if w.fs.failures() == failures {
			w.marked, w.ended = w.extent(), true
		}
	}
	synctest.Wait()
	w.collect()
	if len(w.pending) > 0 {
		broken("the daemon has ended, and a publish got no answer")
	}
}

// collect takes the answers that have come.
func (w *world) collect() {
	if w.process != nil && w.process.tap != nil {
		w.process.tap.deliver()
	}
	synctest.Wait()
	left := w.pending[:0]
	for _, t := range w.pending {
		switch {
		case !t.answered:
			left = append(left, t)
			continue
		case errors.Is(t.err, errDown):
			t.answered = false
			w.unknown[t.attempt.topic()]++
		case t.err != nil:
			w.report.refused++
			w.unknown[t.attempt.topic()]++
			w.say("  publish %.12s fails: %v", t.attempt.message.Data, t.err)
		default:
			w.report.acked++
			w.say("  publish %.12s got %s", t.attempt.message.Data, t.published.Position)
		}
		w.answer(t)
		if t.err == nil && w.cfg.Sync == SyncAlways {
			w.at(t.attempt.topic(), t.published.Position.Offset).durable = true
		}
	}
	w.pending = left
}

// operate does one of the things that happen to a daemon.
func (w *world) operate() {
	switch n := w.rng.IntN(100); {
	case n < 34:
		w.publish()
	case n < 40:
		w.retry()
	case n < 44:
		w.delete()
	case n < 50:
		w.sweep()
	case n < 70:
		w.poll()
	case n < 76:
		w.leave()
	case n < 82:
		w.sync()
	case n < 90:
		w.checkpoint(1 + w.rng.IntN(4))
	case n < 95:
		w.pass()
	default:
		w.upset()
	}
	if w.rng.IntN(4) > 0 {
		w.settle()
	}
}

// step writes a batch. A checkpoint that is due may begin while it is applied.
func (w *world) step() (more bool) {
	l, done := w.process.wal, make(chan any, 1)
	if w.fs.beside == nil || w.rng.IntN(4) > 0 || l.checkpoint != nil || !l.isCheckpointDue() {
		return l.step(time.Now()) // also while the other goroutine syncs
	}
	begun := false
	w.begins = func() {
		w.begins, begun, w.saved = nil, true, w.fragile()
		begin := func() {
			defer func() { done <- recover() }()
			w.say("    meanwhile a checkpoint begins")
			l.checkpointStep(time.Now())
		}
		if w.hasty {
			l.applying.Unlock()
			begin()
			l.applying.Lock()
			return
		}
		go begin()
		for range 100 {
			runtime.Gosched() // it runs until it waits
		}
	}
	defer func() { w.begins = nil }()
	if more = l.step(time.Now()); begun {
		if why := <-done; why != nil {
			panic(why)
		}
		w.fs.injected["a checkpoint begins while a batch is applied"]++
	}
	return more
}

// settle has the log write what waits.
func (w *world) settle() {
	for n := 0; w.step(); n++ {
		w.collect()
		if n > 1000 {
			broken("the log has more to write after 1000 steps")
		}
	}
	w.collect()
}

func (w *world) anyTopic() string {
	return fmt.Sprint("t.", min(w.rng.IntN(8), w.rng.IntN(8), w.rng.IntN(16)))
}

// publish begins publishes: one, or several at once or in one request.
func (w *world) publish() {
	if w.rng.IntN(4) > 0 {
		w.try(w.newAttempt())
		return
	}
	var all []*attempt
	for range 1 + w.rng.IntN(12) {
		all = append(all, w.newAttempt())
	}
	if all[0].message.ID != "" && w.rng.IntN(4) == 0 {
		all = append(all, all[0]) // the same key twice
	}
	if w.rng.IntN(2) == 0 {
		w.try(all...)
		return
	}
	for _, a := range all {
		w.try(a)
	}
}

func (w *world) newAttempt() *attempt {
	number := len(w.attempts)
	size := w.rng.IntN(60)
	if w.rng.IntN(8) == 0 {
		size = w.rng.IntN(maxSize / 2)
	}
	m := &wire.Message{
		Position: wire.Position{Topic: w.anyTopic()}, Data: fmt.Appendf(nil, `"%d %s"`, number, strings.Repeat("x", size)),
	}
	a := &attempt{message: m, above: max(w.newest, w.reached)}
	if w.rng.IntN(3) == 0 {
		m.ID = fmt.Sprint("id", number)
	}
	if w.rng.IntN(4) == 0 {
		m.Key, m.Client = fmt.Sprint("k", w.rng.IntN(3)), "client"
	}
	if w.rng.IntN(4) == 0 {
		m.By, m.Claims = "alice", []byte(`{"name":"Alice"}`)
	}
	if w.rng.IntN(8) == 0 {
		m.Type = "text/plain"
	}
	if w.rng.IntN(8) == 0 {
		a.ttl = time.Duration(1+w.rng.IntN(5000)) * time.Millisecond
	}
	w.attempts = append(w.attempts, a)
	return a
}

// retry tries an attempt with a key again: one that has failed, or one that was answered.
func (w *world) retry() {
	for range 20 {
		if len(w.attempts) == 0 {
			return
		}
		back := min(w.rng.IntN(len(w.attempts)), w.rng.IntN(len(w.attempts)), w.rng.IntN(len(w.attempts)))
		a := w.attempts[len(w.attempts)-1-back]
		if a.message.ID != "" {
			w.try(a)
			return
		}
	}
}

// try publishes messages one after the other, and returns when they wait for the log.
func (w *world) try(all ...*attempt) {
	b := w.process.broker
	var tries []*try
	for _, a := range all {
		t := &try{attempt: a, life: w.life}
		a.tries = append(a.tries, t)
		tries = append(tries, t)
		m := a.message
		w.say("publish %.12s to %s, %d bytes, key %q, ttl %v, one of %d", m.Data, m.Position.Topic, len(m.Data), m.ID, a.ttl, len(all))
	}
	w.pending = append(w.pending, tries...)
	now := time.Now()
	go func() {
		for i, t := range tries {
			t.call(b, now.Add(time.Duration(i)*time.Millisecond)) // all have different times
		}
	}()
	time.Sleep(time.Duration(len(all)) * time.Millisecond)
	synctest.Wait()
}

// call publishes the message as the daemon does.
func (t *try) call(b *broker.Broker, now time.Time) {
	m, ttl := *t.attempt.message, t.attempt.ttl
	var c broker.Claim
	for m.ID != "" && !c.IsHeld() {
		claimed, earlier, underWay := b.Claim("owner", &m, ttl, now)
		switch {
		case underWay != nil:
			<-underWay
			continue
		case !claimed.IsHeld():
			t.end(earlier)
			return
		}
		c = claimed
	}
	if r, over := b.Send(b.Route(m.Position.Topic), c, &m, ttl, now, t.end); over {
		t.end(r)
	}
}

func (t *try) end(r broker.Result) {
	t.published, t.err, t.answered = r.Published, r.Err, true
}

func (w *world) delete() {
	topic, b, now := w.anyTopic(), w.process.broker, time.Now()
	w.say("delete %s", topic)
	go func() { _, _ = b.Delete(topic, now) }() // the tap has the answer
	w.collect()
}

// sweep evicts expired messages, and forgets topics in an order that the seed gives.
func (w *world) sweep() {
	w.say("sweep")
	l := w.process.tap
	l.sweeps = true
	w.process.broker.Sweep(time.Now())
	l.sweeps = false
	slices.SortFunc(l.swept, func(a, b broker.Entry) int {
		return strings.Compare(a.Message.Position.Topic, b.Message.Position.Topic)
	})
	for _, e := range l.swept {
		l.Append([]broker.Entry{e}, func([]broker.Result) {})
	}
	l.swept = nil
}

// sync does what the daemon does each second.
func (w *world) sync() {
	w.say("sync")
	failures, fragile, due := w.fs.failures(), w.fragile(), w.extent()
	w.process.wal.syncStep(time.Now())
	if w.fs.failures() == failures && w.cfg.Sync != SyncNever && w.process.wal.Stats().Fault == nil {
		secure(fragile)
		if w.due.name != "" {
			w.marked = w.due
		}
		w.due = due
	}
	w.collect()
}

// meanwhile does what the writer does while another goroutine makes files durable.
func (w *world) meanwhile() {
	if w.process == nil || !w.process.wal.writing.TryLock() {
		return
	}
	w.process.wal.writing.Unlock() // the writer does not have to wait
	if w.rng.IntN(2) == 0 {
		w.say("    meanwhile:")
		if w.faulty && w.rng.IntN(16) == 0 {
			w.fs.arm(faultSync, 1)
		}
		if w.rng.IntN(4) == 0 {
			w.delete() // the writer syncs, too
		}
		w.publish()
		if !w.process.wal.mustWait() {
			w.settle()
		}
	}
}

// mustWait reports whether the next step may have to wait for another sync to end.
func (w *WAL) mustWait() bool {
	if w.syncing.TryLock() {
		w.syncing.Unlock()
		return false
	}
	n := 0
	for _, a := range w.queue.pending {
		n += len(a.entries)
		if slices.ContainsFunc(a.entries, func(e broker.Entry) bool { return e.Op == broker.OpDelete }) {
			return true
		}
	}
	// A new segment begins after the newest name, also after that of one that could not be
	// made. Each of n batches may begin one.
	return w.cfg.Sync == SyncAlways || max(w.seq.last, w.files.newest)+2*uint64(n)+1 >= w.seq.lease
}

// checkpoint writes parts of a checkpoint, and reports whether there are more.
func (w *world) checkpoint(parts int) (more bool) {
	w.say("checkpoint, %d parts", parts)
	for more = true; more && parts > 0; parts-- {
		wal := w.process.wal
		runs := wal.checkpoint != nil
		if !runs {
			w.saved = w.fragile()
		}
		if more = wal.checkpointStep(time.Now()); runs && !more {
			w.say("    the checkpoint ends: %v", wal.retry.err)
			if wal.retry.err == nil {
				secure(w.saved)
			}
		}
	}
	w.collect()
	return more
}

// pass lets time pass.
func (w *world) pass() {
	d := time.Duration(w.rng.IntN(300)) * time.Millisecond
	if w.rng.IntN(4) == 0 {
		d = time.Duration(w.rng.IntN(20000)) * time.Millisecond
	}
	w.say("%v pass", d)
	time.Sleep(d)
}

// upset has a fault happen soon, or ends all faults.
func (w *world) upset() {
	switch {
	case w.fs.space > 0 && w.rng.IntN(2) == 0:
		w.wantService()
	case !w.faulty:
	case w.rng.IntN(3) == 0:
		w.wantService()
	case w.rng.IntN(4) == 0:
		w.say("the disk is full")
		w.fs.full = true
	default:
		w.armOne()
	}
}

func (w *world) armOne() {
	f := allFaults[w.rng.IntN(len(allFaults))]
	if w.rng.IntN(3) == 0 {
		f = faultSync
	}
	w.fs.arm(f, 1+w.rng.IntN(5))
}

// wantService ends all faults, and wants the daemon to accept messages again, also on a small disk.
func (w *world) wantService() {
	w.say("the file system is well")
	space := w.fs.space
	w.fs.heal()
	defer func(was bool) { w.faulty = was }(w.faulty)
	w.faulty = false
	for range 8 {
		time.Sleep(time.Second)
		w.settle()
		w.sync()
		for w.checkpoint(1) {
		}
	}
	w.settle() // what others have published meanwhile
	a := w.newAttempt()
	w.try(a)
	w.settle()
	if w.tight {
		return
	}
	if t := a.tries[len(a.tries)-1]; !t.answered || t.err != nil {
		broken("the file system is well, but a publish fails: answered %v, %v", t.answered, t.err)
	}
	w.fill(space)
}

// fill publishes more than a small disk has, with histories that it can hold. Checkpoints free it
// each time, because the reserve has space for them.
func (w *world) fill(space int) {
	if w.process.wal.reserve.err != nil {
		time.Sleep(mostRetry)
	}
	w.sync() // the reserve follows the histories
	for n := 0; n < space && int64(space) > 4*w.process.broker.LiveBytes()+8<<10; {
		if w.fs.space = space; w.fs.isFull(0) {
			w.fs.space = 0 // it was filled while it was larger
			return
		}
		a := w.newAttempt()
		n += len(a.message.Data)
		for tries := 0; ; tries++ {
			w.try(a)
			w.settle()
			if w.process.wal.checkpoint != nil {
				w.checkpoint(1000) // it has begun meanwhile, and goes on at once
			}
			t := a.tries[len(a.tries)-1]
			if t.answered && t.err == nil {
				break
			}
			w.fs.injected["a small disk is full"]++
			if tries == 2 {
				broken("a full disk stays full: %v; %d bytes of histories, files %s", t.err, w.process.broker.LiveBytes(), w.fs.listing())
			}
			time.Sleep(mostRetry)
			w.checkpoint(1000)
			w.sync()
		}
		time.Sleep(w.config.IdempotencyWindow / 30)
		w.sweep()
		w.sync()
	}
	w.fs.space = 0
}

func (w *world) newClient() *client {
	topics := []string{[]string{"t.*", "t.>", ">"}[w.rng.IntN(3)]}
	if w.rng.IntN(2) == 0 {
		topics = []string{"t.0", fmt.Sprint("t.", 1+w.rng.IntN(3)), fmt.Sprint("t.", 4+w.rng.IntN(5))}
	}
	return &client{follower: newFollower(w.promises, fmt.Sprint("client ", len(w.clients)), topics...)}
}

// poll has a client read, or begins a client.
func (w *world) poll() {
	w.collect()
	if len(w.clients) < 4 {
		c := w.newClient()
		w.open(c, true)
		w.clients = append(w.clients, c)
		return
	}
	c := w.clients[w.rng.IntN(len(w.clients))]
	if w.rng.IntN(3) == 0 {
		c.saved = c.follower.clone()
	}
	if c.session == nil {
		w.open(c, false)
	}
	w.drain(c)
}

// leave has a client leave. Another time it resumes, sometimes from an earlier position.
func (w *world) leave() {
	if len(w.clients) == 0 {
		return
	}
	c := w.clients[w.rng.IntN(len(w.clients))]
	if c.session == nil {
		return
	}
	w.say("%s leaves", c.name)
	w.process.registry.End(c.session)
	c.session = nil
	if c.saved != nil && w.rng.IntN(3) == 0 {
		c.follower, c.saved = c.saved, nil
	}
}

func (w *world) leaveAll() {
	for _, c := range w.clients {
		if c.session != nil {
			w.process.registry.End(c.session)
			c.session = nil
		}
	}
}

func (w *world) open(c *client, isNew bool) {
	starts := c.starts()
	s, positions, err := w.process.registry.OpenEphemeral(session.Opening{Topics: starts}, time.Now())
	if err != nil {
		if w.tight {
			return
		}
		broken("%s cannot open a session: %v", c.name, err)
	}
	w.say("%s opens a session from %v: %v", c.name, starts, positions)
	c.session, c.opened = s, time.Now()
	if isNew {
		c.begin(positions)
	} else {
		c.follower.open(positions)
	}
}

// drain has a client read everything.
func (w *world) drain(c *client) {
	if c.session == nil {
		return
	}
	w.collect()
	for {
		now := time.Now()
		var poll session.Reader
		if err := poll.Begin(c.session, 0, session.Trusted, session.Arrival{}, now); err != nil {
			broken("%s cannot poll: %v", c.name, err)
		}
		frames, err := poll.Take(context.Background(), frame.Limit{Frames: 100, Bytes: 1 << 20}, 0)
		if err != nil {
			broken("%s cannot poll: %v", c.name, err)
		}
		for _, f := range frames {
			if g := f.Gap(); g != nil {
				w.say("  %s gets a gap, %s: %s to %s", c.name, g.Reason, g.After, g.Position)
				w.report.gaps[string(g.Reason)]++
				c.takeGap(g, now)
				continue
			}
			m := w.read(f.Message(), f.TTL)
			w.say("  %s gets %s", c.name, m)
			w.report.delivered++
			m.durable = m.durable || w.cfg.Sync == SyncAlways
			c.takeMessage(m, f.Position().Epoch, now, c.opened)
		}
		n := len(frames)
		poll.Done(now)
		if n == 0 {
			break
		}
	}
	c.follower.settle(time.Now())
}

// audit reads every topic from positions that clients may have.
func (w *world) audit() {
	for _, share := range []float64{0, w.rng.Float64()} {
		f := newFollower(w.promises, fmt.Sprintf("auditor from %.2f", share))
		f.outages = 0
		for _, topic := range sortedKeys(w.byTopic) {
			all := w.byTopic[topic]
			if len(all) == 0 {
				continue
			}
			at := wire.Position{Topic: topic, Epoch: w.process.broker.Epoch(topic)}
			if share > 0 {
				at.Offset = all[int(share*float64(len(all)))].offset
			}
			f.topics = append(f.topics, topic)
			f.at[topic], f.checked[topic] = at, at.Offset
		}
		if len(f.topics) > 0 {
			c := &client{follower: f}
			w.open(c, false)
			w.drain(c)
			if c.session != nil {
				w.process.registry.End(c.session)
			}
		}
	}
}

// A seed gives one history on one core, so a failure can be run again: on more, fan-outs of different
// topics may overtake each other.
func TestASeedGivesOneHistory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	story := func(seed uint64) string {
		w, _ := simulate(t, seed, untuned)
		text := w.story()
		if w.epoch != "" {
			text = strings.ReplaceAll(text, w.epoch, "epoch") // it is random
		}
		return text
	}
	for seed := range uint64(10) {
		require.Equal(t, story(seed), story(seed))
	}
}
