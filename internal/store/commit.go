package store

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// appended is one call of Append.
type appended struct {
	entries []broker.Entry
	done    func([]broker.Result)
	bytes   int64
}

// Append implements broker.Log. Entries wait until the next step. When too many wait, it
// calls done at once, with the problem overloaded.
func (w *WAL) Append(e []broker.Entry, done func([]broker.Result)) {
	a := appended{entries: e, done: done}
	for i := range e {
		a.bytes += int64(e[i].Message.Size())
	}
	if err := w.enqueue(a); err != nil {
		done(failed(len(e), err))
		return
	}
	signal(w.wake)
}

func (w *WAL) enqueue(a appended) error {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	switch {
	case w.queue.closed:
		return problem.New(wire.CodeOverloaded, "retry later, or at another server; the server's operator must restart it", "%s", errEnded).Retry(time.Second)
	case w.hangsLocked():
		w.refuse(refusedWaiting, len(a.entries))
		return problemOf(errHangs)
	case w.queue.waiting > 0 && w.queue.waiting+a.bytes > w.cfg.pendingBytes:
		w.refuse(refusedWaiting, len(a.entries))
		return problem.New(wire.CodeOverloaded, "retry after retry_after_ms",
			"messages arrive faster than the disk can store them").Retry(100 * time.Millisecond)
	}
	w.queue.pending = append(w.queue.pending, a)
	w.queue.waiting += a.bytes
	return nil
}

// take returns the calls of the next batch, and whether more wait.
func (w *WAL) take() (batch []appended, more bool) {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	bytes, n := int64(0), 0
	for n < len(w.queue.pending) && (n == 0 || bytes+w.queue.pending[n].bytes <= w.cfg.batchBytes) {
		bytes += w.queue.pending[n].bytes
		n++
	}
	batch, w.queue.waiting = w.queue.pending[:n:n], w.queue.waiting-bytes
	if w.queue.pending = w.queue.pending[n:]; len(w.queue.pending) == 0 {
		w.queue.pending = nil
	}
	return batch, len(w.queue.pending) > 0
}

func failed(n int, err error) []broker.Result {
	results := make([]broker.Result, n)
	for i := range results {
		results[i].Err = err
	}
	return results
}

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

func (w *WAL) commit(batch []appended, now time.Time) []broker.Result {
	n := 0
	for _, a := range batch {
		n += len(a.entries)
	}
	results := make([]broker.Result, n)
	w.noteBatch(now)
	w.writing.Lock()
	bytes, err := w.writeLocked(batch, results)
	w.noteFaultLocked(err)
	w.applying.Lock() // a checkpoint waits until what is accepted is applied
	defer w.applying.Unlock()
	w.unlock()
	w.noteBatch(time.Time{}) // a slow fan-out is not a slow disk
	if err != nil {
		w.refuse(refusalOf(err), n)
		var problem error = problemOf(err)
		for i := range results {
			results[i].Err = cmp.Or(results[i].Err, problem)
		}
		return results
	}
	rest := results
	for _, a := range batch {
		for i := range a.entries {
			if e, r := &a.entries[i], &rest[i]; r.Err == nil {
				r.Time = e.Message.Time
				r.Err = w.apply(*e)
				r.Position = e.Message.Position
			}
		}
		rest = rest[len(a.entries):]
	}
	w.applied.Store(w.seq.accepted) // only this goroutine changes it
	w.cfg.Metrics.CommitSeconds.Observe(time.Since(now).Seconds())
	w.cfg.Metrics.Entries.Add(float64(n))
	w.cfg.Metrics.WrittenBytes.Add(float64(bytes))
	return results
}

// noteFaultLocked notes why writes fail, or that they succeed. It logs only a change.
func (w *WAL) noteFaultLocked(err error) {
	switch {
	case err != nil && w.faults.write == nil && w.faults.damaged == nil:
		w.cfg.Logger.Error("the log on disk cannot be written: publishes are refused until it can be written", zap.Error(err))
	case err == nil && w.faults.write != nil:
		w.cfg.Logger.Info("the log on disk can be written again")
	}
	if w.faults.write = err; err == nil {
		w.faults.failed = 0
	} else if isDiskFull(err) {
		signal(w.grown)
	}
}

// writeLocked numbers the entries, and writes them with one write. Entries that cannot be
// written get an error in results. If it returns an error, none is in the log, or the error
// is errUnknown.
func (w *WAL) writeLocked(batch []appended, results []broker.Result) (bytes int, err error) {
	if err := w.readyLocked(uint64(len(results))); err != nil {
		return 0, err
	}
	s, from := w.files.current, w.files.current.size
	b, newest, deletes := w.encodeLocked(batch, results)
	if err = w.appendLocked(b); err != nil {
		return 0, err
	}
	w.seq.written = newest
	if deletes || w.cfg.Sync == SyncAlways {
		if err := w.syncLocked(); err != nil {
			return 0, w.cutLocked(s, from, err)
		}
	}
	w.seq.accepted = newest
	return len(b), nil
}

// encodeLocked returns the records of a batch, which are in the buffer that the next batch
// uses, and the number of the newest entry.
func (w *WAL) encodeLocked(batch []appended, results []broker.Result) (b []byte, newest uint64, deletes bool) {
	b, newest = w.noticesLocked(uint64(len(results))), w.seq.written
	full := w.isFullLocked()
	for _, a := range batch {
		for i := range a.entries {
			e, whole := &a.entries[i], len(b)
			w.seq.last++
			e.Message.Position.Epoch, e.Message.Position.Offset = *w.epoch.Load(), w.seq.last
			if full && e.Op == broker.OpPublish {
				w.refuse(refusedFull, 1)
				results[i].Err = problemOf(errFull)
				signal(w.grown)
				continue
			}
			var err error
			if b, err = appendEntry(b, e, w.seq.last, w.files.current.key); err != nil {
				results[i].Err = problem.New(wire.CodeMessageTooLarge, "publish a smaller message", "the message is too large for the log")
				b = b[:whole]
				continue
			}
			newest = w.seq.last
			deletes = deletes || e.Op == broker.OpDelete
		}
		results = results[len(a.entries):]
	}
	if w.buffer = b[:0]; cap(b) > maxBuffer {
		w.buffer = nil
	}
	return b, newest, deletes
}

