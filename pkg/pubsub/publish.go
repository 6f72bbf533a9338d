package pubsub

import (
	"context"
	"encoding/json"
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
type PublishOption func(*options) error

// options are what is said about a message beside its topic and payload; all may be
// empty.
type options struct {
	ttl             uint64 // seconds
	key, client, id string
}

func optionsOf(opts []PublishOption) (o options, err error) {
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// WithTTL ends the message's life d after the daemon took it: it is not delivered
// later. d is whole seconds, at least one; anything else is an error, not rounded.
// Default: as long as the topic's history keeps it.
func WithTTL(d time.Duration) PublishOption {
	return func(o *options) error {
		if d < time.Second || d%time.Second != 0 {
			return fmt.Errorf("the ttl is %v: whole seconds are needed, at least one", d)
		}
		o.ttl = uint64(d / time.Second)
		return nil
	}
}

// WithKey sets what conflation goes by: of two messages with the same key the newer
// one may stand for both. Default, and the empty key: none.
func WithKey(key string) PublishOption {
	return func(o *options) error {
		o.key = key
		return nil
	}
}

// WithClient says who publishes: an id that the program chose and keeps, of 1 to 64
// ASCII letters, digits, '-', '_', '.' and ':'. Subscribers are not told it. Default:
// none.
func WithClient(id string) PublishOption {
	return func(o *options) error {
		o.client = id
		return wire.CheckClient(id)
	}
}

// WithIdempotencyKey makes it safe to publish the message again: as long as the
// daemon knows the key it does so once, and repeats its first answer. The key is 1
// to 255 bytes of printable ASCII, new for each message, such as a UUID; subscribers
// get it as the message's ID. With it Publish tries again, too, when an answer is
// lost. The same key with another message is refused with the problem
// idempotency_mismatch. Default: none.
func WithIdempotencyKey(key string) PublishOption {
	return func(o *options) error {
		o.id = key
		return wire.CheckID(key)
	}
}

// Publish publishes body to topic as the media type contentType, and returns where
// and when the daemon put it: it is in the history and on its way to subscribers.
// An empty contentType is JSON, as in wire.Message.
//
// A daemon that answers "later" (429 or 503, with how much later) did not take the
// message. It is offered again then, as often as WithPublishAttempts allows, unless
// ctx ends before. With an idempotency key it is also offered again, as often, when
// the answer was lost or a server between could not get one, for a minute: the
// daemon knows the key for two, unless it crashes, is set otherwise, or is flooded
// with keys. If a subscription of the Client has learned that the daemon forgets
// keys sooner (idempotency_ms), half of that time counts. Nothing else is tried again: if the answer was lost, the message may
// have been published. So an error tells what happened:
//   - a *wire.Problem (errors.As) below 500, or 503: not published;
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

func (c *Client) publish(ctx context.Context, topic, contentType string, body []byte, opts []PublishOption) (published wire.Published, err error) {
	if err := wire.CheckTopic(topic); err != nil {
		return wire.Published{}, err
	}
	o, err := optionsOf(opts)
	if err != nil {
		return wire.Published{}, err
	}
	err = c.offer(ctx, o.id != "", func() (err error) {
		published, err = c.publishOnce(ctx, topic, contentType, body, o)
		return err
	})
	return published, err
}

func (c *Client) publishOnce(ctx context.Context, topic, contentType string, body []byte, o options) (wire.Published, error) {
	if body == nil {
		body = []byte{} // an empty body, not none
	}
	req, err := c.request(ctx, http.MethodPost, "v1/topics/"+topic+"/messages", o.query(), body)
	if err != nil {
		return wire.Published{}, err
	}
	if contentType == "" {
		contentType = jsonType
	}
	req.Header.Set("Content-Type", contentType)
	if o.id != "" {
		req.Header.Set("Idempotency-Key", wire.FormatIdempotencyKey(o.id))
	}
	var published wire.Published
	err = c.receive(req, http.StatusOK, &published)
	return published, err
}

func (o *options) query() url.Values {
	query := url.Values{}
	if o.ttl > 0 {
		query.Set("ttl", strconv.FormatUint(o.ttl, 10))
	}
	if o.key != "" {
		query.Set("key", o.key)
	}
	if o.client != "" {
		query.Set("client", o.client)
	}
	return query
}
