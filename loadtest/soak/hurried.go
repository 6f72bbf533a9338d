package soak

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
)

// Hurried publishers publish all at once, to topics of which the application is asked
// about fewer messages at a time, and thinks of theirs for longer than others wait: so
// some are told that the daemon is full, and come again when they were told to.
type hurried struct{ *publisher }

const (
	hurriedPublishers = 2*hookCalls + 2 // so that it shows if all are asked about
	firstHurried      = probePublisher - hurriedPublishers
	hurriedThinks     = limitsWait + 150*time.Millisecond
	hurryEvery        = 10 * time.Second // the crowd has to wait with them
)

func isHurried(publisher int) bool {
	return publisher >= firstHurried && publisher < firstHurried+hurriedPublishers
}

func newHurried(w *world, number int) (*hurried, error) {
	p, err := newPublisher(w, firstHurried+number, pubsub.WithPublishRetry(0))
	return &hurried{p}, err
}

// run publishes one message each time, together with the others, until ctx ends.
func (h *hurried) run(ctx context.Context) {
	defer h.transport.CloseIdleConnections()
	topics := h.world.ledger.hooked()
	for {
		n := time.Since(h.world.ledger.began)/hurryEvery + 1
		if sleep(ctx, time.Until(h.world.ledger.began.Add(n*hurryEvery))) != nil {
			return
		}
		topic := topics[int(n)%len(topics)]
		h.insist(ctx, topic, h.offer(ctx, topic))
	}
}