// cutLocked makes sure that what a refused batch has written after a size does not come back
// after a crash. Else the outcome is unknown, and the error says so.
func (w *WAL) cutLocked(s *segment, size int64, err error) error {
	cut := s.file.Truncate(size)
	if cut == nil {
		s.size, cut = size, errors.New("another sync is under way") // publishers must not wait for it
		if w.syncing.TryLock() {
			cut = cmp.Or(s.file.Sync(), w.syncFailure)
			w.syncing.Unlock()
			if cut == nil {
				return err
			}
			w.damageLocked(cut)
		}
	}
	w.cfg.Logger.Warn("a segment of the log on disk could not be truncated after a failed write: after a crash, refused messages may be in the history", zap.String("file", s.name), zap.Error(cut))
	return fmt.Errorf("%w: %w", errUnknown, err)
}

// maxBuffer bounds the buffer that is kept between batches.
const maxBuffer = 4 << 20

// readyLocked makes sure that a batch of n entries can be written: there is a segment, and
// the lease has as many numbers.
func (w *WAL) readyLocked(n uint64) error {
	if err := cmp.Or(w.faults.damaged, w.faults.full); err != nil {
		return err
	}
	if w.files.current == nil || w.files.current.size >= w.cfg.segmentBytes {
		if err := w.beginSegmentLocked(); err != nil {
			return err
		}
	}
	if w.seq.last+n < w.seq.lease {
		return nil
	}
	if w.seq.nextLease <= w.seq.last+n {
		if err := w.appendLocked(w.appendLeaseLocked(nil, n)); err != nil {
			return err
		}
	}
	return w.syncLocked()
}

// appendLeaseLocked appends a record of a lease with leaseNumbers after the next n entries.
func (w *WAL) appendLeaseLocked(b []byte, n uint64) []byte {
	w.seq.nextLease = w.seq.last + n + w.cfg.leaseNumbers
	return appendNumber(b, kindLease, w.seq.written, w.seq.nextLease, w.files.current.key)
}

// noticesLocked begins a batch: with a new lease if only a quarter of the lease is left
// after n entries, and with what has become durable since the last batch.
func (w *WAL) noticesLocked(n uint64) []byte {
	b := w.buffer[:0]
	if w.seq.synced > w.seq.told {
		b = appendNumber(b, kindSynced, w.seq.synced, uint64(w.files.current.synced), w.files.current.key)
		w.seq.told = w.seq.synced
	}
	if w.seq.nextLease == 0 && w.seq.lease-(w.seq.last+n) < w.cfg.leaseNumbers/4 {
		b = w.appendLeaseLocked(b, n)
	}
	return b
}

// Why entries are refused: the values of a label.
const (
	refusedWaiting  = "waiting"   // too many entries wait to be written
	refusedFull     = "full"      // the files have reached store.bytes
	refusedDiskFull = "disk_full" // no space on the disk, a quota, or a file size limit of the process
	refusedDamaged  = "damaged"   // a sync failed, and no checkpoint has been written since
	refusedError    = "error"     // another error of the disk
)

func (w *WAL) refuse(why string, entries int) {
	w.cfg.Metrics.Refused.WithLabelValues(why).Add(float64(entries))
}

// errEnded refuses entries when nobody writes them any more.
var errEnded = errors.New("the server's log has ended")

// errFull refuses publishes when the files have reached store.bytes.
var errFull = errors.New("the log has reached store.bytes")

// longestBatch is how long the disk may take for a batch. After that it hangs, and entries
// are refused at once: each one that waits may keep a caller, and one of limits.calls.
const longestBatch = 10 * time.Second

// errUnknown is in the error of a batch that was written in part or not synced, and could not
// be cut. This process does not apply it; the next one does if it starts before a new segment.
var errUnknown = errors.New("what was written could not be removed")

var errHangs = fmt.Errorf("the disk has not answered for %v", longestBatch)

func (w *WAL) hangsLocked() bool {
	return !w.queue.since.IsZero() && time.Since(w.queue.since) > longestBatch
}

// noteBatch notes when a batch has begun, or that it has ended.
func (w *WAL) noteBatch(since time.Time) {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	w.queue.since = since
}

// refusalOf returns why entries of a batch that could not be written are refused.
func refusalOf(err error) string {
	switch {
	case errors.Is(err, errDamaged):
		return refusedDamaged
	case isDiskFull(err):
		return refusedDiskFull
	}
	return refusedError
}

// problemOf returns the problem that publishers get after a failed write. It names no file.
func problemOf(err error) *wire.Problem {
	why := "an input or output error"
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		why = errno.Error()
	} else if errors.Is(err, errFull) || errors.Is(err, errHangs) {
		why = err.Error()
	}
	if errors.Is(err, errUnknown) {
		return problem.New(wire.CodeInternal, "retry with the same idempotency key; the server's operator must check its disk",
			"the outcome is unknown: the server cannot write to its disk: %s", why).Retry(time.Second)
	}
	return problem.New(wire.CodeOverloaded, "retry after retry_after_ms; the server's operator must check its disk",
		"the server cannot write to its disk: %s", why).Retry(time.Second)
}
