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

// A logRunner runs the log of a broker: open, start and stop are called once each, in this order.
type logRunner interface {
	// open returns the broker of the log, which is empty.
	open(cfg broker.Config, now time.Time) *broker.Broker
	// start reads the log, and returns once new messages are accepted. The error says why the log
	// cannot be used; else it is that of ctx. Then the log has ended.
	start(ctx context.Context) error
	// failed returns a channel that gets an error if the log ends by itself after its start. From
	// then on it refuses messages.
	failed() <-chan error
	// stop ends the log, and waits until everything is durable. The error says why it is not.
	stop() error
	// state returns the state of the log for metrics.
	state() metrics.StoreState
}

// newLogRunner returns the runner of the log that cfg asks for. busy is called before what may
// take long, and over afterwards; progress with what the start does, for /readyz.
func newLogRunner(cfg config.Store, m *metrics.Metrics, log *zap.Logger, busy func() (over func()), progress func(string)) (logRunner, error) {
	if cfg.Dir == "" {
		return memoryRunner{m}, nil
	}
	files, err := store.OpenDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	lock, err := files.Lock() // a folder that another daemon uses fails here, before anything listens
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	_ = lock.Close() // nothing was written; the log locks it again
	r := &diskRunner{
		cfg: cfg, files: files, log: log.With(zap.String("store", cfg.Dir)), metrics: m, busy: busy, progress: progress,
		recovered: make(chan struct{}), ended: make(chan struct{}), failures: make(chan error, 1),
	}
	if cfg.Sync == store.SyncStop {
		return stopRunner{r}, nil
	}
	return &walRunner{diskRunner: r}, nil
}

// A memoryRunner is that of a log in memory, which has nothing to read and cannot fail.
type memoryRunner struct{ metrics *metrics.Metrics }

func (r memoryRunner) open(cfg broker.Config, now time.Time) *broker.Broker {
	return broker.New(cfg, r.metrics, now)
}
func (memoryRunner) start(ctx context.Context) error  { return ctx.Err() }
func (memoryRunner) failed() <-chan error             { return nil }
func (memoryRunner) stop() error                      { return nil }
func (memoryRunner) state() (none metrics.StoreState) { return none }

// A walRunner is that of a write-ahead log.
type walRunner struct {
	*diskRunner
	wal *store.WAL
}

func (r *walRunner) open(cfg broker.Config, now time.Time) *broker.Broker {
	b := broker.NewWithLog(cfg, r.metrics, now, func(b *broker.Broker) broker.Log {
		r.wal = store.NewWAL(r.config(), b)
		return r.wal
	})
	r.run = b.Feed
	return b
}

func (r *walRunner) state() metrics.StoreState { return r.wal.Stats().StoreState }

// A stopRunner is that of a log in memory, which is on disk while no daemon runs.
type stopRunner struct{ *diskRunner }

func (r stopRunner) open(cfg broker.Config, now time.Time) *broker.Broker {
	b := broker.New(cfg, r.metrics, now)
	r.run = store.NewStopLog(r.config(), b).Run
	return b
}

func (stopRunner) state() (none metrics.StoreState) { return none }

// A diskRunner is what the runners of logs on disk share.
type diskRunner struct {
	cfg      config.Store
	files    store.FS
	log      *zap.Logger
	metrics  *metrics.Metrics
	busy     func() (over func())
	progress func(string)
	run      func(context.Context) error // set by open: reads the log, and runs it until the context ends

	told      time.Time     // when progress was last logged
	recovered chan struct{} // is closed once the log was read
	cancel    context.CancelFunc
	ended     chan struct{} // is closed once run has returned
	err       error         // of run; valid once ended is closed
	failures  chan error    // has room for the one error
}

func (r *diskRunner) start(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	defer r.busy()()
	running, cancel := context.WithCancel(context.Background()) // it outlasts ctx, for the drain
	r.cancel, r.told = cancel, time.Now()
	go func() {
		defer close(r.ended)
		if r.err = r.run(running); running.Err() == nil {
			r.failures <- cmp.Or(r.err, errors.New("it was not told to"))
		}
	}()
	select {
	case <-r.recovered:
		return nil
	case <-ctx.Done():
		return cmp.Or(r.stop(), ctx.Err())
	case <-r.ended:
		cancel()
		return r.err
	}
}

func (r *diskRunner) failed() <-chan error { return r.failures }

func (r *diskRunner) stop() error {
	defer r.busy()()
	begun := time.Now()
	r.cancel()
	<-r.ended
	if r.err != nil && !errors.Is(r.err, context.Canceled) {
		r.log.Error("the log on disk could not be closed", zap.Error(r.err)) // also returned: it decides the exit code
		return r.err
	}
	r.log.Info("the log on disk was closed", zap.Duration("took", time.Since(begun)))
	return nil
}

func (r *diskRunner) config() store.WALConfig {
	return store.WALConfig{
		FS: r.files, Sync: r.cfg.Sync, Bytes: int64(r.cfg.Bytes), BootID: store.BootID(), Seed: rand.Uint64, Logger: r.log,
		Progress:  r.tell,
		Recovered: r.isRecovered,
		Metrics:   &r.metrics.Store,
	}
}

// tellProgressEvery is how often an entry says how much of the log was read.
const tellProgressEvery = 5 * time.Second

// tell says how much of the log was read.
func (r *diskRunner) tell(read, all int64) {
	r.progress(fmt.Sprintf("starting: the daemon has read %d %% of the log on disk (%d MiB)", read*100/max(all, 1), all>>20))
	if now := time.Now(); now.Sub(r.told) >= tellProgressEvery {
		r.told = now
		r.log.Info("the log on disk is being read", zap.Int64("read_bytes", read), zap.Int64("all_bytes", all))
	}
}

// isRecovered logs what the start found, and ends it.
func (r *diskRunner) isRecovered(found store.Recovery) {
	r.metrics.Store.RecoverySeconds.Set(found.Took.Seconds())
	log := r.log.With(zap.String("epoch", found.Epoch), zap.Uint64("newest", found.Last), zap.Int("records", found.Records),
		zap.Int64("bytes", found.Bytes), zap.Duration("took", found.Took), zap.Bool("ended_in_order", found.Clean))
	if found.Cut > 0 {
		log = log.With(zap.Int64("cut_bytes", found.Cut), zap.String("cut_file", found.CutFile))
	}
	if found.Skipped > 0 {
		log = log.With(zap.Int("skipped_entries_of_a_newer_release", found.Skipped))
	}
	switch {
	case found.Used:
		log.Warn("the last daemon did not write the topics at its end, for instance because it crashed: a new epoch begins, and subscribers get a gap, restarted")
	case found.Lost > 0:
		r.metrics.Store.LostTails.Inc()
		log.Warn("the log on disk was read: the daemon crashed, and the kernel's boot id differs or is unknown, so the newest messages may be lost; subscribers get a gap",
			zap.Uint64("lost_up_to", found.Lost))
	default:
		log.Info("the log on disk was read: nothing is lost")
	}
	close(r.recovered)
}
