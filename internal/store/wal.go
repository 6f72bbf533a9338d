package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A SyncMode says when written records become durable.
type SyncMode string

// The modes. In every mode a deletion is durable before subscribers see it.
const (
	SyncAlways      SyncMode = "always" // before subscribers see a message
	SyncEverySecond SyncMode = "1s"     // once a second
	SyncNever       SyncMode = "never"  // when the operating system writes them
)

// WALConfig configures a WAL. Fields without a default must be set.
type WALConfig struct {
	FS   FS
	Sync SyncMode // default SyncEverySecond

	// Bytes limits the size of all files together. Default 0: no limit.
	Bytes int64

	// BootID is the id of this run of the kernel. If it is the same after a crash, the
	// operating system still has all writes. Default "": unknown, as after a power loss.
	BootID string

	// Seed returns a random number. The checksums of a new log depend on it.
	Seed func() uint64

	Logger *zap.Logger // default: none

	// Progress is called while the log is read, with the bytes read so far and in total.
	Progress func(read, all int64) // default: none

	// Recovered is called once, when the log has been read and accepts new entries.
	Recovered func(Recovery) // default: none

	// Observe has functions that are called from any goroutine.
	Observe Observer

	segmentBytes    int64  // size at which a new segment begins; default 64 MiB
	checkpointBytes int64  // size of all segments at which a checkpoint is due, if histories are smaller; default 64 MiB
	leaseNumbers    uint64 // how many offsets a lease has; default 1 Mi
	pendingBytes    int64  // bound of entries that wait to be written; default 64 MiB
	batchBytes      int64  // bound of a batch, unless it has one Append only; default 1 MiB
}

func (c WALConfig) withDefaults() WALConfig {
	c.Sync = cmp.Or(c.Sync, SyncEverySecond)
	c.Logger = cmp.Or(c.Logger, zap.NewNop())
	c.segmentBytes = cmp.Or(c.segmentBytes, 64<<20)
	c.checkpointBytes = cmp.Or(c.checkpointBytes, 64<<20)
	if c.Bytes > 0 {
		c.segmentBytes = min(c.segmentBytes, c.Bytes/8)
		c.checkpointBytes = min(c.checkpointBytes, c.Bytes/4)
	}
	c.leaseNumbers = cmp.Or(c.leaseNumbers, 1<<20)
	c.pendingBytes = cmp.Or(c.pendingBytes, 64<<20)
	c.batchBytes = cmp.Or(c.batchBytes, 1<<20)
	if c.Progress == nil {
		c.Progress = func(int64, int64) {}
	}
	if c.Recovered == nil {
		c.Recovered = func(Recovery) {}
	}
	c.Observe = c.Observe.withDefaults()
	return c
}

// An Observer has functions for metrics. A nil function is not called.
type Observer struct {
	Synced       func(d time.Duration, err error)              // one or more files were synced
	Committed    func(entries, bytes int, d time.Duration)     // a batch was written, and synced if the mode is always
	Failed       func(err error)                               // a batch could not be written
	Refused      func(why Refusal, entries int)                // entries were refused
	Checkpointed func(bytes int64, d time.Duration, err error) // a checkpoint ended
}

// A Refusal says why the log refused an entry.
type Refusal string

// The refusals.
const (
	RefusedWaiting  Refusal = "waiting"   // too many entries wait to be written
	RefusedFull     Refusal = "full"      // the files have reached store.bytes
	RefusedDiskFull Refusal = "disk_full" // no space on the disk, a quota, or a file size limit of the process
	RefusedDamaged  Refusal = "damaged"   // a sync failed, and no checkpoint has been written since
	RefusedError    Refusal = "error"     // another error of the disk
)

// refusalOf returns why entries of a batch that could not be written are refused.
func refusalOf(err error) Refusal {
	switch {
	case errors.Is(err, errDamaged):
		return RefusedDamaged
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return RefusedDiskFull
	}
	return RefusedError
}

