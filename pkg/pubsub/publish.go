package pubsub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// jsonType is how a JSON payload is published; a wire.Message says it by no type.
const jsonType = "application/json"

// A PublishOption says more about one message.
type PublishOption func(url.Values) error

// WithTTL ends the message's life d after the daemon took it: it is not delivered
// later. d is whole seconds, at least one; anything else is an error, not rounded.
// Default: as long as the topic's history keeps it.
func WithTTL(d time.Duration) PublishOption {
	return func(query url.Values) error {
		if d < time.Second || d%time.Second != 0 {
			return fmt.Errorf("the ttl is %v: whole seconds are needed, at least one", d)
		}
		query.Set("ttl", strconv.FormatInt(int64(d/time.Second), 10))
		return nil
	}
}

// WithKey sets what conflation goes by: of two messages with the same key the newer
// one may stand for both. Default, and the empty key: none.
func WithKey(key string) PublishOption {
	return func(query url.Values) error {
		if key != "" {
			query.Set("key", key)
		}
		return nil
	}
}

// Publish publishes body to topic as the media type contentType, and returns where
// and when the daemon put it: it is in the history and on its way to subscribers.
// An empty contentType is JSON, as in wire.Message.
//
// A daemon that answers "later" (429 or 503, with how much later) did not take the
// message. It is offered again then, as often as WithPublishAttempts allows, unless
// ctx ends before. Nothing else is tried again: if the answer was lost, the message
// may have been published. So an error tells what happened:
//   - a *wire.Problem (errors.As) below 500, or 429 or 503: not published;
//   - the error of an argument, or of a connection that could not be made: not
//     published;
//   - any other, the end of ctx among them: unknown.
//
// ctx bounds all of it; there is no other time limit. body is not kept.
func (c *Client) Publish(ctx context.Context, topic, contentType string, body []byte, opts ...PublishOption) (wire.Published, error) {
	published, err := c.publish(ctx, topic, contentType, body, opts)
	if err != nil {
		return wire.Published{}, fmt.Errorf("publish %q: %w", topic, err)
	}
	return published, nil
}

// PublishJSON publishes v as encoding/json writes it. All else is as with Publish.
func (c *Client) PublishJSON(ctx context.Context, topic string, v any, opts ...PublishOption) (wire.Published, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return wire.Published{}, fmt.Errorf("publish %q: %w", topic, err)
	}
	return c.Publish(ctx, topic, jsonType, body, opts...)
}

func (c *Client) publish(ctx context.Context, topic, contentType string, body []byte, opts []PublishOption) (wire.Published, error) {
	if err := wire.CheckTopic(topic); err != nil {
		return wire.Published{}, err
	}
	query := url.Values{}
	for _, opt := range opts {
		if err := opt(query); err != nil {
			return wire.Published{}, err
		}
	}
	for attempt := 1; ; attempt++ {
		published, err := c.publishOnce(ctx, topic, contentType, body, query)
		if err == nil || attempt == c.publishAttempts || !c.waitToPublish(ctx, err) {
			return published, err
		}
	}
}

func (c *Client) publishOnce(ctx context.Context, topic, contentType string, body []byte, query url.Values) (wire.Published, error) {
	if body == nil {
		body = []byte{} // an empty body, not none
	}
	req, err := c.request(ctx, http.MethodPost, "v1/topics/"+topic+"/messages", query, body)
	if err != nil {
		return wire.Published{}, err
	}
	if contentType == "" {
		contentType = jsonType
	}
	req.Header.Set("Content-Type", contentType)
	var published wire.Published
	err = c.receive(req, http.StatusOK, &published)
	return published, err
}

// waitToPublish waits as long as the daemon asked for, and reports whether to try
// again. It does not wait for an instant that ctx will not see.
func (c *Client) waitToPublish(ctx context.Context, err error) bool {
	wait, ok := notTaken(err)
	if !ok {
		return false
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		return false
	}
	return sleep(ctx, wait) == nil
}

// notTaken reports whether err is the daemon's word that it did not take the
// message but may later, and after what time.
func notTaken(err error) (wait time.Duration, ok bool) {
	p := (*wire.Problem)(nil)
	if !errors.As(err, &p) || p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
		return 0, false
	}
	wait = retryAfter(err)
	return wait, wait > 0
}
