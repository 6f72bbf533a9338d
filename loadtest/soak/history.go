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
	resp, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var state wire.TopicState
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		return err
	}
	t := w.follow("the history", wire.Start{Topic: topic, From: wire.FromOldest}, state.Oldest, noOwn)
	for {
		n, err := readPage(ctx, fmt.Sprintf("%s/messages?limit=%d&after=%v", url, historyPage, t.position()), t)
		if err != nil || n < historyPage {
			return err
		}
	}
}

// readPage has the trail see one page, and returns how many frames it has.
func readPage(ctx context.Context, url string, t *trail) (n int, err error) {
	resp, err := get(ctx, url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	frames := wire.NewDecoder(resp.Body)
	for {
		c, err := frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		case c.Counts():
			t.frame(c, time.Now())
			n++
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
