// Package store keeps a daemon's state on disk: in a write-ahead log, which survives crashes,
// or in a checkpoint, which survives only planned restarts.
package store

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A WAL is a write-ahead log: a broker.Log that keeps its entries in files. One sequence
// numbers the entries of all topics.
//
// Append only queues entries. One writer (step) takes the queued entries, numbers them,
// writes them with one write(2), and applies them. So subscribers never get an entry that
// was not written, and a failed write changes nothing. A second goroutine (syncStep,
// checkpointStep) syncs files, and replaces old files by a checkpoint. Feed runs both. The
// steps have no goroutine and no clock, but for latencies that only metrics get: a simulation
// calls them in one goroutine.
//
// Numbers of a failed write are not used again: after a power loss, the disk may have its
// entries. A file whose sync failed is not used again: its content is unknown. Then the log
// refuses entries until a checkpoint, made from memory, is durable.
type WAL struct {
	cfg    WALConfig
	fs     FS
	broker *broker.Broker
	wake   chan struct{} // wakes the writer; one token; never closed
	grown  chan struct{} // wakes checkpointStep, which may be due; one token; never closed

	stopped func() error             // of the context of Feed: why reading must end; nil: it goes on
	apply   func(broker.Entry) error // set by open
	epoch   atomic.Pointer[string]   // set by open
	applied atomic.Uint64            // number of the newest entry that was applied

	queue queue

	writing sync.Mutex // guards the fields below; held while a batch is written; see unlock
	lock    io.Closer
	seed    uint64
	seq     sequence
	files   files
	faults  faults
	buffer  []byte // of the batch
	wanted  bool   // a checkpoint is wanted
	repairs bool   // see Repair; immutable

	applying    sync.Mutex // held while a batch is applied; taken after writing
	syncing     sync.Mutex // held while files are synced; taken after writing
	syncFailure error      // of a sync that is not noted in faults yet; guarded by syncing

	checkpoint *checkpoint // under way, or nil; owned by checkpointStep
	retry      retry       // likewise
	reserve    reserve     // likewise
	marks      marks
}

// A queue has the entries that wait to be written, and what anybody may ask of the log.
type queue struct {
	mu      sync.Mutex // guards the fields; taken last
	pending []appended
	waiting int64 // bytes of pending
	closed  bool
	stats   Stats     // but for Waiting
	since   time.Time // when the batch that is being written began; zero: there is none
}

// A sequence has numbers of entries. WAL.writing guards it.
type sequence struct {
	last      uint64    // the newest number that was used or skipped
	written   uint64    // the newest entry that was written
	accepted  uint64    // the newest entry that is applied, or will be
	synced    uint64    // all entries up to this number are durable
	syncedAt  time.Time // see Stats
	told      uint64    // the newest number in a record kindSynced
	lease     uint64    // durable: numbers below it may be used
	nextLease uint64    // written, but not durable; or 0
}

// files are those of the log. WAL.writing guards them.
type files struct {
	current   *segment   // nil: the next batch begins one
	unsynced  []*segment // current, and older ones that may not be durable
	untrusted []*segment // a sync of them failed; they are only closed
	newest    uint64     // the number of the newest file
	segments  []uint64   // numbers of all segments, in order
	baseBytes int64      // of the newest checkpoint
	baseLive  int64      // of messages and the like when it began
	oldBytes  int64      // of segments before the current one
	partBytes int64      // of the checkpoint that is under way
}

// faults say why entries are refused. WAL.writing guards them.
type faults struct {
	damaged error // why the last sync failed; nil: a checkpoint was made since
	damages int   // number of failed syncs
	write   error // why the last write failed
	failed  int   // bytes of the largest write that failed since one succeeded
	full    error // the disk is full, and a checkpoint has the reserve; nil otherwise
}

// NewWAL returns the log of a broker. Its owner calls Feed, which reads the files first.
func NewWAL(cfg WALConfig, b *broker.Broker) *WAL {
	return &WAL{cfg: cfg.withDefaults(), fs: cfg.FS, broker: b, wake: make(chan struct{}, 1), grown: make(chan struct{}, 1)}
}

// Partitions implements broker.Log.
func (w *WAL) Partitions() int { return 1 }

// Partition implements broker.Log.
func (w *WAL) Partition(string) int { return 0 }

// Applied implements broker.Log.
func (w *WAL) Applied(at wire.Position) bool {
	epoch := w.epoch.Load()
	return epoch != nil && at.Epoch == *epoch && at.Offset <= w.applied.Load()
}