func (o Observer) withDefaults() Observer {
	if o.Synced == nil {
		o.Synced = func(time.Duration, error) {}
	}
	if o.Committed == nil {
		o.Committed = func(int, int, time.Duration) {}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.Refused == nil {
		o.Refused = func(Refusal, int) {}
	}
	if o.Checkpointed == nil {
		o.Checkpointed = func(int64, time.Duration, error) {}
	}
	return o
}

// A WAL is a write-ahead log: a broker.Log that keeps its entries in files. One sequence
// numbers the entries of all topics.
//
// Append only queues entries. One writer (step) takes the queued entries, numbers them,
// writes them with one write(2), and applies them. So subscribers never get an entry that
// was not written, and a failed write changes nothing. A second goroutine (syncStep,
// checkpointStep) syncs files, and replaces old files by a checkpoint.
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

	mu      sync.Mutex // guards the fields below; taken last
	pending []appended
	waiting int64 // bytes of pending
	closed  bool
	stats   Stats     // but for Waiting
	since   time.Time // when the batch that is being written began; zero: there is none

	writing   sync.Mutex // guards the fields below; held while a batch is written and applied; see unlock
	lock      io.Closer
	seed      uint64
	last      uint64     // the newest number that was used or skipped
	written   uint64     // number of the newest entry that was written
	synced    uint64     // all entries up to this number are durable
	told      uint64     // the newest number in a record kindSynced
	syncedAt  time.Time  // see Stats
	lease     uint64     // durable: numbers below it may be used
	nextLease uint64     // written, but not durable; or 0
	current   *segment   // nil: the next batch begins one
	unsynced  []*segment // current, and older ones that may not be durable
	untrusted []*segment // a sync of them failed; they are only closed
	damaged   error      // why the last sync failed; nil: a checkpoint was made since
	damages   int        // number of failed syncs
	fault     error      // why the last write failed
	failed    int        // bytes of the largest write that failed since one succeeded
	buffer    []byte     // of the batch
	newest    uint64     // the number of the newest file
	baseBytes int64      // of the newest checkpoint
	baseLive  int64      // of messages and the like when it began
	segments  []uint64   // numbers of all segments, in order
	oldBytes  int64      // of segments before the current one
	partBytes int64      // of the checkpoint that is under way
	wanted    bool       // a checkpoint is wanted
	repairs   bool       // see Repair; immutable

	syncing     sync.Mutex // held while files are synced; taken after writing
	syncFailure error      // of a sync that is not noted in damaged yet; guarded by syncing

	// Owned by checkpointStep:
	checkpoint    *checkpoint   // under way, or nil
	retryAt       time.Time     // after a failure: no checkpoint begins before; else zero
	retryIn       time.Duration // how long before retryAt it failed; else 0
	checkpointErr error         // why the last failed one did
}

// appended is one call of Append.
type appended struct {
	entries []broker.Entry
	done    func([]broker.Result)
	bytes   int64
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

// Append implements broker.Log. Entries wait until the next step. When too many wait, it
// calls done at once, with the problem overloaded.
func (w *WAL) Append(e []broker.Entry, done func([]broker.Result)) {
	a := appended{entries: e, done: done}
	for i := range e {
		a.bytes += int64(e[i].Message.Size())
	}
	if err := w.queue(a); err != nil {
		done(failed(len(e), err))
		return
	}
	signal(w.wake)
}

// signal puts a token into a channel, unless it has one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *WAL) queue(a appended) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return wire.NewProblem(wire.CodeDraining, "retry later, or at another server", "the server is shutting down").Retry(time.Second)
	case w.hangsLocked():
		w.cfg.Observe.Refused(RefusedWaiting, len(a.entries))
		return problemOf(errHangs)
	case w.waiting > 0 && w.waiting+a.bytes > w.cfg.pendingBytes:
		w.cfg.Observe.Refused(RefusedWaiting, len(a.entries))
		return wire.NewProblem(wire.CodeOverloaded, "retry after retry_after_ms",
			"messages arrive faster than the disk can store them").Retry(100 * time.Millisecond)
	}
	w.pending = append(w.pending, a)
	w.waiting += a.bytes
	return nil
}

// take returns the calls of the next batch, and whether more wait.
func (w *WAL) take() (batch []appended, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	bytes, n := int64(0), 0
	for n < len(w.pending) && (n == 0 || bytes+w.pending[n].bytes <= w.cfg.batchBytes) {
		bytes += w.pending[n].bytes
		n++
	}
	batch, w.waiting = w.pending[:n:n], w.waiting-bytes
	if w.pending = w.pending[n:]; len(w.pending) == 0 {
		w.pending = nil
	}
	return batch, len(w.pending) > 0
}

