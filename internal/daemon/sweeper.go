package daemon

import (
	"context"
	"time"
)

// sweepEvery is how late expired messages and sessions may be noticed.
const sweepEvery = time.Second

// tellShare sets how late a poll on the lane may time out: its timeout divided by
// tellShare.
const tellShare = 20

func (d *Daemon) tellEvery() time.Duration {
	t := d.Config().Transport
	return min(sweepEvery, max(min(t.PollTimeout, t.Heartbeat)/tellShare, time.Millisecond))
}

func (d *Daemon) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	tell := time.NewTicker(d.tellEvery())
	defer tell.Stop()
	for {
		select {
		case now := <-tell.C:
			d.api.Lane.Tick(now)
			d.sessions.Sweep(now)
		case now := <-tick.C:
			d.broker.Sweep(now)  // expired messages
			d.limiter.Sweep(now) // idle addresses
			d.manager.alive(now) // the locks that sweeping needs are free
		case <-d.reloaded:
			tell.Reset(d.tellEvery())
		case <-ctx.Done():
			return
		}
	}
}
