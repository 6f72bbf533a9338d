package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// readHistories reads all that the daemon still holds, once nothing is published any
// more: that settles publishes whose answer was lost, and is a trail like any other.
func (w *world) readHistories(ctx context.Context) error {
	for _, topic := range w.ledger.names {
		if err := w.readHistory(ctx, topic); err != nil {
			return fmt.Errorf("read the history of %s: %w", topic, err)
		}
	}
	return nil
}

// historyPage is how many frames are asked for at a time, the most there may be.
const historyPage = 1000

func (w *world) readHistory(ctx context.Context, topic string) error {
	url := "http://" + w.reign.server.Addresses().Public + "/v1/topics/" + topic
	asked := time.Now()
	resp, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var state wire.TopicState
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		return err
	}
	t := w.follow("the history", wire.Start{Topic: topic, From: wire.FromOldest}, state.Oldest, noOwn, asked)
	for more := true; more && err == nil; {
		more, err = readPage(ctx, fmt.Sprintf("%s/messages?limit=%d&after=%v", url, historyPage, t.position()), t)
	}
	return err
}

// readPage has the trail see one page, and reports whether another follows.
func readPage(ctx context.Context, url string, t *trail) (more bool, err error) {
	resp, err := get(ctx, url)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	frames := wire.NewDecoder(resp.Body)
	for {
		c, err := frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return false, fmt.Errorf("a page was cut: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return false, err
		case c.Done != nil:
			return c.Done.More, nil
		case c.Counts():
			t.frame(c, time.Now())
		}
	}
}

func get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("answered %s", resp.Status)
	}
	return resp, nil
}
