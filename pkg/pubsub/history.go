package pubsub

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A HistoryPage is a part of a topic's history.
type HistoryPage struct {
	Items  []Item        // messages, and gaps among them, oldest first
	Before wire.Position // where the page of older messages ends: the argument of the next History
	More   bool          // older messages were held
	Next   wire.Start    // begins a subscription to what comes after the page
}

// historyRetry is how long after its call History may begin another attempt.
const historyRetry = DefaultPublishRetry

// History returns the newest messages of topic before a position, at most limit (1 to 1000). The
// zero position stands for the end of the history. To read backwards, call it again with Before of
// the page, as long as More is true. A topic that does not exist has an empty page.
//
// If the daemon does not know the position, for example because it has restarted without a log on
// disk, the page is one gap, restarted. History needs the right "history". It retries after
// errors that may pass, for up to 30 s. A refusal is a *wire.Problem.
func (c *Client) History(ctx context.Context, topic string, before wire.Position, limit int) (HistoryPage, error) {
	page, err := c.history(ctx, topic, before, limit)
	if err != nil {
		return HistoryPage{}, fmt.Errorf("history of %q: %w", topic, err)
	}
	return page, nil
}

func (c *Client) history(ctx context.Context, topic string, before wire.Position, limit int) (HistoryPage, error) {
	if err := wire.CheckTopic(topic); err != nil {
		return HistoryPage{}, err
	}
	query := url.Values{}
	switch {
	case limit < 1 || limit > wire.MaxNewest:
		return HistoryPage{}, fmt.Errorf("limit must be 1 to %d; got %d", wire.MaxNewest, limit)
	case before == (wire.Position{}):
		query.Set("newest", strconv.Itoa(limit))
	case before.Topic != topic:
		return HistoryPage{}, fmt.Errorf("%s is a position of another topic", before)
	default:
		query.Set("before", before.String())
		query.Set("limit", strconv.Itoa(limit))
	}
	pauses := backoff{max: c.maxBackoff}
	for began := c.clock.now(); ; {
		page, err := c.historyOnce(ctx, topic, query)
		if hasCode(err, wire.CodeTopicUnknown) {
			return HistoryPage{Before: before, Next: FromOldest(topic)}, nil // its first message is new
		}
		if err == nil || !isTransient(err) {
			return page, err
		}
		wait := pauses.next(retryAfter(err))
		if c.clock.since(began)+wait > historyRetry || c.clock.sleep(ctx, wait) != nil {
			return page, err
		}
	}
}

func (c *Client) historyOnce(ctx context.Context, topic string, query url.Values) (page HistoryPage, err error) {
	req, err := c.request(ctx, http.MethodGet, "v1/topics/"+topic+"/messages", query, nil)
	if err != nil {
		return page, err
	}
	var o subscribeOptions
	a := c.ask(ctx, c.send, req, Batch, o.encoding(), defaultLimits)
	defer a.stop()
	var done *wire.Done
	for content := range a.contents {
		if content.Counts() {
			page.Items = append(page.Items, Item{Message: content.Message, Gap: content.Gap})
		}
		done = content.Done // the last frame
	}
	switch {
	case a.err != nil:
		return HistoryPage{}, a.err
	case done == nil:
		return HistoryPage{}, errIncomplete
	case done.Position.Topic != topic:
		return HistoryPage{}, unexpected(http.StatusOK, "with the history of another topic")
	}
	page.Before, page.More = done.Position, done.More
	page.Next = FromPosition(done.Position)
	if n := len(page.Items); n > 0 {
		page.Next = FromPosition(page.Items[n-1].Position())
	}
	return page, nil
}
