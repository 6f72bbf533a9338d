package store

import (
	"cmp"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A SyncMode says when written records become durable.
type SyncMode string

// The modes. In every mode but SyncStop a deletion is durable before subscribers see it.
const (
	SyncAlways      SyncMode = "always" // before subscribers see a message
	SyncEverySecond SyncMode = "1s"     // once a second
	SyncNever       SyncMode = "never"  // when the operating system writes them
	SyncStop        SyncMode = "stop"   // when the daemon stops: see StopLog
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

	Metrics *metrics.Store // default: of nobody

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
	if c.Metrics == nil {
		c.Metrics = &metrics.New("").Store
	}
	return c
}
