package httpapi

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Hook asks the application about messages before they are published.
type Hook interface {
	// Wants reports whether the application is asked about messages to the topic. Then
	// a publish may take long.
	Wants(topic string) bool

	// Publish asks about m, and returns nil if it may be published: as it is or, if take
	// was called, as that has taken it from what the application made of it. The error
	// is a *wire.Problem, or ctx's.
	Publish(ctx context.Context, principal string, m *wire.Message, ttl time.Duration, take func(*wire.PublishItem) error) error
}

// publishAsked publishes m if the application consents, once for an idempotency key.
func (a *API) publishAsked(ctx context.Context, p auth.Principal, m *message) (wire.Published, error) {
	publish := func(k broker.Key) (wire.Published, error) {
		err := a.Hook.Publish(ctx, p.Name, &m.Message, m.ttl, func(item *wire.PublishItem) error {
			return m.become(item, a.Limits().MessageBytes)
		})
		if err != nil {
			return wire.Published{}, err
		}
		return a.Broker.PublishKeyed(k, &m.Message, m.ttl, time.Now())
	}
	if m.ID == "" {
		return publish(broker.Key{})
	}
	return a.Broker.Once(a.awaitFirst(ctx), p.Name, &m.Message, m.ttl, time.Now(), publish)
}

// awaitFirst returns what waits for another publish with the same idempotency key,
// which may take as long as the application does, and fail, so that the next is asked
// about: in all as long as they are many. Who waits has a place that others need, so no
// more than a quarter of them may.
func (a *API) awaitFirst(ctx context.Context) broker.Await {
	return func(over <-chan struct{}) error {
		defer a.repeats.Add(-1)
		if most := a.Limiter.Config().Calls / 4; a.repeats.Add(1) > int64(max(1, most)) {
			a.Metrics.Limited.WithLabelValues("calls").Inc()
			return wire.NewProblem(wire.CodeOverloaded, "send it again with the same key, as retry_after_ms says",
				"another publish with the same idempotency key is under way, and as many wait for such as may").Retry(time.Second)
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// become makes m what the application has made of it, under the rules for what is
// published. Topic, client and id stay. With an error m is as it was.
func (m *message) become(item *wire.PublishItem, most int) error {
	other, body, err := messageOfItem(item)
	if err != nil {
		return err
	}
	if len(body) > most {
		return tooLarge(most)
	}
	if err := other.setPayload(body); err != nil {
		return err
	}
	other.Position, other.Client, other.ID = m.Position, m.Client, m.ID
	*m = *other
	return nil
}