func failed(n int, err error) []broker.Result {
	results := make([]broker.Result, n)
	for i := range results {
		results[i].Err = err
	}
	return results
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
	for more := false; ; more = w.checkpointStep(time.Now()) {
		if more {
			select {
			case <-stop:
				return
			case <-second.C:
				w.syncStep(time.Now())
			default:
			}
			continue
		}
		select {
		case <-stop:
			return
		case <-w.grown:
		case <-second.C:
			w.syncStep(time.Now())
		}
	}
}

// The methods below have no goroutine and no clock, but for latencies that only metrics
// get. Feed calls them. A simulation calls them itself, in one goroutine.

// step writes the entries that wait, applies them, and calls their callbacks: at most one
// batch. It reports whether more wait.
func (w *WAL) step(now time.Time) (more bool) {
	batch, more := w.take()
	if len(batch) == 0 {
		return false
	}
	results := w.commit(batch, now)
	for _, a := range batch {
		a.done(results[:len(a.entries):len(a.entries)])
		results = results[len(a.entries):]
	}
	return more
}

// commit writes and applies a batch.
func (w *WAL) commit(batch []appended, now time.Time) []broker.Result {
	n := 0
	for _, a := range batch {
		n += len(a.entries)
	}
	results := make([]broker.Result, n)
	w.noteBatch(now)
	defer w.noteBatch(time.Time{})
	w.writing.Lock()
	defer w.unlock()
	bytes, err := w.writeLocked(batch, results)
	if w.noteFaultLocked(err); err != nil {
		w.cfg.Observe.Failed(err)
		w.cfg.Observe.Refused(refusalOf(err), n)
		var problem error = problemOf(err)
		for i := range results {
			results[i].Err = cmp.Or(results[i].Err, problem)
		}
		return results
	}
	w.applyLocked(batch, results)
	w.cfg.Observe.Committed(n, bytes, time.Since(now))
	return results
}

// noteFaultLocked notes why writes fail, or that they succeed. It logs only a change.
func (w *WAL) noteFaultLocked(err error) {
	switch {
	case err != nil && w.fault == nil && w.damaged == nil:
		w.cfg.Logger.Error("the log on disk cannot be written: publishes are refused until it can be written", zap.Error(err))
	case err == nil && w.fault != nil:
		w.cfg.Logger.Info("the log on disk can be written again")
	}
	if w.fault = err; err == nil {
		w.failed = 0
	}
}

// writeLocked numbers the entries, and writes them with one write. Entries that cannot be
// written get an error in results. If it returns an error, none was written.
func (w *WAL) writeLocked(batch []appended, results []broker.Result) (bytes int, err error) {
	if err := w.readyLocked(uint64(len(results))); err != nil {
		return 0, err
	}
	s, b, newest := w.current, w.noticesLocked(uint64(len(results))), w.written
	syncs, full := w.cfg.Sync == SyncAlways, w.isFullLocked()
	for _, a := range batch {
		for i := range a.entries {
			e, whole := &a.entries[i], len(b)
			w.last++
			e.Message.Position.Epoch, e.Message.Position.Offset = *w.epoch.Load(), w.last
			if full && e.Op == broker.OpPublish {
				w.cfg.Observe.Refused(RefusedFull, 1)
				results[i].Err = problemOf(errFull)
				signal(w.grown)
				continue
			}
			if b, err = appendEntry(b, e, w.last, s.key); err != nil {
				results[i].Err = wire.NewProblem(wire.CodeMessageTooLarge, "publish a smaller message", "the message is too large for the log")
				b = b[:whole]
				continue
			}
			newest = w.last
			syncs = syncs || e.Op == broker.OpDelete
		}
		results = results[len(a.entries):]
	}
	if w.buffer = b[:0]; cap(b) > maxBuffer {
		w.buffer = nil
	}
	if err := w.appendLocked(b); err != nil {
		return 0, err
	}
	w.written = newest
	if syncs {
		return len(b), w.syncLocked()
	}
	return len(b), nil
}

// maxBuffer bounds the buffer that is kept between batches.
const maxBuffer = 4 << 20

