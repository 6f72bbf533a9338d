package logtest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/store"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// errUnknown is the result of an entry that may or may not be in the log.
var errUnknown = errors.New("the log gave no answer")

// clone returns an entry with a copy of the message: a broker keeps the messages that it
// applies.
func clone(e broker.Entry) broker.Entry {
	m := *e.Message
	e.Message = &m
	e.Accepted = time.Time{}
	return e
}

// logs has the logs on which the story runs.
var logs = map[string]func(w *world){
	"in memory": func(w *world) {
		w.nodes = []*node{w.start(broker.New(w.config, metrics.New("test"), time.Now()))}
		w.mishap = func(*rand.Rand) { w.restartFromState() }
	},
	"journal": func(w *world) {
		j := &journal{world: w}
		w.nodes = []*node{w.start(j.open())}
		w.mishap = func(rng *rand.Rand) {
			if rng.IntN(2) == 0 {
				j.replaceCheckpoint()
				return
			}
			w.replace(0, func(b *broker.Broker) *broker.Broker {
				if rng.IntN(3) == 0 {
					j.lose(rng)
				}
				return j.open()
			})
		}
	},
	"write-ahead, synced always": func(w *world) { onFolder(w, newMemoryFS(), store.SyncAlways) },
	"write-ahead, in a folder": func(w *world) {
		files, err := store.OpenDir(w.TempDir())
		require.NoError(w, err)
		onFolder(w, files, store.SyncEverySecond)
	},
	"replicated": func(w *world) {
		s := newStream(w)
		for range 2 {
			w.nodes = append(w.nodes, w.start(s.open()))
		}
		w.settle, w.stop = s.settle, s.stop
		w.mishap = func(rng *rand.Rand) {
			switch rng.IntN(20) {
			case 0:
				w.replace(rng.IntN(2), func(b *broker.Broker) *broker.Broker {
					s.leave(b)
					next := s.open()
					s.settle()
					return next
				})
			case 1:
				s.rollBack(rng, false)
			case 2:
				s.rollBack(rng, true)
			default:
				s.evictUnseen(rng)
			}
		}
	},
}

// restartFromState has a new broker continue from what the old one exports.
func (w *world) restartFromState() {
	w.replace(0, func(b *broker.Broker) *broker.Broker {
		b.Close()
		next := broker.New(w.config, metrics.New("test"), time.Now())
		require.NoError(w, b.Export(func(e broker.Entry) error {
			_, err := next.Apply(clone(e))
			return err
		}))
		return next
	})
}

// A journal is the model of a write-ahead log: one sequence numbers all entries, which are
// applied in that order. It survives the process, and continues from a checkpoint.
type journal struct {
	world   *world
	applied atomic.Uint64 // the newest number

	mu         sync.Mutex
	broker     *broker.Broker
	checkpoint []broker.Entry
	entries    []broker.Entry // above the checkpoint
}

// open returns a broker that continues from the journal.
func (j *journal) open() *broker.Broker {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broker = broker.NewWithLog(j.world.config, metrics.New("test"), time.Now(), func(*broker.Broker) broker.Log { return j })
	if j.checkpoint == nil {
		require.NoError(j.world, j.broker.ExportHeads(j.check))
	}
	require.NoError(j.world, j.broker.Feed(context.Background()))
	return j.broker
}

func (j *journal) check(e broker.Entry) error {
	j.checkpoint = append(j.checkpoint, clone(e))
	return nil
}

// replaceCheckpoint makes a checkpoint while entries are applied.
func (j *journal) replaceCheckpoint() {
	j.mu.Lock()
	b, c := j.broker, j.applied.Load()
	j.checkpoint = nil
	require.NoError(j.world, b.ExportHeads(j.check))
	j.mu.Unlock()
	require.NoError(j.world, b.ExportTopics(func(e broker.Entry) error {
		time.Sleep(time.Microsecond)
		return j.check(e)
	}))
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = slices.DeleteFunc(j.entries, func(e broker.Entry) bool { return e.Message.Position.Offset <= c })
}

// lose loses some of the newest entries, and says so.
func (j *journal) lose(rng *rand.Rand) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = j.entries[:len(j.entries)-rng.IntN(len(j.entries)+1)]
	lease := j.applied.Load() + 100
	at := wire.Position{Epoch: j.broker.Epoch("t"), Offset: lease}
	j.entries = append(j.entries, broker.Entry{Op: broker.OpEpoch, Message: &wire.Message{Position: at}, State: &broker.State{Forgotten: lease, Lost: lease}})
	j.applied.Store(lease)
	j.world.lose(lease)
}

