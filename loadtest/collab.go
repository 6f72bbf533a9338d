package loadtest

import (
	"container/heap"
	"context"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// CollabConfig is many topics with few clients each, every topic on its own
// cycle: one client publishes, the others must have the message, then the topic
// rests for Delay. All topics start at the same moment. Latency runs from the
// instant at which the publish is due to each of the other clients having it;
// the publisher's own copy must come too, but is not a latency.
type CollabConfig struct {
	Common
	Topics          int           // default 1000
	ClientsPerTopic int           // default 2, at least 2
	Delay           time.Duration // default 15 s; 0 does not rest
	Rounds          int           // of each topic; default 100
	// RoundTimeout is when a topic gives up waiting for a round: what is missing
	// counts as lost, even if it comes later, and the cycle goes on. Default 10 s.
	RoundTimeout time.Duration
}

// DefaultCollab returns one of the article's settings.
func DefaultCollab() CollabConfig {
	c := CollabConfig{
		Common:          defaultCommon(),
		Topics:          1000,
		ClientsPerTopic: 2,
		Delay:           15 * time.Second,
		Rounds:          100,
		RoundTimeout:    10 * time.Second,
	}
	c.Publishers = c.MaxPublishers // all topics publish at the same moment
	return c
}

// Check returns a ConfigError of every fault, or nil.
func (c *CollabConfig) Check() error {
	return asConfigError(
		c.Common.check(),
		checkClients(c.Topics, c.ClientsPerTopic),
		c.checkAlone("rounds do not work with agents, because a round begins when all clients have the message of the round before"),
		unless(c.ClientsPerTopic > 1, "--clients-per-topic: must be at least 2, one to publish and one to receive; got %d", c.ClientsPerTopic),
		unless(c.Delay >= 0, "--delay: must not be negative; got %v", c.Delay),
		unless(c.Rounds > 0 && c.Rounds < 1_000_000, "--rounds: must be at least 1 and less than a million; got %d", c.Rounds),
		unless(c.RoundTimeout > 0, "--round-timeout: must be positive; got %v", c.RoundTimeout),
	)
}

// RunCollab runs the scenario; see RunBroadcast.
func RunCollab(ctx context.Context, cfg CollabConfig, progress Progress) (Result, error) {
	if err := cfg.Check(); err != nil {
		return Result{}, err
	}
	return execute(ctx, cfg.Common, newCollab(cfg), progress)
}

// collab is the scenario of CollabConfig.
type collab struct {
	cfg      CollabConfig
	message  numberedMessage
	begin    time.Duration
	cycles   []*cycle // by topic
	queue    cycleQueue
	ended    int   // rounds of all topics that ended
	timedOut int64 // of them, those that were given up
}

// A cycle is where one topic is.
type cycle struct {
	topic   int
	round   int           // the one that is due, or under way
	missing int           // receivers that do not have the round's message; 0 while resting
	due     time.Duration // of the round
	wake    time.Duration // when the round is due, or given up; never after the last
	index   int           // in the queue
}

func newCollab(cfg CollabConfig) *collab {
	return &collab{cfg: cfg, message: newNumberedMessage()}
}

func (c *collab) shape() shape {
	return shape{
		name:        "collab",
		topics:      c.cfg.Topics,
		perTopic:    c.cfg.ClientsPerTopic,
		messages:    c.cfg.Rounds,
		contentType: "application/json",
		publishes:   c.cfg.Topics,
	}
}

func (c *collab) start(at time.Duration) {
	c.begin = at
	for topic := range c.cfg.Topics {
		cy := &cycle{topic: topic, due: at, wake: at, index: topic}
		c.cycles = append(c.cycles, cy)
		c.queue = append(c.queue, cy)
	}
}

func (c *collab) window() time.Duration { return c.begin }

func (c *collab) due(now time.Duration, publish func(publication)) time.Duration {
	for {
		cy := c.queue[0]
		switch {
		case cy.wake > now:
			return cy.wake
		case cy.missing > 0:
			c.timedOut++
			c.endRound(cy, now)
		default:
			c.beginRound(cy, publish)
		}
	}
}

func (c *collab) beginRound(cy *cycle, publish func(publication)) {
	cy.missing = c.cfg.ClientsPerTopic - 1
	c.wakeAt(cy, cy.due+c.cfg.RoundTimeout)
	publish(publication{client: c.publisher(cy.topic, cy.round), topic: cy.topic, sequence: cy.round, due: cy.due, payload: c.message.make(cy.round)})
}

func (c *collab) endRound(cy *cycle, now time.Duration) {
	c.ended++
	cy.round++
	cy.missing = 0
	cy.due = now + c.cfg.Delay
	if cy.round == c.cfg.Rounds {
		cy.due = never
	}
	c.wakeAt(cy, cy.due)
}

func (c *collab) wakeAt(cy *cycle, at time.Duration) {
	cy.wake = at
	heap.Fix(&c.queue, cy.index)
}

func (c *collab) read(_ int, payload []byte) (int, bool) { return c.message.read(payload) }

// publisher returns the client that publishes a topic's round: they take turns.
func (c *collab) publisher(topic, round int) int {
	return topic + c.cfg.Topics*(round%c.cfg.ClientsPerTopic)
}

func (c *collab) delivered(d delivery) outcome {
	cy := c.cycles[d.topic]
	own := d.client == c.publisher(d.topic, d.sequence)
	switch {
	case own:
		return outcome{}
	case d.sequence != cy.round || cy.missing == 0:
		return outcome{late: true}
	}
	o := outcome{latency: d.now - cy.due, recorded: true}
	cy.missing--
	if cy.missing == 0 {
		c.endRound(cy, d.now)
	}
	return o
}

func (c *collab) progress(time.Duration) (done, total int, unit string) {
	return c.ended, c.cfg.Topics * c.cfg.Rounds, "rounds"
}

func (c *collab) report(r *Result) {
	r.Parameters.DelayMS = stats.Milliseconds(c.cfg.Delay)
	r.Parameters.Rounds = c.cfg.Rounds
	r.Parameters.RoundTimeoutMS = stats.Milliseconds(c.cfg.RoundTimeout)
	r.Rounds = &Rounds{
		Total:    int64(c.cfg.Topics) * int64(c.cfg.Rounds),
		Complete: int64(c.ended) - c.timedOut,
		TimedOut: c.timedOut,
	}
}

// A cycleQueue is a heap of cycles, the one that wakes next first.
type cycleQueue []*cycle

func (q cycleQueue) Len() int           { return len(q) }
func (q cycleQueue) Less(i, j int) bool { return q[i].wake < q[j].wake }

func (q cycleQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is part of heap.Interface; cycles neither come nor go.
func (q *cycleQueue) Push(any) { panic("BUG: a cycle joins a running test") }

// Pop is part of heap.Interface.
func (q *cycleQueue) Pop() any { panic("BUG: a cycle leaves a running test") }