// readyLocked makes sure that a batch of n entries can be written: there is a segment, and
// the lease has as many numbers.
func (w *WAL) readyLocked(n uint64) error {
	if w.damaged != nil {
		return w.damaged
	}
	if w.current == nil || w.current.size >= w.cfg.segmentBytes {
		if err := w.beginSegmentLocked(); err != nil {
			return err
		}
	}
	if w.last+n < w.lease {
		return nil
	}
	if w.nextLease <= w.last+n {
		w.nextLease = w.last + n + w.cfg.leaseNumbers
		if err := w.appendLocked(appendNumber(nil, kindLease, w.written, w.nextLease, w.current.key)); err != nil {
			w.nextLease = 0
			return err
		}
	}
	return w.syncLocked()
}

// noticesLocked begins a batch: with a new lease if only a quarter of the lease is left
// after n entries, and with what has become durable since the last batch.
func (w *WAL) noticesLocked(n uint64) []byte {
	b := w.buffer[:0]
	if w.synced > w.told {
		b = appendSynced(b, w.synced, w.current.synced, w.current.key)
		w.told = w.synced
	}
	if w.nextLease == 0 && w.lease-(w.last+n) < w.cfg.leaseNumbers/4 {
		w.nextLease = w.last + n + w.cfg.leaseNumbers
		b = appendNumber(b, kindLease, w.written, w.nextLease, w.current.key)
	}
	return b
}

// appendLocked appends to the current segment. After an error the segment is as before: it
// is cut back, or the next batch begins another one, whose header says where this one ends.
func (w *WAL) appendLocked(b []byte) error {
	s := w.current
	err := s.write(b)
	if err == nil {
		return nil
	}
	w.told, w.nextLease, w.failed = 0, 0, max(w.failed, len(b)) // their records are cut
	if cut := s.file.Truncate(s.size); cut != nil {
		w.cfg.Logger.Warn("a segment of the log on disk could not be truncated after a failed write: a new segment begins", zap.String("file", s.name), zap.Error(cut))
		w.leaveSegmentLocked()
	}
	return err
}

// leaveSegmentLocked ends the current segment.
func (w *WAL) leaveSegmentLocked() {
	if w.current != nil {
		w.oldBytes += w.current.size
		w.current = nil
	}
}

// beginSegmentLocked begins a segment after the current one. It syncs nothing: the header
// says up to where older files are durable.
func (w *WAL) beginSegmentLocked() error {
	number := max(w.last, w.newest) + 1
	w.newest = number // its name is not used again, also if this fails
	h := header{
		number: number, epoch: *w.epoch.Load(), prev: w.applied.Load(), lease: max(w.lease, w.nextLease), synced: w.synced,
		always: w.cfg.Sync == SyncAlways, boot: w.cfg.BootID,
	}
	s, err := createFile(w.fs, fileName(number, segmentSuffix), segmentMagic, w.seed, &h)
	if err != nil {
		return err
	}
	w.leaveSegmentLocked()
	w.last, w.current, w.unsynced, w.segments = number-1, s, append(w.unsynced, s), append(w.segments, number)
	signal(w.grown)
	return nil
}

// applyLocked applies a batch that was written.
func (w *WAL) applyLocked(batch []appended, results []broker.Result) {
	for _, a := range batch {
		for i := range a.entries {
			e, r := &a.entries[i], &results[i]
			if r.Err == nil {
				r.Time = e.Message.Time
				r.Err = w.apply(*e)
				r.Position = e.Message.Position
			}
		}
		results = results[len(a.entries):]
	}
	w.applied.Store(w.written)
}

// A syncJob makes files durable.
type syncJob struct {
	files  []*segment
	sizes  []int64 // of the files, when the job began
	names  bool    // the folder, too
	number uint64  // then all entries up to this number are durable
	lease  uint64  // and this lease, unless 0
}

// syncJobLocked returns a job for everything that was written.
func (w *WAL) syncJobLocked() syncJob {
	j := syncJob{number: w.written, lease: w.nextLease}
	for _, s := range w.unsynced {
		if s.size > s.synced || !s.named {
			j.files, j.sizes, j.names = append(j.files, s), append(j.sizes, s.size), j.names || !s.named
		}
	}
	return j
}

// run does the job. No lock is needed.
func (j *syncJob) run(fs FS, observe func(time.Duration, error)) (err error) {
	if len(j.files) == 0 {
		return nil
	}
	begun := time.Now()
	defer func() { observe(time.Since(begun), err) }()
	for _, s := range j.files { // the oldest first
		if err := s.file.Sync(); err != nil {
			return fmt.Errorf("sync %s: %w", s.name, err)
		}
	}
	if j.names {
		if err := fs.SyncDir(); err != nil {
			return fmt.Errorf("sync the folder of the log: %w", err)
		}
	}
	return nil
}

