package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/store"
)

// A feed runs the log of a broker: from start until stop. Without store.dir the log is in
// memory, and has nothing to read.
type feed struct {
	cfg      config.Store
	log      *zap.Logger
	metrics  *metrics.Metrics
	busy     func() (over func())
	progress func(string) // is called with what the start does, for /readyz

	files store.FS                    // nil: the log is in memory
	wal   *store.WAL                  // nil: likewise, or it is on disk only while no daemon runs
	run   func(context.Context) error // reads the log, and runs it until the context ends

	told      time.Time     // when progress was last logged
	recovered chan struct{} // is closed once the log was read
	cancel    context.CancelFunc
	ended     chan error // gets the error of Feed
}

// newFeed opens the folder of cfg, if there is one.
func newFeed(cfg config.Store, m *metrics.Metrics, log *zap.Logger, busy func() (over func())) (*feed, error) {
	f := &feed{cfg: cfg, log: log, metrics: m, busy: busy, recovered: make(chan struct{}), ended: make(chan error, 1)}
	if cfg.Dir == "" {
		return f, nil
	}
	var err error
	if f.files, err = store.OpenDir(cfg.Dir); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	lock, err := f.files.Lock() // a folder that another daemon uses fails here, before anything listens
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	_ = lock.Close() // nothing was written; Run locks it again
	f.log = log.With(zap.String("store", cfg.Dir))
	return f, nil
}

// broker returns a broker on the log.
func (f *feed) broker(cfg broker.Config, now time.Time) *broker.Broker {
	if f.files == nil || f.cfg.Sync == store.SyncStop {
		b := broker.New(cfg, f.metrics, now)
		if f.files != nil {
			f.run = store.NewStopLog(f.walConfig(), b).Run
		}
		return b
	}
	b := broker.NewWithLog(cfg, f.metrics, now, func(b *broker.Broker) broker.Log {
		f.wal = store.NewWAL(f.walConfig(), b)
		return f.wal
	})
	f.run = b.Feed
	return b
}

func (f *feed) walConfig() store.WALConfig {
	return store.WALConfig{
		FS: f.files, Sync: f.cfg.Sync, Bytes: int64(f.cfg.Bytes), BootID: store.BootID(), Seed: rand.Uint64, Logger: f.log,
		Progress:  f.tell,
		Recovered: f.isRecovered,
		Observe:   observeStore(&f.metrics.Store),
	}
}

// observeStore returns the functions that count what the log does.
func observeStore(m *metrics.Store) store.Observer {
	return store.Observer{
		Synced: func(took time.Duration, err error) {
			m.SyncSeconds.Observe(took.Seconds())
			if err != nil {
				m.SyncFailures.Inc()
			}
		},
		Committed: func(entries, bytes int, took time.Duration) {
			m.CommitSeconds.Observe(took.Seconds())
			m.Entries.Add(float64(entries))
			m.WrittenBytes.Add(float64(bytes))
		},
		Refused: func(why store.Refusal, entries int) { m.Refused.WithLabelValues(string(why)).Add(float64(entries)) },
		Checkpointed: func(took time.Duration, err error) {
			if err != nil {
				m.Checkpoints.WithLabelValues("failed").Inc()
				return
			}
			m.Checkpoints.WithLabelValues("made").Inc()
			m.CheckpointSeconds.Observe(took.Seconds())
		},
	}
}

// start reads the log, and returns once new messages are accepted. The error says why the log
// cannot be used; else it is that of ctx. Then the feed has ended.
func (f *feed) start(ctx context.Context, b *broker.Broker) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	feeding, cancel := context.WithCancel(context.Background()) // it outlasts ctx, for the drain
	f.cancel = cancel
	if f.files == nil {
		f.ended <- b.Feed(feeding)
		return nil
	}
	defer f.busy()()
	f.told = time.Now()
	go func() { f.ended <- f.run(feeding) }()
	select {
	case <-f.recovered:
		return nil
	case <-ctx.Done():
		return cmp.Or(f.stop(), ctx.Err())
	case err := <-f.ended:
		cancel()
		return err
	}
}

// stop ends the log, and waits until everything is durable.
func (f *feed) stop() error {
	if f.files != nil {
		defer f.busy()()
	}
	begun := time.Now()
	f.cancel()
	err := <-f.ended
	switch {
	case f.files == nil:
		return err
	case err == nil, errors.Is(err, context.Canceled):
		f.log.Info("the log on disk was closed", zap.Duration("took", time.Since(begun)))
		return nil
	}
	f.log.Error("the log on disk could not be closed", zap.Error(err)) // also returned: it decides the exit code
	return err
}

// tellProgressEvery is how often an entry says how much of the log was read.
const tellProgressEvery = 5 * time.Second

// tell says how much of the log was read.
func (f *feed) tell(read, all int64) {
	f.progress(fmt.Sprintf("starting: the daemon has read %d %% of the log on disk (%d MiB)", read*100/max(all, 1), all>>20))
	if now := time.Now(); now.Sub(f.told) >= tellProgressEvery {
		f.told = now
		f.log.Info("the log on disk is being read", zap.Int64("read_bytes", read), zap.Int64("all_bytes", all))
	}
}

// isRecovered logs what the start found, and ends it.
func (f *feed) isRecovered(r store.Recovery) {
	f.metrics.Store.RecoverySeconds.Set(r.Took.Seconds())
	log := f.log.With(zap.String("epoch", r.Epoch), zap.Uint64("newest", r.Last), zap.Int("records", r.Records),
		zap.Int64("bytes", r.Bytes), zap.Duration("took", r.Took), zap.Bool("ended_in_order", r.Clean))
	if r.Cut > 0 {
		log = log.With(zap.Int64("cut_bytes", r.Cut), zap.String("cut_file", r.CutFile))
	}
	if r.Skipped > 0 {
		log = log.With(zap.Int("skipped_entries_of_a_newer_release", r.Skipped))
	}
	switch {
	case r.Used:
		log.Warn("the last daemon did not write the topics at its end, for instance because it crashed: a new epoch begins, and subscribers get a gap, restarted")
	case r.Lost > 0:
		f.metrics.Store.LostTails.Inc()
		log.Warn("the log on disk was read: the daemon crashed, and the kernel's boot id differs or is unknown, so the newest messages may be lost; subscribers get a gap",
			zap.Uint64("lost_up_to", r.Lost))
	default:
		log.Info("the log on disk was read: nothing is lost")
	}
	close(f.recovered)
}

// state returns the state of the log for metrics.
func (f *feed) state(now time.Time) (s metrics.StoreState) {
	if f.wal == nil {
		return s
	}
	is := f.wal.Stats()
	s = metrics.StoreState{
		Bytes: is.Bytes, Reserve: is.Reserve, MostBytes: int64(f.cfg.Bytes), Segments: is.Segments, Waiting: is.Waiting,
		Last: is.Last, Lease: is.Lease, IsFaulty: is.Fault != nil,
	}
	if is.Synced < is.Last && !is.SyncedAt.IsZero() {
		s.Unsynced = now.Sub(is.SyncedAt)
	}
	return s
}
