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

// A PublishOption sets a property of one message.
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

// WithTTL sets how long the daemon delivers the message after it was published. d must be
// whole seconds, at least one; Publish returns an error for anything else. Default: as long
// as the topic's history keeps the message.
func WithTTL(d time.Duration) PublishOption {
	return func(o *options) error {
		if d < time.Second || d%time.Second != 0 {
			return fmt.Errorf("the ttl must be whole seconds, at least 1s; got %v", d)
		}
		o.ttl = uint64(d / time.Second)
		return nil
	}
}

// WithKey sets the key for conflation: the newer of two messages with the same key may
// replace the older one. The empty key means none. Default: none.
func WithKey(key string) PublishOption {
	return func(o *options) error {
		o.key = key
		return nil
	}
}

// WithClient sets the id of the publishing client, which the program chooses and keeps: 1
// to 64 ASCII letters, digits, '-', '_', '.' and ':'. Subscribers do not see it. See
// WithoutOwn. Default: none.
func WithClient(id string) PublishOption {
	return func(o *options) error {
		o.client = id
		return wire.CheckClient(id)
	}
}

// WithIdempotencyKey makes retries safe: while the daemon remembers the key, it publishes
// the message once and repeats its first answer. With a key, Publish also retries after a
// lost answer. The key must be 1 to 255 bytes of printable ASCII, and new for each message,
// such as a UUID. Subscribers get it as the message's ID. The daemon refuses the same key
// with another message: idempotency_mismatch. Default: none.
func WithIdempotencyKey(key string) PublishOption {
	return func(o *options) error {
		o.id = key
		return wire.CheckID(key)
	}
}

// Publish publishes body to topic with the media type contentType. It returns the position
// and time of the message, which is then in the history. An empty contentType means JSON,
// as in wire.Message.
//
// Publish retries while no connection can be made, and after 429 and 503 of the daemon: the
// message was not published then. With an idempotency key it also retries after a lost answer,
// after 500, and if a proxy could not reach the daemon. It waits as long as the daemon asks, and
// begins no attempt later than WithPublishRetry allows. After a lost answer it stops after a
// minute: the daemon remembers a key for two minutes by default. If a subscription of the Client
// has learned that the daemon forgets keys sooner (idempotency_ms), it stops after half of that
// time. Publish does not retry in any other case.
//
// If the message may have been published, errors.Is(err, ErrOutcomeUnknown); otherwise it was not.
// A refusal of the daemon is a *wire.Problem, also of an attempt after one whose answer was lost. An
// answer of a proxy, or of another program, is an *UnexpectedAnswerError.
//
// Only ctx limits the time of one attempt. Publish does not keep body.
func (c *Client) Publish(ctx context.Context, topic, contentType string, body []byte, opts ...PublishOption) (wire.Published, error) {
	published, err := c.publish(ctx, topic, contentType, body, opts)
	if err != nil {
		return wire.Published{}, fmt.Errorf("publish %q: %w", topic, err)
	}
	return published, nil
}

// PublishJSON is Publish with v encoded by encoding/json.
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
	if err == nil && published.Position.Topic != topic {
		err = unexpected(http.StatusOK, "without a position of the topic")
	}
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