// endSyncLocked takes the result of a job.
func (w *WAL) endSyncLocked(j syncJob, err error) error {
	if err != nil {
		w.damageLocked(err)
		return w.damaged
	}
	for i, s := range j.files {
		s.synced, s.named = max(s.synced, j.sizes[i]), true
	}
	if w.damaged == nil { // else what is in older files is durable once a checkpoint is
		w.synced = max(w.synced, j.number)
	}
	if w.lease = max(w.lease, j.lease); w.nextLease <= w.lease {
		w.nextLease = 0
	}
	return nil
}

// syncLocked makes everything durable that was written, while entries wait.
func (w *WAL) syncLocked() error {
	j := w.syncJobLocked()
	return w.endSyncLocked(j, w.runSync(j))
}

// runSync does a job, unless a sync has failed whose failure is not noted yet. The operating
// system tells only one of two syncs of a file that it could not write: so there is one at a
// time, and the second one learns of the failure of the first.
func (w *WAL) runSync(j syncJob) error {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	if w.syncFailure == nil {
		w.syncFailure = j.run(w.fs, w.cfg.Observe.Synced)
	}
	return w.syncFailure
}

// sync is syncLocked while entries are written. Only one goroutine calls it.
func (w *WAL) sync() error {
	w.writing.Lock()
	j, damages := w.syncJobLocked(), w.damages
	w.unlock()
	err := w.runSync(j)
	w.writing.Lock()
	defer w.unlock()
	if w.damages != damages {
		w.noteSyncFailure()
		return w.damaged // the files of the job are not trusted any more
	}
	if err := w.endSyncLocked(j, err); err != nil {
		return err
	}
	w.closeOldLocked()
	return nil
}

// closeOldLocked closes segments that are durable and not current. No sync is under way.
func (w *WAL) closeOldLocked() {
	kept := w.unsynced[:0]
	for _, s := range w.unsynced {
		if s == w.current || s.size > s.synced || !s.named {
			kept = append(kept, s)
		} else {
			w.closeFile(s)
		}
	}
	clear(w.unsynced[len(kept):])
	w.unsynced = kept
}

func (w *WAL) closeFile(s *segment) {
	if err := s.file.Close(); err != nil { // it is durable, or not trusted
		w.cfg.Logger.Warn("a segment of the log on disk could not be closed", zap.String("file", s.name), zap.Error(err))
	}
}

// failedSyncName is the file that a daemon creates when a sync fails. After a failed sync
// the operating system may have dropped written data. If the daemon is killed before a new
// checkpoint is durable, this file makes the next start treat the log as after a power
// loss. The file is not synced: a power loss, which has the same effect, may undo it.
const failedSyncName = "failed-sync"

func (w *WAL) removeFailedSync() {
	if err := w.fs.Remove(failedSyncName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.cfg.Logger.Warn("the file failed-sync could not be removed: remove it, or a start after a crash announces lost messages", zap.Error(err))
	}
}

// noteSyncFailure lets files be synced again: the failure is noted.
func (w *WAL) noteSyncFailure() {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	w.syncFailure = nil
}

var errDamaged = errors.New("a sync failed")

// damageLocked notes that a sync failed: the operating system may have dropped what it could
// not write. No file that was not durable is used again.
func (w *WAL) damageLocked(err error) {
	if w.damaged == nil {
		w.cfg.Logger.Error("a sync of the log on disk failed: publishes are refused until a new checkpoint is durable", zap.Error(err))
	}
	w.damaged, w.damages = fmt.Errorf("%w: %w", errDamaged, err), w.damages+1
	w.noteSyncFailure()
	if f, err := w.fs.Create(failedSyncName); err == nil { // it may exist, and a disk that fails need not take it
		_ = f.Close() // it is empty
	}
	w.leaveSegmentLocked()
	w.untrusted = append(w.untrusted, w.unsynced...)
	w.unsynced, w.written, w.nextLease = nil, w.applied.Load(), 0
	signal(w.grown)
}

