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

	// WatchedTopics are patterns of the topics whose TopicRule has Watched set. Default
	// none.
	WatchedTopics []string

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

// WithDefaults returns c with every zero field set to its default.
func (c Config) WithDefaults() Config {
	c.HistoryMessages = cmp.Or(c.HistoryMessages, 1000)
	c.HistoryBytes = cmp.Or(c.HistoryBytes, 1<<20)
	c.HistoryAge = cmp.Or(c.HistoryAge, 60*time.Second)
	c.MemoryBudget = cmp.Or(c.MemoryBudget, memory.DefaultBudget)
	c.MaxTopics = cmp.Or(c.MaxTopics, 1_000_000)
	c.MaxSubscriptions = cmp.Or(c.MaxSubscriptions, 4_000_000)
	c.IdempotencyKeys = cmp.Or(c.IdempotencyKeys, 100_000)
	c.IdempotencyWindow = cmp.Or(c.IdempotencyWindow, 2*time.Minute)
	return c
}
