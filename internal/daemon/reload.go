package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// Config returns the settings in force.
func (d *Daemon) Config() config.Config { return *d.inForce.Load() }

// Reload puts the settings that load returns in force, as far as they can change while
// clients are served; no connection ends. Others need a restart. The certificate's files
// are read again. The log has each key that changed. If load fails, or its settings are
// not valid, nothing changes, and the log has every reason. Reload may be called at any
// time, also before Run; the service manager hears of it only while the daemon serves.
func (d *Daemon) Reload(load func() (config.Config, error)) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	defer d.manager.reloading()()
	given, err := load()
	if err == nil {
		err = given.Validate()
	}
	var certificate *tls.Certificate
	var clients []*x509.Certificate
	sameFiles := given.TLS == d.cfg.TLS // others need a restart
	if err == nil && sameFiles {
		certificate, clients, err = loadTLS(given.TLS) // the last step that can fail
	}
	if err != nil {
		d.logWrong(err)
		return
	}
	was, level := d.Config(), d.level.Level()
	is := was.Reloaded(given)
	d.level.SetLevel(min(level, levelOf(is))) // entries about the level must not be lost
	if sameFiles && d.certificate != nil {
		if d.auth != nil {
			d.auth.TrustCertificatesOf(clients) // before the first handshake with a new authority
		}
		d.certificate.Replace(certificate, clients)
	}
	d.apply(is)
	d.logChanges(was.Changes(given))
	d.warnOfMistakes(is)
	memory.LogBudget(d.log, is.Broker.MemoryBudget, memory.Limit())
	if is.Limit.Connections != was.Limit.Connections {
		d.files.Log(d.log, is.Limit.Connections)
	}
	if level != levelOf(was) {
		d.log.Info("log level is as configured again", zap.Stringer("was", level), zap.String("is", is.Log.Level))
	}
	d.level.SetLevel(levelOf(is))
}

// logWrong logs each error that err joins. It counts those of the certificate.
func (d *Daemon) logWrong(err error) {
	wrong := []error{err}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		wrong = joined.Unwrap()
	}
	for _, e := range wrong {
		d.log.Error("cannot reload", zap.Error(e))
		if of, ok := errors.AsType[*config.Error](e); ok && strings.HasPrefix(of.Key, "tls.") {
			d.metrics.CertificateFailures.Inc()
		}
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

// warnOfMistakes warns of settings that may be mistakes.
func (d *Daemon) warnOfMistakes(cfg config.Config) {
	for _, warning := range cfg.Warnings() {
		d.log.Warn(warning)
	}
}

// apply puts cfg in force in every part of the daemon.
func (d *Daemon) apply(cfg config.Config) {
	d.inForce.Store(&cfg)
	d.broker.Reload(brokerConfig(cfg), time.Now())
	d.limiter.Reload(limitConfig(cfg, d.files))
	d.accessLog.Reload(cfg.Log.Access)
	d.hooks.reload(cfg, d.limiter.Config())
	d.sessions.Reload(cfg.Session)
	d.hosts.Reload(cfg.Hosts)
	d.adminHosts.Reload(cfg.Hosts)
	limits := limitsOf(cfg, d.sessions.Config(), d.limiter.Config())
	d.polls.Reload(cfg.Transport, limits)
	d.app.Reload(limits)
	select {
	case d.reloaded <- struct{}{}:
	default: // it is about to wake
	}
}
