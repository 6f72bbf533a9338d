package hook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Publishes asks an application about messages before they are published. All methods
// may be called concurrently. Its owner calls Close at the end: publishes then fail.
type Publishes struct{ application }

// NewPublishes returns the publish hook. Each call takes a slot. cfg must have been validated.
func NewPublishes(cfg Config, slots Slots, m *metrics.Metrics, log *zap.Logger) *Publishes {
	h := &Publishes{}
	h.init(wire.HookPublish, cfg, slots, m, log, passed, changed, refused, failed, timeout, overloaded)
	return h
}

// Reload applies cfg to later calls. Without a change, connections stay open.
func (h *Publishes) Reload(cfg Config) { h.reload(cfg) }

// Publish asks the application about m, which by wants to publish. It calls take if
// the application changed m. Without an error, publish m. The error is a *wire.Problem
// (forbidden, hook_failed or that of Slots), or that of ctx if ctx ended before a slot was
// free. After the call to the application has begun, ctx has no effect: a message that the
// application allows is published even if its publisher has left.
func (h *Publishes) Publish(ctx context.Context, by Principal, m *wire.Message, ttl time.Duration, take func(*wire.PublishItem) error) error {
	s := h.inForce.Load()
	if s.URL == "" {
		return nil
	}
	answer, err := h.ask(ctx, by, s, func() []byte { return appendQuestion(nil, by, m, ttl) })
	switch {
	case err != nil:
		return err
	case answer.Refuse != nil:
		return h.refused(answer.Refuse, "change the message", "the application refuses the message")
	case answer.Message == nil:
		h.metrics.Called(passed)
		return nil
	}
	if err = checkUnchanged(answer.Message, m); err == nil {
		err = take(answer.Message)
	}
	if err != nil {
		return h.failed(fmt.Errorf("its message cannot be published: %w", err))
	}
	h.metrics.Called(changed)
	return nil
}

// checkUnchanged returns an error if item changes what an application cannot change.
func checkUnchanged(item *wire.PublishItem, m *wire.Message) error {
	switch {
	case item.Topic != "" && item.Topic != m.Position.Topic:
		return errors.New("it changes the topic")
	case item.Client != nil && *item.Client != m.Client:
		return errors.New("it changes the client")
	case item.ID != nil && *item.ID != m.ID:
		return errors.New("it changes the id")
	}
	return nil
}
