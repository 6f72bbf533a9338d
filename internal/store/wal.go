package store

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A SyncMode says when written records become durable.
type SyncMode string

// The modes.
const (
	SyncAlways      SyncMode = "always" // before subscribers see a message
	SyncEverySecond SyncMode = "1s"     // once a second
	SyncNever       SyncMode = "never"  // when the operating system writes them
)

// WALConfig configures a WAL. Fields without a default must be set.
type WALConfig struct {
	FS   FS
	Sync SyncMode // default SyncEverySecond

	// Bytes bounds all files together. Default 0: no bound.
	Bytes int64

	// BootID tells one run of the kernel from another. If it is the same after a crash,
	// everything that was written is there. Default "": unknown.
	BootID string

	// Seed returns a random number for each new file. Its checksums depend on it.
	Seed func() uint64

	Logger *zap.Logger // default: none

	// Progress is called while the log is read, with the bytes that were read, of all.
	Progress func(read, all int64) // default: none

	// Recovered is called once, when the log was read and new entries are accepted.
	Recovered func(Recovery) // default: none

	// Observe is called for each of these, from any goroutine.
	Observe Observer // default: nobody

	segmentBytes    int64  // size at which a new segment begins; default 64 MiB
	checkpointBytes int64  // size of all segments at which a checkpoint is due, if histories are smaller; default 64 MiB
	leaseNumbers    uint64 // how many offsets a lease has; default 1 Mi
	pendingBytes    int64  // bound of entries that wait to be written; default 64 MiB
}

// An Observer gets what metrics count.
type Observer struct {
	Synced       func(d time.Duration, err error)              // an fsync
	Committed    func(entries, bytes int, d time.Duration)     // a write of a batch, with its fsync if the mode is always
	Failed       func(err error)                               // a write failed
	Refused      func()                                        // an entry was refused because too many wait
	Checkpointed func(bytes int64, d time.Duration, err error) // a checkpoint ended
}

// A Recovery says what the start of a log found.
type Recovery struct {
	Epoch    string
	Last     uint64        // newest offset that was recovered
	Lost     uint64        // unless 0, messages up to this offset may be lost
	Records  int           // that were read
	Bytes    int64         // that were read
	Cut      int64         // bytes of incomplete records at the end, which were ignored
	CutFile  string        // where; empty: nowhere
	Clean    bool          // the daemon before had ended in order
	SameBoot bool          // the kernel is the same as before
	Took     time.Duration // of the clock that open and step get
}

// A WAL is a write-ahead log: a broker.Log that keeps its entries in files.
type WAL struct {
	cfg    WALConfig
	broker *broker.Broker
}

// NewWAL returns the log of a broker. Its owner calls Feed, which reads the files first.
func NewWAL(cfg WALConfig, b *broker.Broker) *WAL { return &WAL{cfg: cfg, broker: b} }

// Append implements broker.Log. Entries wait until the next step.
func (w *WAL) Append(e []broker.Entry, done func([]broker.Result)) {}

// Feed implements broker.Log: it opens the log, and runs it until ctx ends. Then it closes the log.
func (w *WAL) Feed(ctx context.Context, apply func(broker.Entry) error) error { return nil }

// Partitions implements broker.Log.
func (w *WAL) Partitions() int { return 1 }

// Partition implements broker.Log.
func (w *WAL) Partition(string) int { return 0 }

// Applied implements broker.Log.
func (w *WAL) Applied(at wire.Position) bool { return false }

// The methods below have no goroutine and no clock. Feed calls them. A simulation calls
// them itself, in one goroutine.

// open locks the folder, reads the log, applies its entries, and begins a segment. An error
// says why the daemon must not start. Then nothing was changed, and the lock was released.
func (w *WAL) open(apply func(broker.Entry) error, now time.Time) error { return nil }

// step writes the entries that wait, applies them, and calls their callbacks: at most one
// batch. It reports whether more wait. After a failed write it also tries to write again.
func (w *WAL) step(now time.Time) (more bool) { return false }

// syncStep makes durable what the mode says: with "1s" all that was written, with "never"
// and "always" only a new lease. After a fault it tries to write again. Feed calls it once
// a second.
func (w *WAL) syncStep(now time.Time) {}

// checkpointStep writes a part of a checkpoint, which it begins if one is due: then it
// also ends it, some calls later. It reports whether the checkpoint has more parts.
func (w *WAL) checkpointStep(now time.Time) (more bool) { return false }

// wantCheckpoint makes a checkpoint due.
func (w *WAL) wantCheckpoint() {}

// close writes what waits, makes everything durable, marks the end as clean, and releases the lock.
// After a fault the end is not clean, and it returns why.
func (w *WAL) close(now time.Time) error { return nil }

// abandon releases the lock and the files, as the end of the process does.
func (w *WAL) abandon() {}
