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

// Label values of the log.
var (
	storeRefusals    = []string{"waiting", "full", "disk_full", "damaged", "error"}
	storeCheckpoints = []string{"made", "failed"}
)

// newStore returns the collectors of the write-ahead log.
func newStore(f maker) Store {
	histogram := func(name, help string, least float64, n int) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: prometheus.ExponentialBuckets(least, 2.5, n)})
	}
	s := Store{
		SyncSeconds:       histogram("store_sync_seconds", "Time that the disk took to make what was written durable (fsync).", 100e-6, 13),
		SyncFailures:      f.counter("store_sync_failures_total", "Syncs of the log that failed. After each, publishes are refused until a checkpoint is durable."),
		CommitSeconds:     histogram("store_commit_seconds", "Time that a batch of changes took to be written, synced (with store.sync always, and for deletions) and applied.", 20e-6, 15),
		Entries:           f.counter("store_entries_total", "Changes (publishes, deletions and topics that were forgotten) that were written to the log."),
		WrittenBytes:      f.counter("store_written_bytes_total", "Bytes of changes that were written to the log, without checkpoints."),
		Refused:           f.counters("store_refused_total", "Changes that the log refused, by reason: waiting (they come faster than the disk takes them), full (store.bytes), disk_full, damaged (a sync failed, and no checkpoint was made since), error (another error of the disk).", "reason"),
		Checkpoints:       f.counters("store_checkpoints_total", "Checkpoints, which replace older files of the log, by outcome: made, failed.", "outcome"),
		CheckpointSeconds: histogram("store_checkpoint_seconds", "Time that a checkpoint took, beside publishes.", 1e-3, 13),
		RecoverySeconds:   f.NewGauge(prometheus.GaugeOpts{Name: prefix + "store_recovery_seconds", Help: "Time that the start took to read the log."}),
		LostTails:         f.counter("store_lost_tails_total", "1 if this start announced that messages may be lost: the machine lost its power, or crashed. Otherwise 0."),
	}
	fromZero(s.Refused, storeRefusals)
	fromZero(s.Checkpoints, storeCheckpoints)
	return s
}

// StoreState is the state of the write-ahead log. The zero value says that there is none.
type StoreState struct {
	Bytes, MostBytes int64
	Segments         int
	Waiting          int64 // bytes
	Last, Lease      uint64
	Unsynced         time.Duration
	IsFaulty         bool
}

func (s *StoreState) send(send func(name, help string, v float64)) {
	send("store_bytes", "Bytes of all files of the log.", float64(s.Bytes))
	send("store_bytes_limit", "store.bytes; 0 is no limit.", float64(s.MostBytes))
	send("store_segments", "Files of the log that the next checkpoint replaces.", float64(s.Segments))
	send("store_waiting_bytes", "Bytes of changes that wait to be written to the log.", float64(s.Waiting))
	send("store_last_offset", "Number of the newest change in the log.", float64(s.Last))
	send("store_lease_offset", "All numbers that were used are below this one, also after a crash.", float64(s.Lease))
	send("store_unsynced_seconds", "For how long some changes have not been durable, to about a second; a loss of power would lose them.", s.Unsynced.Seconds())
	send("store_faulty", "1 while the log refuses changes because of its disk, otherwise 0.", oneIf(s.IsFaulty))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
