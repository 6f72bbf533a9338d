package loadtest

import (
	"context"
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// BroadcastConfig is one topic with many clients: every Period one message is
// published, a burst of Clients deliveries. The server holds Clients at Period
// if every burst was complete before the next was due.
type BroadcastConfig struct {
	Common
	Clients int           // default 5000
	Period  time.Duration // default 10 s
	Bursts  int           // recorded; default 100
	Warmup  int           // bursts before the recorded ones; default 2, 0 is none
}

// DefaultBroadcast returns the article's setting.
func DefaultBroadcast() BroadcastConfig {
	c := BroadcastConfig{Common: defaultCommon(), Clients: 5000, Period: 10 * time.Second, Bursts: 100, Warmup: 2}
	c.Publishers, c.MaxPublishers = 1, 16
	return c
}

func (c *BroadcastConfig) check() error {
	return errors.Join(
		c.Common.check(),
		unless(c.Clients > 0, "--clients: %d is not positive", c.Clients),
		unless(c.Period > 0, "--period: %v is not positive", c.Period),
		unless(c.Bursts > 0, "--bursts: %d is not positive", c.Bursts),
		unless(c.Warmup >= 0, "--warmup: %d is negative", c.Warmup),
		unless(c.Bursts+c.Warmup < 1_000_000, "--bursts: a test has less than a million"),
	)
}

// RunBroadcast runs the scenario. progress may be nil. The error says why there
// is no result, or an incomplete one; what the server did wrong is in the Result.
func RunBroadcast(ctx context.Context, cfg BroadcastConfig, progress Progress) (Result, error) {
	if err := cfg.check(); err != nil {
		return Result{}, ConfigError{err}
	}
	return execute(ctx, cfg.Common, newBroadcast(cfg), progress)
}

// broadcast is the scenario of BroadcastConfig.
type broadcast struct {
	cfg      BroadcastConfig
	message  numberedMessage
	schedule schedule
	bursts   []burst // warm-up first
	next     int     // the burst to publish next
}

// A burst is one message on its way to every client.
type burst struct {
	delivered int
	last      time.Duration // when the last delivery so far came
}

func newBroadcast(cfg BroadcastConfig) *broadcast {
	return &broadcast{cfg: cfg, message: newNumberedMessage(), bursts: make([]burst, cfg.Warmup+cfg.Bursts)}
}

func (b *broadcast) shape() shape {
	return shape{
		name:        "broadcast",
		topics:      1,
		perTopic:    b.cfg.Clients,
		messages:    len(b.bursts),
		contentType: "application/json",
		publishes:   1,
		period:      b.cfg.Period,
		bursts:      true,
	}
}

func (b *broadcast) start(at time.Duration) {
	b.schedule = schedule{start: at, period: b.cfg.Period, perPeriod: 1}
}

func (b *broadcast) window() time.Duration { return b.schedule.instant(b.cfg.Warmup) }

func (b *broadcast) due(now time.Duration, publish func(publication)) time.Duration {
	for b.next < len(b.bursts) {
		instant := b.schedule.instant(b.next)
		if instant > now {
			return instant
		}
		publish(publication{sequence: b.next, due: instant, payload: b.message.make(b.next)})
		b.next++
	}
	return never
}

func (b *broadcast) read(_ int, payload []byte) (int, bool) { return b.message.read(payload) }

func (b *broadcast) delivered(d delivery) outcome {
	burst := &b.bursts[d.sequence]
	burst.delivered++
	burst.last = d.now
	return outcome{latency: d.now - b.schedule.instant(d.sequence), recorded: d.sequence >= b.cfg.Warmup}
}

// inTime reports whether every client had the burst before the next was due.
func (b *broadcast) inTime(n int) bool {
	return b.complete(n) && b.bursts[n].last < b.schedule.instant(n+1)
}

func (b *broadcast) complete(n int) bool { return b.bursts[n].delivered == b.cfg.Clients }

func (b *broadcast) progress(time.Duration) (done, total int, unit string) {
	return b.next, len(b.bursts), "bursts"
}

func (b *broadcast) report(r *Result) {
	r.Parameters.PeriodMS = stats.Milliseconds(b.cfg.Period)
	r.Parameters.Bursts, r.Parameters.WarmupBursts = b.cfg.Bursts, b.cfg.Warmup
	completion := stats.NewLatency()
	bursts := Bursts{Total: b.cfg.Bursts}
	for n := b.cfg.Warmup; n < b.next; n++ { // all of them, unless the test ended early
		if b.inTime(n) {
			bursts.InTime++
		}
		if !b.complete(n) {
			bursts.Incomplete++
			continue
		}
		took := b.bursts[n].last - b.schedule.instant(n)
		completion.Record(took)
		bursts.Completions = append(bursts.Completions, stats.Milliseconds(took))
	}
	bursts.Completion = completion.Summary()
	r.Bursts = &bursts
}