// Feed implements broker.Log: it opens the log, and runs it until ctx ends. Then it closes
// the log. The error says why the log could not be opened or closed; else it is that of ctx.
func (w *WAL) Feed(ctx context.Context, apply func(broker.Entry) error) error {
	w.stopped = ctx.Err
	if err := w.open(apply, time.Now()); err != nil {
		return err
	}
	stop, beside := make(chan struct{}), sync.WaitGroup{}
	beside.Go(func() { w.syncUntil(stop) })
	for ctx.Err() == nil {
		runtime.Gosched() // others that are ready to publish join the batch
		if w.step(time.Now()) {
			continue
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
		}
	}
	close(stop)
	beside.Wait()
	return cmp.Or(w.close(time.Now()), ctx.Err())
}

// syncUntil calls syncStep once a second, and checkpointStep.
func (w *WAL) syncUntil(stop <-chan struct{}) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-stop:
			return
		case <-second.C:
			w.syncStep(time.Now())
		case <-w.grown:
		}
		if w.checkpointStep(time.Now()) {
			signal(w.grown) // it has more parts
		}
	}
}

// signal puts a token into a channel, unless it has one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// close writes what waits, makes everything durable, marks the end as clean, and releases
// the lock. The error says why the end is not clean.
func (w *WAL) close(now time.Time) error {
	w.queue.mu.Lock()
	w.queue.closed = true
	w.queue.mu.Unlock()
	for w.step(now) {
	}
	w.abortCheckpoint()
	w.writing.Lock()
	err := w.endLocked()
	m := w.markLocked()
	w.unlock()
	if err == nil {
		m.never = false
		w.writeMark(m)
		err = w.fs.SyncDir()
	}
	w.abandon()
	if err != nil {
		return fmt.Errorf("the log on disk was not closed cleanly: %w (the next start recovers it as after a crash)", err)
	}
	return nil
}

// endLocked writes the record of a clean end.
func (w *WAL) endLocked() error {
	switch {
	case w.faults.damaged != nil:
		return w.faults.damaged
	case w.files.current == nil:
		if err := w.beginSegmentLocked(); err != nil {
			return err
		}
	}
	if err := w.syncLocked(); err != nil { // the end must not be durable before the rest
		return err
	}
	if err := w.appendLocked(appendNumber(nil, kindClosed, w.seq.written, uint64(w.files.current.size), w.files.current.key)); err != nil {
		return err
	}
	return w.syncLocked()
}

// abandon releases the files and the lock, as the end of the process does.
func (w *WAL) abandon() {
	if w.checkpoint != nil {
		w.checkpoint.stop()
		w.closeFile(w.checkpoint.file)
		w.checkpoint = nil
	}
	if w.reserve.file != nil {
		w.closeFile(&w.reserve.segment)
		w.reserve.segment = segment{}
	}
	w.writing.Lock()
	defer w.unlock()
	for _, s := range append(w.files.unsynced, w.files.untrusted...) {
		w.closeFile(s)
	}
	w.files.unsynced, w.files.untrusted, w.files.current = nil, nil, nil
	if w.lock != nil {
		_ = w.lock.Close() // nothing was written
		w.lock = nil
	}
}

// Stats are the state of a log.
type Stats struct {
	metrics.StoreState
	Synced   uint64    // number of the newest entry that is durable
	SyncedAt time.Time // when all entries were last durable, to about a second
	Fault    error     // why entries are refused now, or nil
}

// Stats returns the state of the log. It does not wait for the disk: while the disk
// hangs, it returns the state from before.
func (w *WAL) Stats() Stats {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	s := w.queue.stats
	switch s.Waiting = w.queue.waiting; {
	case w.queue.closed:
		s.Fault = errEnded
	case w.hangsLocked():
		s.Fault = errHangs
	}
	s.MostBytes, s.IsFaulty = w.cfg.Bytes, s.Fault != nil
	if s.Synced < s.Last && !s.SyncedAt.IsZero() {
		s.Unsynced = time.Since(s.SyncedAt)
	}
	return s
}

// unlock ends what has changed the fields that writing guards, and notes Stats.
func (w *WAL) unlock() {
	w.queue.mu.Lock()
	w.queue.stats = Stats{
		metrics.StoreState{
			Bytes: w.bytesLocked(), Reserve: w.queue.stats.Reserve,
			Segments: len(w.files.segments), Last: w.seq.accepted, Lease: w.seq.lease,
		}, w.seq.synced, w.seq.syncedAt, cmp.Or(w.faults.damaged, w.faults.write),
	}
	w.queue.mu.Unlock()
	w.writing.Unlock()
}

// bytesLocked returns the size of all files.
func (w *WAL) bytesLocked() int64 {
	bytes := w.files.baseBytes + w.files.oldBytes + w.files.partBytes
	if w.files.current != nil {
		bytes += w.files.current.size
	}
	return bytes
}

// isFullLocked reports whether the files have reached store.bytes.
func (w *WAL) isFullLocked() bool { return w.cfg.Bytes > 0 && w.bytesLocked() >= w.cfg.Bytes }
