package daemon

import (
	"crypto/tls"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// reloading holds the settings that change while a daemon runs.
type reloading struct {
	once    sync.Mutex // held by a reload
	inForce atomic.Pointer[config.Config]
	level   zap.AtomicLevel // operators change it, too, on the admin listener
	told    chan struct{}   // wakes the sweeper after a change; never closed
}

func newReloading(cfg config.Config) *reloading {
	r := &reloading{level: zap.NewAtomicLevelAt(levelOf(cfg)), told: make(chan struct{}, 1)}
	r.inForce.Store(&cfg)
	return r
}

// levelOf returns log.level, or info if cfg is not valid.
func levelOf(cfg config.Config) zapcore.Level {
	level, err := zapcore.ParseLevel(cfg.Log.Level)
	if err != nil {
		return zapcore.InfoLevel
	}
	return level
}

// Config returns the settings in force.
func (d *Daemon) Config() config.Config { return *d.reload.inForce.Load() }

// Reload puts the settings that load returns in force, as far as they can change while
// clients are served; no connection ends. Others need a restart. The certificate's files
// are read again. The log has each key that changed. If load fails, or its settings are
// not valid, nothing changes, and the log has every reason. Reload may be called at any
// time, also before Run; the service manager hears of it only while the daemon serves.
func (d *Daemon) Reload(load func() (config.Config, error)) {
	d.reload.once.Lock()
	defer d.reload.once.Unlock()
	defer d.manager.reloading()()
	said, err := load()
	if err == nil {
		err = said.Validate()
	}
	var certificate *tls.Certificate // nil: there is none, or another needs a restart
	if err == nil && said.TLS == d.cfg.TLS {
		certificate, err = certificateOf(said.TLS) // the last that can fail
	}
	if err != nil {
		d.logWrong(err)
		return
	}
	was, level := d.Config(), d.reload.level.Level()
	is := was.Reloaded(said)
	d.reload.level.SetLevel(min(level, levelOf(is))) // entries about the level must not be lost
	if certificate != nil {
		d.certificate.Replace(certificate)
	}
	d.apply(is)
	d.logChanges(was.Changes(said))
	d.tellDoubts(is)
	memory.LogBudget(d.log, is.Broker.MemoryBudget, memory.Limit())
	if is.Limit.Connections != was.Limit.Connections {
		d.files.Log(d.log, is.Limit.Connections)
	}
	if level != levelOf(was) {
		d.log.Info("log level is as configured again", zap.Stringer("was", level), zap.String("is", is.Log.Level))
	}
	d.reload.level.SetLevel(levelOf(is))
}

// logWrong logs each error that err joins.
func (d *Daemon) logWrong(err error) {
	wrong := []error{err}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		wrong = joined.Unwrap()
	}
	for _, e := range wrong {
		d.log.Error("cannot reload", zap.Error(e))
	}
	d.log.Error("nothing was reloaded: every setting stays as it was", zap.Int("errors", len(wrong)))
}

func (d *Daemon) logChanges(changes []config.Change) {
	changed := 0
	for _, c := range changes {
		if c.Live {
			changed++
			d.log.Info("setting changed", zap.String("key", c.Key), zap.String("was", c.Old), zap.String("is", c.New))
			continue
		}
		d.log.Warn("setting needs a restart and stays as it was", zap.String("key", c.Key), zap.String("is", c.Old), zap.String("said", c.New))
	}
	d.log.Info("reloaded", zap.Int("changed", changed), zap.Int("need_restart", len(changes)-changed))
}

// tellDoubts warns of settings that may be mistakes.
func (d *Daemon) tellDoubts(cfg config.Config) {
	for _, doubt := range cfg.Doubts() {
		d.log.Warn(doubt)
	}
}

// apply puts cfg in force, room by room.
func (d *Daemon) apply(cfg config.Config) {
	d.reload.inForce.Store(&cfg)
	d.broker.Reload(brokerConfig(cfg), time.Now())
	d.limiter.Reload(limitConfig(cfg, d.files))
	d.hook.reload(cfg, d.limiter.Config())
	d.sessions.Reload(cfg.Session)
	polls := cfg.Transport.WithDefaults()
	limits := limitsOf(polls, d.sessions.Config(), d.limiter.Config(), cfg.MessageBytes)
	d.polls.Reload(cfg.Transport, limits)
	d.app.Reload(limits)
	d.api.Reload(polls.WriteTimeout)
	select {
	case d.reload.told <- struct{}{}:
	default: // it is about to wake
	}
}
