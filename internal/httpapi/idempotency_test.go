//go:build linux

package httpapi

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// publishingOnce returns a request that publishes body to topic a with an idempotency
// key.
func publishingOnce(key, body string) string {
	return fmt.Sprintf("POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
}

// The lane repeats the answer to a publish by net/http, and the reverse.
func TestLaneAndNetHTTPShareIdempotencyKeys(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		fast, slow := k.callOnLane(), k.call()
		slow.send(publishingOnce("k1", "1"))
		first := slow.wantAnswer(http.StatusOK) // net/http serves a connection's first request
		fast.send(publishingOnce(`"k1"`, "1"), publishingOnce("k2", "2"), publishingOnce("k2", "2"), publishingOnce("k2", "3"))
		require.Equal(t, first, fast.wantAnswer(http.StatusOK))
		second := fast.wantAnswer(http.StatusOK)
		require.Equal(t, second, fast.wantAnswer(http.StatusOK))
		require.Contains(t, fast.wantAnswer(http.StatusUnprocessableEntity), wire.CodeIdempotencyMismatch)
		other := k.call()
		other.send(publishingOnce("k2", "2"))
		require.Equal(t, second, other.wantAnswer(http.StatusOK))
		require.Equal(t, 3.0, k.counted("pubsubd_calls_total", "publish", "lane"))
		require.Len(t, k.held("a"), 2)
	})
}

// Two clients publish with the same key at once, the second on the lane. The second waits
// for the first and gets the same answer. Other publishers do not wait.
func TestASecondPublishWithAKeyWaitsForTheFirst(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		first, second, another := k.call(), k.callOnLane(), k.call()
		hold := make(chan struct{})
		joined, err := k.cfg.Broker.Join(wire.Start{Topic: "a"}, holder{hold}, true) // every publish to the topic blocks in Offer
		require.NoError(t, err)
		defer joined.Leave()

		first.send(publishingOnce("k", "1"))
		k.want(1, func() int { return len(k.held("a")) }, "messages published")
		second.send(publishingOnce("k", "1"))
		k.wantCalls(2, 0)
		another.send(publishing("b", "1"))
		another.wantPublished("b")

		close(hold)
		require.Equal(t, first.wantAnswer(http.StatusOK), second.wantAnswer(http.StatusOK))
		require.Len(t, k.held("a"), 1)
		require.Equal(t, 1.0, k.counted("pubsubd_idempotency_results_total", "repeated"))
	})
}

// A holder is a subscriber that blocks publishers until hold is closed.
type holder struct{ hold chan struct{} }

func (holder) Missed() {}

func (holder) Forgotten() {}

func (h holder) Offer([]*frame.Frame, time.Time) { <-h.hold }

// Many clients send the same publishes at once. Each key is published once.
func TestConcurrentRetriesPublishOnce(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		const clients, keys = 8, 50
		k := newLaneKit(t, way)
		callers := make([]*caller, clients)
		for i := range callers {
			if callers[i] = k.call(); i%2 == 0 {
				callers[i] = k.callOnLane()
			}
		}
		answers := make([][]string, clients)
		var running sync.WaitGroup
		for i, c := range callers {
			running.Go(func() {
				for n := range keys {
					c.send(publishingOnce(fmt.Sprint(n), fmt.Sprint("body ", n)))
					answers[i] = append(answers[i], c.wantAnswer(http.StatusOK))
				}
			})
		}
		running.Wait()
		for _, each := range answers[1:] {
			require.Equal(t, answers[0], each)
		}
		require.Len(t, k.held("a"), keys)
	})
}
