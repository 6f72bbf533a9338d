package broker

import (
	"cmp"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// Config bounds what a Broker holds. The zero value of a field takes its default.
type Config struct {
	// HistoryMessages, HistoryBytes and HistoryAge bound the history of each topic.
	// Whichever is reached first counts. Defaults 1000, 1 MiB, 60 s.
	HistoryMessages int
	HistoryBytes    int
	HistoryAge      time.Duration

	// MemoryBudget bounds the memory of all histories, queues, cached frames, topics and
	// subscriptions. They may exceed it a little for a moment. Default 512 MiB. When the
	// budget is full, the broker drops cached frames first, and then evicts the oldest
	// messages of all topics. If that is not enough, a new message, topic or subscription
	// fails with the problem overloaded.
	MemoryBudget int

	// Rules replace these settings for topics that match their patterns.
	Rules []Rule

	// HookTopics are patterns of the topics whose TopicRule has Hook set: the daemon asks
	// the application before it publishes a message to them. Default none.
	HookTopics []string

	// MaxTopics bounds the number of topics. A publish or a subscription that needs one
	// more fails with the problem overloaded. Default 1,000,000.
	MaxTopics int

	// MaxSubscriptions bounds the subscriptions of all sessions and stateless polls
	// together. One more fails with the problem overloaded. Default 4,000,000.
	MaxSubscriptions int

	// IdempotencyKeys bounds the idempotency keys with results, and IdempotencyWindow how
	// long each is kept. When there are too many, the oldest are dropped. Defaults 100,000,
	// 2 min.
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
