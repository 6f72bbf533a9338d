// Package daemon builds, runs, reloads and drains one pubsubd. Several daemons can run in
// one process, each on port 0.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/acme"
	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/httpapi"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/presence"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// A Daemon is one pubsubd. Call New, Listen and Run once each, in this order.
//
// Run starts the log, the HTTP servers of both listeners and of connections that the lane
// gives back, the TCP port, the sweeper, the memory watcher, and the access log. The API
// waits for its requests, the lane for its connections, and the broker for its fan-outs. All
// have ended when Run returns, unless a file of the authority hangs; see release.
type Daemon struct {
	cfg      config.Config // at the start; see Config
	log      *zap.Logger
	metrics  *metrics.Metrics
	runner   logRunner
	broker   *broker.Broker
	limiter  *limit.Limiter
	files    listen.OpenFiles
	sessions *session.Registry
	members  *presence.Members
	auth     *auth.Authority // nil: there is no authorisation
	watcher  *memory.Watcher
	polls    *transport.Server

	accessLog *observe.AccessLog
	traces    *observe.Traces // nil: none

	app               *app.App
	api               *httpapi.API
	listeners         listeners
	servers           servers
	acme              *acme.Manager       // nil: certificates are files, or there are none
	certificate       *listen.Certificate // nil without TLS
	hosts, adminHosts *cors.Hosts         // of the public and of the admin listener
	hooks             hooks

	reloading sync.Mutex                    // held by Reload
	inForce   atomic.Pointer[config.Config] // the settings in force, including reloaded ones
	level     zap.AtomicLevel               // operators can also change it on the admin listener
	reloaded  chan struct{}                 // wakes the sweeper after a reload; never closed

	state   atomic.Pointer[string] // why the daemon is not ready; nil: it is
	manager *notifier

	watching sync.WaitGroup // of the authority's Run
}

// listeners are where connections come in. Those that the settings do not name are nil.
type listeners struct {
	public, admin, tcp *listen.Listener
	acme               *listen.Listener // for challenges over HTTP

	spare   listen.Spare // open from Listen to the end
	sockets listen.Sockets
}

// close closes the listeners that were bound.
func (l *listeners) close() error {
	l.spare.Close()
	var failed []error
	for _, l := range []*listen.Listener{l.public, l.admin, l.tcp, l.acme} {
		if l != nil {
			failed = append(failed, l.Close())
		}
	}
	return errors.Join(failed...)
}

// servers serve the connections of listeners.
type servers struct {
	public, admin *http.Server
	challenges    *http.Server // of ACME over HTTP; nil: none
	tcp           *transport.Port
}

