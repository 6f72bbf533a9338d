package broker

import (
	"cmp"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// Config bounds what a Broker holds. The zero value of a field takes its default.
type Config struct {
	// HistoryMessages, HistoryBytes and HistoryAge bound what each topic retains;
	// whichever is reached first counts. Defaults 1000, 1 MiB, 60 s.
	HistoryMessages int
	HistoryBytes    int
	HistoryAge      time.Duration

	// MemoryBudget bounds the bytes of all histories, of queues and of cached frames,
	// with what topics and subscriptions take by themselves: about that, for a
	// moment a little more. Default 512 MiB. When it is reached, cached frames go
	// first, and then the oldest messages of all topics; a message, topic or
	// subscription for which there is no room even so is answered with the problem
	// overloaded.
	MemoryBudget int

	// Rules say otherwise for topics of some patterns.
	Rules []Rule

	// HookTopics are patterns of the topics whose TopicRule has Hook set: the application
	// is asked before a message is published to them. Default none.
	HookTopics []string

	// MaxTopics bounds the topics held at one time; publishing or subscribing to
	// one more is answered with the problem overloaded. Default 1,000,000.
	MaxTopics int

	// MaxSubscriptions bounds the subscriptions of all sessions and stateless polls
	// together; one more is answered with the problem overloaded. Default
	// 4,000,000.
	MaxSubscriptions int

	// IdempotencyKeys bounds the idempotency keys whose results are remembered, and
	// IdempotencyWindow for how long. When there are more the oldest go. Defaults
	// 100,000, 2 min.
	IdempotencyKeys   int
	IdempotencyWindow time.Duration
}

// Defaults of Config.
const (
	DefaultHistoryMessages = 1000
	DefaultHistoryBytes    = 1 << 20
	DefaultHistoryAge      = 60 * time.Second
	DefaultMaxTopics       = 1_000_000

	DefaultMaxSubscriptions = 4_000_000

	DefaultIdempotencyKeys   = 100_000
	DefaultIdempotencyWindow = 2 * time.Minute
)

func (c Config) withDefaults() Config {
	c.HistoryMessages = cmp.Or(c.HistoryMessages, DefaultHistoryMessages)
	c.HistoryBytes = cmp.Or(c.HistoryBytes, DefaultHistoryBytes)
	c.HistoryAge = cmp.Or(c.HistoryAge, DefaultHistoryAge)
	c.MemoryBudget = cmp.Or(c.MemoryBudget, memory.DefaultBudget)
	c.MaxTopics = cmp.Or(c.MaxTopics, DefaultMaxTopics)
	c.MaxSubscriptions = cmp.Or(c.MaxSubscriptions, DefaultMaxSubscriptions)
	c.IdempotencyKeys = cmp.Or(c.IdempotencyKeys, DefaultIdempotencyKeys)
	c.IdempotencyWindow = cmp.Or(c.IdempotencyWindow, DefaultIdempotencyWindow)
	return c
}
