package soak

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Limits that are in force: those that the crowd does not reach, by far, and two that
// others reach on purpose: the rate of a few topics (eager.go), and the messages that
// the application may be asked about (hurried.go).
const (
	limitsWait = 300 * time.Millisecond

	eagerRate  = 10 // messages a second to each topic of eager publishers
	eagerBurst = 10
)

// limitFlags have a daemon hold the limits. names are those of the topics.
func limitFlags(cfg Config, names []string) []string {
	clients := cfg.Subscribers + cfg.Publishers
	flags := []string{
		"--limits-wait=" + limitsWait.String(), "--limits-address-calls=1500", fmt.Sprintf("--limits-address-connections=%d", 100*clients),
	}
	for kind, each := range map[string]int{"sessions": 100, "polls": 500, "requests": 100, "connections": 100, "misses": 100, "topics": 100} {
		flags = append(flags, fmt.Sprintf("--rates-%s-address=%d/s", kind, each*clients))
	}
	flags = append(flags, fmt.Sprintf("--rates-publishes-all=%d/s", 20*int(cfg.Rate)+1000*cfg.Publishers))
	for topic := range eagerTopics {
		rule := fmt.Sprintf("--topics=eager%d.", topic)
		flags = append(flags, rule+"pattern="+names[topic], fmt.Sprintf("%srate=%d/s burst %d", rule, eagerRate, eagerBurst))
	}
	return flags
}

// press starts those who reach the limits.
func (w *world) press(ctx context.Context, writers *sync.WaitGroup) error {
	for topic := range eagerTopics {
		e, err := newEager(w, topic)
		if err != nil {
			return err
		}
		writers.Go(func() { e.run(ctx, topic) })
	}
	if len(w.ledger.hooked()) == 0 {
		return nil
	}
	for n := range hurriedPublishers {
		h, err := newHurried(w, n)
		if err != nil {
			return err
		}
		writers.Go(func() { h.run(ctx) })
	}
	return nil
}

// mostOf is how many messages of one topic of eager publishers a daemon may take within
// that time.
func mostOf(took time.Duration) int { return eagerBurst + int(eagerRate*took.Seconds()) + 1 }
