package pubsub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Publication is one message of PublishMany. Its fields are the arguments of Publish.
type Publication struct {
	Topic   string
	Type    string // media type of Body; empty for JSON
	Body    []byte
	Options []PublishOption
}

// PublishMany publishes messages in order, with one request: at most 1000, and at most
// 1 MiB as sent, or twice the daemon's message.bytes and 64 KiB if that is more. It returns
// one result for each, in order. A mistake in one message does not stop the others, so check
// each Problem. PublishMany does not retry a single message that the daemon refused.
//
// An error concerns all messages. Errors and retries are those of Publish; after a lost
// answer PublishMany retries only if every message has an idempotency key. With
// ErrOutcomeUnknown, any number of the messages may have been published.
func (c *Client) PublishMany(ctx context.Context, messages []Publication) ([]wire.PublishResult, error) {
	items := make([]wire.PublishItem, len(messages))
	for i, m := range messages {
		var err error
		if items[i], err = m.item(); err != nil {
			return nil, fmt.Errorf("publish %d messages: the one at %d, to %q: %w", len(messages), i, m.Topic, err)
		}
	}
	var results []wire.PublishResult
	err := c.offer(ctx, !slices.ContainsFunc(items, withoutID), func() (err error) {
		results, err = c.publishManyOnce(ctx, items)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("publish %d messages: %w", len(messages), err)
	}
	return results, nil
}

func withoutID(item wire.PublishItem) bool { return item.ID == nil }

func (m *Publication) item() (wire.PublishItem, error) {
	if err := wire.CheckTopic(m.Topic); err != nil {
		return wire.PublishItem{}, err
	}
	o, err := optionsOf(m.Options)
	if err != nil {
		return wire.PublishItem{}, err
	}
	item := wire.PublishItem{
		Topic: m.Topic, Key: o.key,
		TTL: given(o.ttl), Client: given(o.client), ID: given(o.id),
	}
	return item, m.payload(&item)
}

// given is a pointer to v, or nil if v is zero.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

var errNotJSON = errors.New("the body is not JSON: set its type")

func (m *Publication) payload(item *wire.PublishItem) error {
	switch {
	case m.Type == "" || m.Type == jsonType:
		if !json.Valid(m.Body) {
			return errNotJSON
		}
		item.Data = m.Body
		return nil
	case utf8.Valid(m.Body):
		item.Text = new(string(m.Body))
	default:
		item.Base64 = &m.Body
	}
	item.Type = m.Type
	return nil
}

func (c *Client) publishManyOnce(ctx context.Context, items []wire.PublishItem) ([]wire.PublishResult, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // or it would change what is in JSON payloads
	if err := enc.Encode(items); err != nil {
		return nil, err
	}
	req, err := c.request(ctx, http.MethodPost, "v1/messages", nil, body.Bytes())
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", jsonType)
	var results []wire.PublishResult
	if err := c.receive(req, http.StatusOK, &results); err != nil {
		return nil, err
	}
	if len(results) != len(items) {
		return nil, unexpected(http.StatusOK, "with %d results for %d messages", len(results), len(items))
	}
	for i, r := range results {
		if published := r.Published != nil; published == (r.Problem != nil) || published && r.Position.Topic != items[i].Topic {
			return nil, unexpected(http.StatusOK, "without a result for the message at %d", i)
		}
	}
	return results, nil
}