func (j *journal) Append(e []broker.Entry, done func([]broker.Result)) {
	results := make([]broker.Result, len(e))
	j.mu.Lock()
	for i := range e {
		at := &e[i].Message.Position
		at.Epoch, at.Offset = j.broker.Epoch("t"), j.applied.Load()+1
		j.entries = append(j.entries, clone(e[i]))
		results[i].Published = wire.Published{Position: *at, Time: e[i].Message.Time}
		_, results[i].Err = j.broker.Apply(e[i])
		j.applied.Add(1)
	}
	j.mu.Unlock()
	j.world.background.Go(func() {
		time.Sleep(100 * time.Microsecond) // a group commit
		done(results)
	})
}

func (j *journal) Feed(_ context.Context, apply func(broker.Entry) error) error {
	for _, e := range slices.Concat(j.checkpoint, j.entries) {
		if err := apply(clone(e)); err != nil {
			return err
		}
	}
	return nil
}

func (*journal) Partitions() int      { return 1 }
func (*journal) Partition(string) int { return 0 }

func (j *journal) Applied(at wire.Position) bool { return at.Offset <= j.applied.Load() }

// A stream is a log that several brokers share, as in a cluster. It assigns offsets itself,
// one sequence for all topics of a partition, and skips numbers.
type stream struct {
	world *world
	ctx   context.Context // of the feeds
	end   context.CancelFunc

	mu    sync.Mutex
	rng   *rand.Rand
	parts [3]streamPart
	nodes map[*broker.Broker]*feed
	epoch int
}

type streamPart struct {
	epoch   string
	last    uint64                // the newest offset
	entries []broker.Entry        // of this epoch, numbered from 1
	keys    map[broker.Digest]int // by scope, the number of the first entry with the key
}

// A feed is the Log of one node, and how far the node has applied the stream.
type feed struct {
	*stream
	broker  *broker.Broker
	end     context.CancelFunc
	epochs  [3]string // begun by the node
	taken   [3]int    // entries of that epoch that were applied or are being applied
	applied [3]int
}

func newStream(w *world) *stream {
	s := &stream{world: w, rng: rand.New(rand.NewPCG(w.seed, 7)), nodes: make(map[*broker.Broker]*feed)}
	s.ctx, s.end = context.WithCancel(context.Background())
	for i := range s.parts {
		s.beginLocked(i)
	}
	return s
}

func (s *stream) stop() { s.end() }

// beginLocked begins an epoch without entries.
func (s *stream) beginLocked(i int) {
	s.epoch++
	s.parts[i] = streamPart{epoch: fmt.Sprintf("e%03d", s.epoch), keys: make(map[broker.Digest]int)}
}

func (s *stream) Partitions() int { return len(s.parts) }

func (s *stream) Partition(topic string) int {
	h := fnv.New32a()
	h.Write([]byte(topic))
	return int(h.Sum32() % uint32(len(s.parts)))
}

// open returns the broker of a new node without data.
func (s *stream) open() *broker.Broker {
	f := &feed{stream: s}
	ctx, end := context.WithCancel(s.ctx)
	f.end = end
	b := broker.NewWithLog(s.world.config, metrics.New("test"), time.Now(), func(b *broker.Broker) broker.Log {
		f.broker = b
		return f
	})
	s.mu.Lock()
	s.nodes[b] = f
	s.mu.Unlock()
	s.world.background.Go(func() { require.ErrorIs(s.world, b.Feed(ctx), context.Canceled) })
	return b
}

// leave ends a node.
func (s *stream) leave(b *broker.Broker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[b].end()
	delete(s.nodes, b)
}

// settle waits until every node has applied everything.
func (s *stream) settle() {
	for !s.isSettled() {
		time.Sleep(100 * time.Microsecond)
	}
}

func (s *stream) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.nodes {
		for i, p := range s.parts {
			if f.epochs[i] != p.epoch || f.applied[i] < len(p.entries) {
				return false
			}
		}
	}
	return true
}

// Append implements broker.Log. Some results get lost.
func (f *feed) Append(e []broker.Entry, done func([]broker.Result)) {
	results := make([]broker.Result, len(e))
	var waits []func()
	for i, entry := range e {
		if entry.Op == broker.OpForget { // each node forgets topics on its own
			_, results[i].Err = f.broker.Apply(entry)
			continue
		}
		number, epoch, at, lost := f.add(clone(entry))
		waits = append(waits, func() {
			results[i] = broker.Result{Published: at, Err: errUnknown}
			if !lost && f.await(f.Partition(at.Position.Topic), epoch, number) {
				results[i].Err = nil
			}
		})
	}
	f.world.background.Go(func() {
		for _, wait := range waits {
			wait()
		}
		done(results)
	})
}

