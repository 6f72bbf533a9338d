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
	var refused *wire.Problem
	w.queue.mu.Lock()
	switch {
	case w.queue.closed:
		refused = problem.New(wire.CodeOverloaded, "retry later, or at another server; the server's operator must restart it", "%s", errEnded).Retry(time.Second)
	case w.hangsLocked():
		w.refuse(refusedWaiting, len(e))
		refused = problemOf(errHangs)
	case w.queue.waiting > 0 && w.queue.waiting+a.bytes > w.cfg.pendingBytes:
		w.refuse(refusedWaiting, len(e))
		refused = problem.New(wire.CodeOverloaded, "retry after retry_after_ms",
			"messages arrive faster than the disk can store them").Retry(100 * time.Millisecond)
	default:
		w.queue.pending = append(w.queue.pending, a)
		w.queue.waiting += a.bytes
	}
	w.queue.mu.Unlock()
	if refused != nil {
		done(failed(len(e), refused))
		return
	}
	signal(w.wake)
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
	q := &w.queue
	q.mu.Lock()
	n, entries, bytes := 0, 0, int64(0)
	for n < len(q.pending) && (n == 0 || bytes+q.pending[n].bytes <= w.cfg.batchBytes) {
		entries, bytes = entries+len(q.pending[n].entries), bytes+q.pending[n].bytes
		n++
	}
	batch := q.pending[:n:n]
	q.pending, q.waiting, more = q.pending[n:], q.waiting-bytes, n < len(q.pending)
	if !more {
		q.pending = nil
	}
	if n > 0 {
		q.since = now
	}
	q.mu.Unlock()
	if n == 0 {
		return false
	}
	results := make([]broker.Result, entries)
	w.commit(batch, results, now)
	for _, a := range batch {
		a.done(results[:len(a.entries):len(a.entries)])
		results = results[len(a.entries):]
	}
	return more
}

// commit writes a batch and applies its entries, or refuses them.
func (w *WAL) commit(batch []appended, results []broker.Result, now time.Time) {
	w.writing.Lock()
	bytes, err := w.writeLocked(batch, results)
	w.noteFaultLocked(err)
	w.applying.Lock() // a checkpoint waits until what is accepted is applied
	defer w.applying.Unlock()
	w.unlock()
	w.queue.mu.Lock()
	w.queue.since = time.Time{} // a slow fan-out is not a slow disk
	w.queue.mu.Unlock()
	if err != nil {
		why := refusedError
		switch {
		case errors.Is(err, errDamaged):
			why = refusedDamaged
		case isDiskFull(err):
			why = refusedDiskFull
		}
		w.refuse(why, len(results))
		var problem error = problemOf(err)
		for i := range results {
			results[i].Err = cmp.Or(results[i].Err, problem)
		}
		return
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
	w.cfg.Metrics.Entries.Add(float64(len(results)))
	w.cfg.Metrics.WrittenBytes.Add(float64(bytes))
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
	n := uint64(len(results))
	if err := w.readyLocked(n); err != nil {
		return 0, err
	}
	s, from, b := w.files.current, w.files.current.size, w.buffer[:0]
	if w.seq.synced > w.seq.told { // something has become durable since the last batch
		b = appendNumber(b, kindSynced, w.seq.synced, uint64(s.synced), s.key)
		w.seq.told = w.seq.synced
	}
	if w.seq.nextLease == 0 && w.seq.lease-(w.seq.last+n) < w.cfg.leaseNumbers/4 {
		b = w.appendLeaseLocked(b, n)
	}
	full, newest, deletes := w.isFullLocked(), w.seq.written, false
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
			if b, err = appendEntry(b, e, w.seq.last, s.key); err != nil {
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
