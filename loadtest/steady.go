package loadtest

import (
	"context"
	"math"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// SteadyConfig is many topics with few clients each, where every client
// publishes a message of 10 bytes, its creation time, every Period, and everyone
// on the topic gets it, the publisher too. The clients' instants are spread
// evenly over the period.
type SteadyConfig struct {
	Common
	Topics          int           // default 200
	ClientsPerTopic int           // default 2
	Period          time.Duration // default 1 s
	Warmup          time.Duration // not recorded; default 10 s, 0 is none
	Duration        time.Duration // recorded; default 30 s
}

// DefaultSteady returns one of the article's settings.
func DefaultSteady() SteadyConfig {
	return SteadyConfig{
		Common:          defaultCommon(),
		Topics:          200,
		ClientsPerTopic: 2,
		Period:          time.Second,
		Warmup:          10 * time.Second,
		Duration:        30 * time.Second,
	}
}

// Bounds of what fits a creation time of ten digits in microseconds.
const (
	creationDigits = 10
	longestSteady  = 9000 * time.Second
	closestSteady  = 2 * time.Microsecond
	longestPeriod  = math.MaxInt64 / mostClients * time.Nanosecond // instants are reckoned in products of both
)

// Check returns a ConfigError of every fault, or nil.
func (c *SteadyConfig) Check() error {
	return asConfigError(
		c.Common.check(),
		checkClients(c.Topics, c.ClientsPerTopic),
		c.checkCrew(c.ClientsPerTopic),
		unless(c.Period > 0 && c.Period <= longestPeriod, "--period: must be positive and at most %v; got %v", longestPeriod, c.Period),
		c.checkSpacing(),
		unless(c.Warmup >= 0, "--warmup: must not be negative; got %v", c.Warmup),
		unless(c.Duration > 0, "--duration: must be positive; got %v", c.Duration),
		unless(c.Warmup+c.Duration <= longestSteady, "--duration: must be at most %v, with --warmup; got %v", longestSteady, c.Warmup+c.Duration),
	)
}

// checkSpacing is for numbers of clients that have passed their own check.
func (c *SteadyConfig) checkSpacing() error {
	clients := c.Topics * c.ClientsPerTopic
	if checkClients(c.Topics, c.ClientsPerTopic) != nil {
		return nil
	}
	return unless(c.Period >= time.Duration(clients)*closestSteady,
		"--period: must be at least %v for %d clients, %v for each; got %v",
		time.Duration(clients)*closestSteady, clients, closestSteady, c.Period)
}

// RunSteady runs the scenario; see RunBroadcast.
func RunSteady(ctx context.Context, cfg SteadyConfig, progress Progress) (Result, error) {
	if err := cfg.Check(); err != nil {
		return Result{}, err
	}
	return execute(ctx, cfg.Common, newSteady(cfg), progress)
}

// steady is the scenario of SteadyConfig. Its nth message, over all topics, is
// client n % clients' own n / clients'th.
type steady struct {
	cfg      SteadyConfig
	schedule schedule
	total    int // messages on all topics
	next     int // the message to publish next
}

func newSteady(cfg SteadyConfig) *steady {
	s := &steady{cfg: cfg}
	s.schedule = schedule{period: cfg.Period, perPeriod: cfg.Topics * cfg.ClientsPerTopic}
	s.total = s.schedule.within(cfg.Warmup + cfg.Duration)
	return s
}

func (s *steady) shape() shape {
	rounds := (s.total + s.schedule.perPeriod - 1) / s.schedule.perPeriod
	return shape{
		name:        "steady",
		topics:      s.cfg.Topics,
		perTopic:    s.cfg.ClientsPerTopic,
		messages:    rounds * s.cfg.ClientsPerTopic,
		contentType: "text/plain",
		publishes:   s.schedule.perPeriod,
		period:      s.cfg.Period,
	}
}

func (s *steady) start(at time.Duration) { s.schedule.start = at }

func (s *steady) window() time.Duration { return s.schedule.start + s.cfg.Warmup }

func (s *steady) due(now time.Duration, publish func(publication)) time.Duration {
	for s.next < s.total {
		instant := s.schedule.instant(s.next)
		if instant > now {
			return instant
		}
		publish(publication{
			client:   s.next % s.schedule.perPeriod,
			topic:    s.topic(s.next),
			sequence: s.sequence(s.next),
			due:      instant,
			payload:  appendPadded(nil, s.creation(s.next), creationDigits),
		})
		s.next++
	}
	return never
}

// creation is when the nth message is due, in microseconds since the start.
func (s *steady) creation(n int) int64 {
	return int64((s.schedule.instant(n) - s.schedule.start) / time.Microsecond)
}

// topic is the one that the nth message is for: neighbours in time are not
// neighbours on a topic.
func (s *steady) topic(n int) int { return n % s.schedule.perPeriod % s.cfg.Topics }

// sequence numbers the messages of one topic.
func (s *steady) sequence(n int) int {
	clients := s.schedule.perPeriod
	return n/clients*s.cfg.ClientsPerTopic + n%clients/s.cfg.Topics
}

// number is the inverse of topic and sequence.
func (s *steady) number(topic, sequence int) int {
	perTopic := s.cfg.ClientsPerTopic
	return sequence/perTopic*s.schedule.perPeriod + sequence%perTopic*s.cfg.Topics + topic
}

func (s *steady) read(topic int, payload []byte) (int, bool) {
	if len(payload) != creationDigits {
		return 0, false
	}
	creation, ok := readDigits(payload)
	if !ok {
		return 0, false
	}
	// The creation time was rounded down to the microsecond.
	n := s.schedule.nearest(time.Duration(creation)*time.Microsecond + time.Microsecond/2)
	return s.sequence(n), s.creation(n) == creation && s.topic(n) == topic
}

func (s *steady) delivered(d delivery) outcome {
	due := s.schedule.instant(s.number(d.topic, d.sequence))
	return outcome{latency: d.now - due, recorded: due >= s.window()}
}

func (s *steady) progress(time.Duration) (done, total int, unit string) {
	return s.next, s.total, "messages"
}

func (s *steady) report(r *Result) {
	r.Parameters.PeriodMS = stats.Milliseconds(s.cfg.Period)
	r.Parameters.WarmupMS = stats.Milliseconds(s.cfg.Warmup)
	r.Parameters.DurationMS = stats.Milliseconds(s.cfg.Duration)
}
