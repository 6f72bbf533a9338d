package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Store are the counters and histograms of the write-ahead log.
type Store struct {
	SyncSeconds       prometheus.Histogram
	SyncFailures      prometheus.Counter
	CommitSeconds     prometheus.Histogram
	Entries           prometheus.Counter
	WrittenBytes      prometheus.Counter
	Refused           *prometheus.CounterVec // by reason: entries
	Checkpoints       *prometheus.CounterVec // by outcome
	CheckpointSeconds prometheus.Histogram
	RecoverySeconds   prometheus.Gauge
	LostTails         prometheus.Counter
}

// newStore returns the collectors of the write-ahead log.
func newStore(f maker) Store {
	histogram := func(name, help string, least float64, n int) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: prometheus.ExponentialBuckets(least, 2.5, n)})
	}
	s := Store{
		SyncSeconds:       histogram("store_sync_seconds", "Duration of syncs (fsync) of the log.", 100e-6, 13),
		SyncFailures:      f.counter("store_sync_failures_total", "Failed syncs of the log. After each one, publishes and deletions are refused until a checkpoint is durable."),
		CommitSeconds:     histogram("store_commit_seconds", "Duration of commits: write a batch of changes, sync it (with store.sync always, and for deletions), apply it.", 20e-6, 15),
		Entries:           f.counter("store_entries_total", "Changes written to the log: publishes, deletions, and forgotten topics."),
		WrittenBytes:      f.counter("store_written_bytes_total", "Bytes of changes written to the log, without checkpoints."),
		Refused:           f.counters("store_refused_total", "Changes that the log refused, by reason: waiting (they arrive faster than the disk can store them), full (the files have reached store.bytes), disk_full (no space, a quota or a file size limit), damaged (a sync failed, and no checkpoint has been written since), error (another error of the disk).", "reason"),
		Checkpoints:       f.counters("store_checkpoints_total", "Checkpoints, by outcome: made, failed. A checkpoint replaces older files of the log.", "outcome"),
		CheckpointSeconds: histogram("store_checkpoint_seconds", "Duration of checkpoints, during which publishes continue.", 1e-3, 13),
		RecoverySeconds:   f.NewGauge(prometheus.GaugeOpts{Name: prefix + "store_recovery_seconds", Help: "Time that the last start took to read the log."}),
		LostTails:         f.counter("store_lost_tails_total", "1 if the last start announced that messages may be lost: after a crash, the kernel's boot id had changed or was unknown. Otherwise 0."),
	}
	fromZero(s.Refused, "waiting", "full", "disk_full", "damaged", "error")
	fromZero(s.Checkpoints, "made", "failed")
	return s
}

// StoreState is the state of the write-ahead log. The zero value says that there is none.
type StoreState struct {
	Bytes, MostBytes int64
	Reserve          int64 // bytes
	Segments         int
	Waiting          int64 // bytes
	Last, Lease      uint64
	Unsynced         time.Duration
	IsFaulty         bool
}

func (s *StoreState) send(send func(name, help string, v float64)) {
	send("store_bytes", "Bytes of the log's files, without the reserve.", float64(s.Bytes))
	send("store_bytes_limit", "Setting store.bytes; 0 means no limit.", float64(s.MostBytes))
	send("store_reserve_bytes", "Bytes of the file that reserves space for the next checkpoint.", float64(s.Reserve))
	send("store_segments", "Files of the log that the next checkpoint replaces.", float64(s.Segments))
	send("store_waiting_bytes", "Bytes of changes that wait to be written.", float64(s.Waiting))
	send("store_last_offset", "Offset of the newest change in the log.", float64(s.Last))
	send("store_lease_offset", "Offset above all offsets that are in use so far. It is on disk, so it survives crashes.", float64(s.Lease))
	send("store_unsynced_seconds", "Time since all changes were durable, accurate to about a second; 0 if they are. A power loss may lose the changes since then.", s.Unsynced.Seconds())
	send("store_faulty", "1 while the daemon cannot write the log and refuses changes, otherwise 0.", oneIf(s.IsFaulty))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
