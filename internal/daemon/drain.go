package daemon

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// drain lets the clients go. The admin listener closes last, so that readiness
// can be seen to fail meanwhile.
func (d *Daemon) drain() {
	begun := time.Now()
	d.notReady("draining")
	g := d.gauges()
	d.log.Info("draining", zap.Int("sessions", g.Sessions), zap.Duration("window", d.cfg.DrainWindow))

	why := wire.NewProblem(wire.CodeDraining, "open a session from your positions, here after a while or at another daemon",
		"the daemon is going away")
	why.RetryAfterMS = 1000
	laneDrained := d.api.DrainLane() // before the polls are answered: their connections close then
	d.sessions.Drain(why)

	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.DrainWindow)
	defer cancel()
	d.shutdown(ctx, d.public, "public")
	select {
	case <-laneDrained:
	case <-ctx.Done():
		d.cutOff("public")
	}
	d.api.CloseLane()
	d.api.Wait() // only then can nothing be published any more
	d.shutdown(ctx, d.admin, "admin")
	d.log.Info("drained", zap.Duration("took", time.Since(begun)))
}

// shutdown waits for the server's answers to end, and cuts off those that last
// longer than ctx.
func (d *Daemon) shutdown(ctx context.Context, s *http.Server, name string) {
	if err := s.Shutdown(ctx); err != nil {
		d.cutOff(name)
		_ = s.Close() // the listener is closed already
	}
}

func (d *Daemon) cutOff(listener string) {
	d.log.Warn("cutting off answers that outlast the drain window", zap.String("listener", listener))
}