// add assigns an offset and a number. A second entry with the same key is not added: it gets
// the number of the first.
func (f *feed) add(e broker.Entry) (number int, epoch string, at wire.Published, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &f.parts[f.Partition(e.Message.Position.Topic)]
	lost = f.rng.IntN(10) == 0
	number = p.keys[e.Key.Scope]
	if number == 0 || e.Key == (broker.Key{}) {
		p.last += 1 + f.rng.Uint64N(3)
		e.Message.Position.Epoch, e.Message.Position.Offset = p.epoch, p.last
		number = p.addLocked(e)
	}
	first := p.entries[number-1].Message
	return number, p.epoch, wire.Published{Position: first.Position, Time: first.Time}, lost
}

func (p *streamPart) addLocked(e broker.Entry) (number int) {
	p.entries = append(p.entries, e)
	if e.Key != (broker.Key{}) {
		p.keys[e.Key.Scope] = len(p.entries)
	}
	return len(p.entries)
}

// await waits until the node has applied so many entries of an epoch. It reports false if
// the epoch ends first.
func (f *feed) await(i int, epoch string, number int) bool {
	for {
		f.mu.Lock()
		over := f.parts[i].epoch != epoch || f.ctx.Err() != nil
		done := f.epochs[i] == epoch && f.applied[i] >= number
		f.mu.Unlock()
		if over || done {
			return !over
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// Applied implements broker.Log.
func (f *feed) Applied(at wire.Position) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.Partition(at.Topic)
	p, n := &f.parts[i], f.applied[i]
	return at.Epoch == f.epochs[i] && at.Epoch == p.epoch && n > 0 && at.Offset <= p.entries[n-1].Message.Position.Offset
}

// Feed implements broker.Log.
func (f *feed) Feed(ctx context.Context, apply func(broker.Entry) error) error {
	var parts sync.WaitGroup
	for i := range f.parts {
		rng := rand.New(rand.NewPCG(f.world.seed, uint64(i)))
		parts.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond) // delivery takes time
				entries := f.next(i, rng)
				for _, e := range entries {
					require.NoError(f.world, apply(clone(e)))
				}
				f.mu.Lock()
				f.applied[i] = f.taken[i] // of no meaning if the epoch is over
				f.mu.Unlock()
			}
		})
	}
	parts.Wait()
	return ctx.Err()
}

// next returns the entries to apply next. They may begin with entries that were applied
// before.
func (f *feed) next(i int, rng *rand.Rand) []broker.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &f.parts[i]
	if f.epochs[i] != p.epoch {
		f.epochs[i], f.taken[i], f.applied[i] = p.epoch, 0, 0
		at := wire.Position{Epoch: p.epoch}
		return []broker.Entry{{Op: broker.OpEpoch, Message: &wire.Message{Position: at}, State: &broker.State{Partition: i}}}
	}
	from := f.taken[i]
	if rng.IntN(4) == 0 {
		from = max(0, from-rng.IntN(30))
	}
	f.taken[i] = min(len(p.entries), f.taken[i]+rng.IntN(20))
	return slices.Clone(p.entries[from:f.taken[i]])
}

// rollBack drops entries from the end of a partition that no node has applied, and begins an
// epoch. With back, it also drops applied ones.
func (s *stream) rollBack(rng *rand.Rand, back bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := rng.IntN(len(s.parts))
	was, keep := s.parts[i], 0
	for _, f := range s.nodes {
		if f.epochs[i] == was.epoch {
			keep = max(keep, f.taken[i])
		}
	}
	if back && keep > 0 {
		keep = rng.IntN(keep)
	}
	s.beginLocked(i)
	p := &s.parts[i]
	for _, e := range was.entries[:keep] {
		e = clone(e)
		e.Message.Position.Epoch = p.epoch
		p.last = e.Message.Position.Offset
		p.addLocked(e)
	}
}

// evictUnseen drops messages that a node may not have applied. That node gets only the
// offset up to which its topic has lost messages.
func (s *stream) evictUnseen(rng *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := rng.IntN(len(s.parts))
	p := &s.parts[i]
	for number := len(p.entries) - rng.IntN(1+min(8, len(p.entries))); number < len(p.entries); number++ {
		if e := &p.entries[number]; e.Op == broker.OpPublish {
			at := e.Message.Position
			*e = broker.Entry{Op: broker.OpLost, Message: &wire.Message{Position: at}, State: &broker.State{Reason: wire.GapEvicted}}
		}
	}
}