// New builds a daemon's parts. cfg must be valid. log takes entries of every level; cfg
// chooses among them. m is of this daemon alone. New fails if the certificate, a file of keys, the file of revocations or
// the folder of the log cannot be used, or if another running daemon has one of the last two.
func New(cfg config.Config, log *zap.Logger, m *metrics.Metrics) (d *Daemon, err error) {
	level := zap.NewAtomicLevelAt(levelOf(cfg))
	all := log // for the access log, which has no level
	log = log.WithOptions(zap.IncreaseLevel(level), zap.WrapCore(func(to zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(to, time.Second, 100, 100) // of an entry that repeats; the access log has its own
	}))
	whoMay := log.Info // the first entry
	if cfg.Insecure {
		whoMay = log.Warn
	}
	whoMay(cfg.WhoMay())
	certificate, clients, err := loadTLS(cfg.TLS)
	if err != nil {
		return nil, err
	}
	traces, err := observe.NewTraces(cfg.Tracing, m, log)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	var authority app.Authority = auth.Open{}
	var identifies *auth.Authority // nil: there is no authorisation
	defer func() {
		if err != nil {
			identifies.Close()
			traces.Close()
		}
	}()
	if cfg.Auth.On() {
		if identifies, err = auth.New(cfg.Auth, m, log); err != nil {
			return nil, err
		}
		authority = identifies
	}
	manager := newNotifier(log)
	runner, err := newLogRunner(cfg.Store, m, log, manager.busy, func(why string) { d.notReady(why) })
	if err != nil {
		return nil, err
	}
	b := runner.open(brokerConfig(cfg), time.Now())
	files := listen.OpenFilesLimit()
	limiter := limit.New(limitConfig(cfg, files), m)
	sessions, limits := cfg.Session, limiter.Config()
	sessions.Slots = limiter.Sessions()
	if identifies != nil {
		sessions.Revoked, sessions.Forbidden = identifies.Revoked, identifies.Revocations().Forbidden
		identifies.TrustCertificatesOf(clients)
	}
	hooks := newHooks(cfg, limits, b, m, log)
	members := presence.New(b, m)
	sessions.Events, sessions.Presence = hooks.events, members
	d = &Daemon{
		cfg: cfg, log: log, metrics: m, runner: runner, broker: b, limiter: limiter, files: files, manager: manager,
		sessions: session.NewRegistry(sessions, b, m),
		members:  members,
		hooks:    hooks,
		auth:     identifies,
		level:    level, reloaded: make(chan struct{}, 1),
		accessLog: observe.NewAccessLog(cfg.Log.Access, all, m), traces: traces,
	}
	switch {
	case cfg.ACME.On():
		if d.acme, err = acme.New(cfg.ACME, m, log); err != nil {
			return nil, err
		}
		d.certificate = listen.NewCertificate(d.acme, acme.Protocol, log)
	case certificate != nil:
		d.certificate = listen.NewCertificate(nil, "", log)
	}
	d.certificate.Replace(certificate, clients)
	d.inForce.Store(&cfg)
	isOpen, isAdminOpen := cfg.AcceptsEveryHost()
	d.hosts, d.adminHosts = cors.NewHosts(cfg.Hosts, isOpen, log), cors.NewHosts(cfg.Hosts, isAdminOpen, log)
	d.watcher = memory.NewWatcher(b.Memory(), d.sessions.Trim, log)
	d.notReady("starting")
	shown := limitsOf(cfg, d.sessions.Config(), limits)
	d.polls = transport.New(cfg.Transport, shown, b.Memory(), m, traces)
	m.Gather(d.gauges)
	d.app = app.New(app.Config{
		Broker: b, Sessions: d.sessions, Presence: members, Authority: authority, Revocations: identifies.Revocations(), Limiter: limiter,
		Hook: d.hooks.publish, Authorize: d.hooks.authorize,
		Metrics: m, Log: log, Traces: traces, Limits: shown,
	})
	d.api = httpapi.New(httpapi.Config{
		App: d.app, Limiter: limiter, Polls: d.polls, Metrics: m,
		Way:     lane.Way(cfg.Lane),
		Origins: cfg.Origins,
		Hosts:   d.hosts,
		Log:     log,

		AccessLog: d.accessLog,
	})
	d.servers.tcp = transport.NewPort(d.api.Lane)
	d.servers.public = d.server(d.api)
	d.servers.public.ConnState = listen.ConnState
	d.servers.public.Protocols = new(http.Protocols)
	d.servers.public.Protocols.SetHTTP1(true)
	d.servers.public.Protocols.SetHTTP2(cfg.ServesTLS())
	d.servers.public.Protocols.SetUnencryptedHTTP2(cfg.HTTP2.Cleartext && !cfg.ServesTLS())
	d.servers.public.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReadFrameSize:              maxFrameBytes,
		MaxReceiveBufferPerStream:     streamWindow,
		MaxReceiveBufferPerConnection: connectionWindow,
		SendPingTimeout:               pingAfter,
		PingTimeout:                   pingTimeout,
		WriteByteTimeout:              cfg.Transport.WriteTimeout, // of connections that take no bytes at all; each answer has its own
	}
	d.servers.admin = d.server(httpapi.NewAdmin(httpapi.AdminConfig{
		App: d.app, Metrics: m.Registry, Sessions: d.sessions, Ready: d.whyNotReady, LogLevel: d.level, Hosts: d.adminHosts,
		Key: func() ([]byte, error) { return d.Config().Admin.Key() },
	}))
	return d, nil
}

// Listen binds the listeners, or takes the sockets that Start was passed. After an error the
// daemon cannot be used.
func (d *Daemon) Listen() error {
	d.listeners.spare.Open()
	var err error
	listenOn := func(to **listen.Listener, name, address string, cfg listen.Config) {
		if err == nil && address != "" {
			cfg.Name, cfg.Address, cfg.Sockets = name, address, d.listeners.sockets
			*to, err = listen.Listen(cfg)
		}
	}
	cfg := listen.Config{
		SocketMode: listen.OwnerAndGroup, Limiter: d.limiter,
		Certificate: d.certificate, ALPN: alpn, Refusal: listen.HTTPRefusal,
		WriteTimeout: d.cfg.Transport.WriteTimeout, Spare: &d.listeners.spare, Metrics: d.metrics, Log: d.log,
	}
	listenOn(&d.listeners.public, "public", d.cfg.Listen.Public, cfg)
	challenges := cfg
	challenges.Certificate = nil
	listenOn(&d.listeners.acme, "acme", d.cfg.Listen.ACME, challenges)
	cfg.ALPN, cfg.Refusal = nil, nil
	listenOn(&d.listeners.tcp, "tcp", d.cfg.Listen.TCP, cfg)
	cfg.SocketMode, cfg.Limiter, cfg.MaxConnections, cfg.Certificate = listen.OwnerOnly, nil, listen.AdminConnections, nil
	listenOn(&d.listeners.admin, "admin", d.cfg.Listen.Admin, cfg)
	if err == nil {
		err = d.listeners.sockets.Unused()
	}
	if err != nil {
		d.release()
		_ = d.listeners.close()
		return err
	}
	d.warnOfMistakes(d.cfg)
	memory.LogBudget(d.log, d.cfg.Broker.MemoryBudget, memory.Limit())
	d.files.Log(d.log, d.cfg.Limit.Connections)
	return nil
}

