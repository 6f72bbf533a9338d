package loadtest

import (
	"context"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// BroadcastConfig is many clients on few topics: every Period one message is
// published to each topic, a burst of Clients deliveries. The server holds Clients
// at Period if every burst was complete before the next was due.
type BroadcastConfig struct {
	Common
	Clients int           // over all topics, as many on each; default 5000
	Topics  int           // default 1
	Period  time.Duration // default 10 s
	Bursts  int           // recorded; default 100
	Warmup  int           // bursts before the recorded ones; default 2, 0 is none

	// MessageBytes is the exact size of each payload. Default 0: the articles' message
	// of 20 short strings.
	MessageBytes int
}

// DefaultBroadcast returns the article's setting.
func DefaultBroadcast() BroadcastConfig {
	c := BroadcastConfig{Common: defaultCommon(), Clients: 5000, Topics: 1, Period: 10 * time.Second, Bursts: 100, Warmup: 2}
	c.Publishers, c.MaxPublishers = 1, 16
	return c
}

// Check returns a ConfigError of every fault, or nil.
func (c *BroadcastConfig) Check() error {
	return asConfigError(
		c.Common.check(),
		c.checkSilent(),
		unless(c.Clients > 0, "--clients: must be at least 1; got %d", c.Clients),
		c.checkTopics(),
		c.checkCrew(c.Clients/max(c.Topics, 1)),
		unless(c.Period > 0, "--period: must be positive; got %v", c.Period),
		unless(c.Bursts > 0, "--bursts: must be at least 1; got %d", c.Bursts),
		unless(c.Warmup >= 0, "--warmup-bursts: must not be negative; got %d", c.Warmup),
		unless(c.Bursts+c.Warmup < 1_000_000, "--bursts: must be less than a million, with --warmup-bursts; got %d", c.Bursts+c.Warmup),
		unless(c.MessageBytes == 0 || c.MessageBytes >= leastMessageBytes && c.MessageBytes <= mostMessageBytes,
			"--message-bytes: must be 0, or %d to %d; got %d", leastMessageBytes, mostMessageBytes, c.MessageBytes),
	)
}

func (c *BroadcastConfig) checkTopics() error {
	if c.Topics < 1 {
		return fmt.Errorf("--topics: must be at least 1; got %d", c.Topics)
	}
	return unless(c.Clients%c.Topics == 0, "--topics: %d clients cannot be spread evenly over %d topics", c.Clients, c.Topics)
}

// RunBroadcast runs the scenario. progress may be nil. The error says why there
// is no result, or an incomplete one; what the server did wrong is in the Result.
func RunBroadcast(ctx context.Context, cfg BroadcastConfig, progress Progress) (Result, error) {
	if err := cfg.Check(); err != nil {
		return Result{}, err
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

	// giveUp ends the test with the first recorded burst that is late, when all that
	// is asked is whether one is.
	giveUp bool
}

// A burst is one message of each topic on its way to every client.
type burst struct {
	delivered int
	last      time.Duration // when the last delivery so far came
}

func newBroadcast(cfg BroadcastConfig) *broadcast {
	message := newNumberedMessage()
	if cfg.MessageBytes > 0 {
		message = newSizedMessage(cfg.MessageBytes)
	}
	return &broadcast{cfg: cfg, message: message, bursts: make([]burst, cfg.Warmup+cfg.Bursts)}
}

func (b *broadcast) shape() shape {
	return shape{
		name:        "broadcast",
		topics:      b.cfg.Topics,
		perTopic:    b.cfg.Clients / b.cfg.Topics,
		messages:    len(b.bursts),
		contentType: "application/json",
		publishes:   b.cfg.Topics,
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
		if b.giveUp && b.next > b.cfg.Warmup && !b.inTime(b.next-1) {
			return never
		}
		payload := b.message.make(b.next)
		for topic := range b.cfg.Topics {
			publish(publication{topic: topic, sequence: b.next, due: instant, payload: payload})
		}
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
	r.Parameters.MessageBytes = b.cfg.MessageBytes
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