// syncStep makes durable what the mode says: with "1s" all that was written, with "never"
// only a new lease. After a failed write it tries to write. Feed calls it once a second.
func (w *WAL) syncStep(now time.Time) {
	w.evict()
	w.writing.Lock()
	if w.fault != nil && w.damaged == nil {
		w.probeLocked()
	}
	due := w.damaged == nil && (w.cfg.Sync != SyncNever || w.nextLease > 0)
	w.unlock()
	if due {
		_ = w.sync() // it was logged, and checkpointStep repairs it
	}
	w.writing.Lock()
	defer w.unlock()
	if w.damaged == nil && w.synced >= w.written {
		w.syncedAt = now
	}
}

// probeLocked tries to write after a failed write: as much as failed, since a full disk may
// still take a little.
func (w *WAL) probeLocked() {
	err := w.readyLocked(0)
	if err == nil {
		lease := appendNumber(nil, kindLease, w.written, w.lease, w.current.key)
		err = w.appendLocked(bytes.Repeat(lease, max(1, (w.failed+len(lease)-1)/len(lease))))
	}
	w.noteFaultLocked(err)
}

// Stats are the state of a log.
type Stats struct {
	Bytes    int64     // of all files
	Segments int       // files of entries, which the next checkpoint replaces
	Waiting  int64     // bytes of entries that wait to be written
	Last     uint64    // number of the newest entry
	Synced   uint64    // number of the newest entry that is durable
	Lease    uint64    // numbers below it may be used
	SyncedAt time.Time // when all entries were last durable, to about a second
	Fault    error     // why entries are refused now, or nil
}

// Stats returns the state of the log. It does not wait for the disk: while the disk
// hangs, it returns the state from before.
func (w *WAL) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	if s.Waiting = w.waiting; w.hangsLocked() {
		s.Fault = errHangs
	}
	return s
}

// longestBatch is how long the disk may take for a batch. After that it hangs, and entries
// are refused at once: each one that waits may keep a caller, and one of limits.calls.
const longestBatch = 10 * time.Second

var errHangs = fmt.Errorf("the disk has not answered for %v", longestBatch)

func (w *WAL) hangsLocked() bool { return !w.since.IsZero() && time.Since(w.since) > longestBatch }

// noteBatch notes when a batch has begun, or that it has ended.
func (w *WAL) noteBatch(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = since
}

// unlock ends what has changed the fields that writing guards, and notes Stats.
func (w *WAL) unlock() {
	w.mu.Lock()
	w.stats = Stats{
		Bytes: w.bytesLocked(), Segments: len(w.segments), Last: w.applied.Load(), Synced: w.synced, Lease: w.lease,
		SyncedAt: w.syncedAt, Fault: cmp.Or(w.damaged, w.fault),
	}
	w.mu.Unlock()
	w.writing.Unlock()
}

// close writes what waits, makes everything durable, marks the end as clean, and releases
// the lock. The error says why the end is not clean.
func (w *WAL) close(now time.Time) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	for w.step(now) {
	}
	w.abortCheckpoint()
	w.writing.Lock()
	err := w.endLocked()
	w.unlock()
	w.abandon()
	if err != nil {
		return fmt.Errorf("the log on disk was not closed cleanly: %w (the next start recovers it as after a crash)", err)
	}
	return nil
}

// endLocked writes the record of a clean end.
func (w *WAL) endLocked() error {
	switch {
	case w.damaged != nil:
		return w.damaged
	case w.current == nil:
		if err := w.beginSegmentLocked(); err != nil {
			return err
		}
	}
	if err := w.syncLocked(); err != nil { // the end must not be durable before the rest
		return err
	}
	if err := w.appendLocked(appendNumber(nil, kindClosed, w.written, uint64(w.current.size), w.current.key)); err != nil {
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
	w.writing.Lock()
	defer w.unlock()
	for _, s := range append(w.unsynced, w.untrusted...) {
		w.closeFile(s)
	}
	w.unsynced, w.untrusted, w.current = nil, nil, nil
	if w.lock != nil {
		_ = w.lock.Close() // nothing was written
		w.lock = nil
	}
}

// problemOf returns the problem that publishers get after a failed write. It names no file.
func problemOf(err error) *wire.Problem {
	why := "an input or output error"
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		why = errno.Error()
	} else if errors.Is(err, errFull) || errors.Is(err, errHangs) {
		why = err.Error()
	}
	return wire.NewProblem(wire.CodeOverloaded, "retry after retry_after_ms; the server's operator must check its disk",
		"the server cannot write to its disk: %s", why).Retry(time.Second)
}