// filesTimeout is how long the daemon waits at its end for the files of keys and revocations.
const filesTimeout = 5 * time.Second

// release gives up the files that only one daemon has at a time. It waits only for a while for
// those of the authority: a revocation or a look at the keys may hang in the file system.
func (d *Daemon) release() {
	closed := make(chan struct{})
	go func() {
		d.watching.Wait()
		d.auth.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(filesTimeout):
		d.log.Warn("the file system of auth.revocations, or of a file of keys, does not answer: the daemon stops without waiting longer; a revocation that was not acknowledged may not be on disk")
	}
	d.traces.Close()
}

// Run serves until ctx ends, and then drains, after drain.delay. In a drain, readiness fails, and the
// daemon refuses new sessions and messages. Sessions end one after the other, and their polls
// and streams get the reason. Answers that outlast the drain window are cut off. At the
// end Run closes the log. The error is that of a server or of the log. Before, while the log is read, only the admin
// listener is served. If ctx ends by then, Run serves nobody and leaves the files as they are.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.release()
	failed := make(chan error, 5) // capacity for every server, so that none blocks
	var running sync.WaitGroup
	serve := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); err != http.ErrServerClosed {
			failed <- err
		}
	}
	running.Go(func() { serve(d.servers.admin, d.listeners.admin) }) // /readyz says how far the start is
	if err := d.runner.start(ctx); err != nil {
		closed := d.listeners.close()
		_ = d.servers.admin.Close() // its listener is closed already
		running.Wait()
		if errors.Is(err, context.Canceled) {
			d.log.Info("stopped before serving a client")
			return closed
		}
		return errors.Join(err, closed)
	}
	if d.acme != nil {
		var challenges net.Addr
		if d.listeners.acme != nil {
			challenges = d.listeners.acme.Addr()
			d.servers.challenges = d.server(d.acme)
		}
		d.acme.Start(d.listeners.public.Addr(), challenges)
	}
	running.Go(func() { serve(d.servers.public, d.listeners.public) })
	running.Go(func() { serve(d.servers.public, d.api.Lane.Listener()) })
	if d.listeners.acme != nil {
		running.Go(func() { serve(d.servers.challenges, d.listeners.acme) })
	}
	if d.listeners.tcp != nil {
		running.Go(func() {
			if err := d.servers.tcp.Serve(d.listeners.tcp); !errors.Is(err, net.ErrClosed) {
				failed <- err
			}
		})
	}
	sweeping, stopSweeping := context.WithCancel(context.Background())
	running.Go(func() { d.sweep(sweeping) })
	running.Go(func() { d.watcher.Watch(sweeping) })
	running.Go(func() { d.accessLog.Run(sweeping) })
	running.Go(d.hooks.events.Run)
	if d.auth != nil {
		d.watching.Go(func() { d.auth.Run(sweeping, d.endRevoked) })
	}

	err := d.announce()
	for serving := err == nil; serving; {
		select {
		case <-ctx.Done():
			err, serving = d.delayDrain(failed), false
		case err = <-failed:
			serving = false
		case why := <-d.runner.failed():
			d.log.Error("the log has ended: publishes are refused until the daemon is restarted", zap.Error(why))
			d.notReady("the log has ended: " + why.Error())
		}
	}
	d.drain()
	stopSweeping()
	running.Wait()
	d.listeners.spare.Close()
	err = errors.Join(err, d.runner.stop())
	d.broker.Close() // the drain waited for every publish
	return err
}

// endRevoked ends sessions whose keys were removed or have changed.
func (d *Daemon) endRevoked() {
	d.log.Info("keys were removed or have changed: their sessions have ended", zap.Int("ended", d.sessions.EndRevoked()))
}

func (d *Daemon) notReady(why string) { d.state.Store(&why) }

func (d *Daemon) whyNotReady() string {
	if why := d.state.Load(); why != nil {
		return *why
	}
	return ""
}

func (d *Daemon) gauges() metrics.Gauges {
	var g metrics.Gauges
	d.broker.Gauges(&g)
	d.sessions.Gauges(&g)
	g.PresenceMembers = d.members.Count()
	g.Draining = d.sessions.Draining() != nil
	if d.certificate != nil {
		g.CertificateExpires = d.certificate.Expires()
	}
	cfg := d.Config()
	g.MaxTopics, g.MaxSubscriptions = cfg.Broker.MaxTopics, cfg.Broker.MaxSubscriptions
	d.limiter.Gauges(&g)
	if d.auth != nil {
		d.auth.Gauges(&g)
	}
	g.Limits = append(g.Limits, d.hooks.publishCalls.Gauge(), d.hooks.authorizeCalls.Gauge(), d.hooks.events.Gauge())
	g.Store = d.runner.state()
	return g
}
