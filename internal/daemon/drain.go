package daemon

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// delayDrain serves everyone for drain.delay, while readiness fails, so that load balancers
// stop sending clients before the daemon refuses them. It ends early if a server fails.
func (d *Daemon) delayDrain(failed <-chan error) error {
	delay, window := d.Config().DrainDelay, d.Config().DrainWindow
	if delay == 0 {
		return nil
	}
	d.notReady("draining")
	d.manager.stopping(delay + window)
	d.log.Info("not ready any more; the drain begins after drain.delay", zap.Duration("delay", delay))
	select {
	case <-time.After(delay):
		return nil
	case err := <-failed:
		return err
	}
}

// drain refuses new sessions and messages at once, ends the sessions one after the
// other, and then shuts the servers down. The admin listener closes last, so that load
// balancers see readiness fail.
func (d *Daemon) drain() {
	begun := time.Now()
	window := d.Config().DrainWindow
	ctx, cancel := context.WithDeadline(context.Background(), begun.Add(window))
	defer cancel()
	d.notReady("draining")
	d.hooks.events.Drain()
	d.manager.stopping(window)
	d.broker.KeepTopics(begun.AddDate(1, 0, 0)) // their subscribers leave now, and will reconnect
	d.endSessions(begun, d.handOver(window))
	if d.cfg.Listen.ReusePort { // the kernel resets connections in the queue of a socket that is closed
		select {
		case <-time.After(time.Until(begun.Add(handshakes))):
		case <-ctx.Done():
		}
	}

	if d.listeners.tcp != nil {
		_ = d.listeners.tcp.Close()
	}
	drained := d.api.Lane.Drain()
	if d.listeners.acme != nil {
		d.shutdown(ctx, d.servers.challenges, d.listeners.acme, "acme")
	}
	if d.acme != nil {
		d.acme.Stop()
	}
	d.shutdown(ctx, d.servers.public, d.listeners.public, "public")
	select {
	case <-drained:
	case <-ctx.Done():
		d.cutOff("public")
	}
	d.hooks.publish.Close() // ends the calls that clients wait for
	d.hooks.authorize.Close()
	d.api.Lane.Close()
	d.servers.tcp.Close()
	d.api.Wait() // from here on nothing is published
	d.hooks.events.Close(ctx)
	d.shutdown(ctx, d.servers.admin, d.listeners.admin, "admin")
	d.log.Info("drained", zap.Duration("took", time.Since(begun)))
}

// handOver leaves new connections to the next daemon, if it shares the sockets of this one. It
// returns the window in which sessions end. It is 0 if the next daemon serves nobody before
// this one has ended: the sooner that is, the less the clients wait.
func (d *Daemon) handOver(window time.Duration) time.Duration {
	for _, l := range []*listen.Listener{d.listeners.public, d.listeners.tcp, d.listeners.acme} {
		if l != nil {
			l.HandOver()
		}
	}
	if d.cfg.Listen.ReusePort {
		d.listeners.admin.HandOver()
	}
	if d.listeners.public.IsInherited() || d.cfg.Listen.ReusePort && len(exclusive(d.cfg)) > 0 {
		return 0
	}
	return window
}

// handshakes is how long a TCP handshake may last that began before handOver: the kernel
// repeats its answer after a second.
const handshakes = time.Second

// endSessions ends the sessions and their parked polls, spread over time: clients that
// end together reconnect together. Until its turn each session is served as before, and
// clients between two polls can connect. A reload does not change the window: the
// service manager knows this one, and the rest of the drain ends by it.
func (d *Daemon) endSessions(begun time.Time, window time.Duration) {
	why := problem.New(wire.CodeDraining, "open a session from your positions, here later or at another daemon",
		"the daemon is shutting down").Retry(time.Second)
	leaving := d.sessions.BeginDrain(why)
	all := leaving.Left()
	d.log.Info("draining", zap.Int("sessions", all), zap.Duration("window", window))

	tick := time.NewTicker(leaveEvery)
	defer tick.Stop()
	said := begun
	for {
		leaving.End(sessionsToEnd(all, window, time.Since(begun)) - (all - leaving.Left()))
		if leaving.Left() == 0 {
			return
		}
		if now := <-tick.C; now.Sub(said) >= time.Second {
			said = now
			d.log.Info("draining", zap.Int("sessions_left", leaving.Left()))
		}
	}
}

const (
	// leaveRate is how many sessions end in a second, if the window is long enough.
	leaveRate = 1000
	// leaveEvery is how often some end.
	leaveEvery = 10 * time.Millisecond
)

// sessionsToEnd returns how many of all sessions must have ended after this time of the
// drain: leaveRate a second, or more, to end all within three quarters of the window. The
// rest of the window is for answers and for late requests.
func sessionsToEnd(all int, window, elapsed time.Duration) int {
	spread := min(time.Duration(all)*time.Second/leaveRate, window/4*3)
	if elapsed+leaveEvery >= spread {
		return all
	}
	return int(float64(all) * (elapsed + leaveEvery).Seconds() / spread.Seconds())
}

// silentGrace is how long a connection on which nothing ever came may stay at the end:
// its first request may be on its way. After that the request is answered unread.
const silentGrace = 200 * time.Millisecond

// shutdown closes l, waits for first requests and for the server's answers to end, and cuts off
// those that last longer than ctx.
func (d *Daemon) shutdown(ctx context.Context, s *http.Server, l *listen.Listener, name string) {
	_ = l.Close()
	l.AwaitRequests(ctx, silentGrace, problem.New(wire.CodeDraining, "repeat the request, here later or at another daemon", "the daemon is shutting down").Retry(time.Second))
	if err := s.Shutdown(ctx); err != nil {
		d.cutOff(name)
		_ = s.Close() // the listener is closed already
	}
}

func (d *Daemon) cutOff(listener string) {
	d.log.Warn("cutting off answers that outlast the drain window", zap.String("listener", listener))
}
