package main

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
)

// keepSaying publishes numbers with idempotency keys until stop, through crashes: each
// number is published once.
func (s *speaker) keepSaying(public string, stop <-chan struct{}) error {
	client, err := pubsub.New(public, pubsub.WithPublishRetry(time.Minute), pubsub.WithMaxBackoff(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		s.n++
		for _, topic := range s.topics {
			published, err := client.PublishJSON(context.Background(), topic, s.n, pubsub.WithIdempotencyKey(fmt.Sprint(s.n)))
			if err != nil {
				return err
			}
			s.heard(topic, fmt.Sprintf("%d=%d", published.Position.Offset, s.n))
		}
	}
}

// A daemon with a log is killed again and again while it serves publishers with idempotency
// keys and subscribers of every kind. Nobody misses a message, has one twice, or gets a gap.
func TestKillsLoseNothingWithALog(t *testing.T) {
	t.Parallel()
	for _, sync := range []string{"always", "1s", "never"} {
		t.Run(sync, func(t *testing.T) {
			t.Parallel()
			settings := []string{"--store", filepath.Join(t.TempDir(), "store"), "--store-sync", sync, "--history-messages=100000", "--history-bytes=100MiB"}
			s := serveProcess(t, settings...)
			crowd := gather(t, s, 12, 3)
			speaker := newSpeaker(crowd)
			stop, ended := make(chan struct{}), make(chan error, 1)
			public := s.public // of all successors, too
			go func() { ended <- speaker.keepSaying(public, stop) }()
			for range 3 {
				crowd.waitForMore()
				s.signal(syscall.SIGKILL)
				s.exit()
				s = s.successor(settings...)
				s.waitForLog("the log on disk was read: nothing is lost")
			}
			crowd.waitForMore()
			close(stop)
			require.NoError(t, <-ended)
			crowd.wantHad(speaker.want)
			s.signal(syscall.SIGTERM)
			s.wantEnd("the log on disk was closed")
		})
	}
}

// waitForMore waits until every subscriber has had something new.
func (c *crowd) waitForMore() {
	c.Helper()
	before := c.counts()
	require.Eventually(c, func() bool {
		for i, n := range c.counts() {
			if n <= before[i] {
				return false
			}
		}
		return true
	}, 2*patience, 5*time.Millisecond)
}

// counts returns how many items each subscriber has had.
func (c *crowd) counts() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := make([]int, len(c.had))
	for i, had := range c.had {
		for _, items := range had {
			counts[i] += len(items)
		}
	}
	return counts
}
