//go:build linux

package lane_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// publishingOnce returns a request that publishes body to topic a with an idempotency
// key.
func publishingOnce(key, body string) string {
	return fmt.Sprintf("POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
}

// The lane repeats the answer to a publish by net/http, and the reverse.
func TestLaneAndNetHTTPShareIdempotencyKeys(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		fast, slow := k.CallOnLane(), k.Call()
		slow.Send(publishingOnce("k1", "1"))
		first := slow.WantAnswer(http.StatusOK) // net/http serves a connection's first request
		fast.Send(publishingOnce(`"k1"`, "1"), publishingOnce("k2", "2"), publishingOnce("k2", "2"), publishingOnce("k2", "3"))
		require.Equal(t, first, fast.WantAnswer(http.StatusOK))
		second := fast.WantAnswer(http.StatusOK)
		require.Equal(t, second, fast.WantAnswer(http.StatusOK))
		require.Contains(t, fast.WantAnswer(http.StatusUnprocessableEntity), wire.CodeIdempotencyMismatch)
		other := k.Call()
		other.Send(publishingOnce("k2", "2"))
		require.Equal(t, second, other.WantAnswer(http.StatusOK))
		require.Equal(t, 3.0, k.Counted("pubsubd_calls_total", "publish", "lane"))
		require.Len(t, k.Held("a"), 2)
	})
}

// Two clients publish with the same key at once, the second on the lane. The second waits
// for the first and gets the same answer. Other publishers do not wait.
func TestASecondPublishWithAKeyWaitsForTheFirst(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		first, second, another := k.Call(), k.CallOnLane(), k.Call()
		hold := make(chan struct{})
		joined, err := k.Parts.Broker.Join(wire.Start{Topic: "a"}, holder{hold}, true) // every publish to the topic blocks in Offer
		require.NoError(t, err)
		defer joined.Leave()

		first.Send(publishingOnce("k", "1"))
		k.Want(1, func() int { return len(k.Held("a")) }, "messages published")
		second.Send(publishingOnce("k", "1"))
		k.WantCalls(2, 0)
		another.Send(lanetest.Publishing("b", "1"))
		another.WantPublished("b")

		close(hold)
		require.Equal(t, first.WantAnswer(http.StatusOK), second.WantAnswer(http.StatusOK))
		require.Len(t, k.Held("a"), 1)
		require.Equal(t, 1.0, k.Counted("pubsubd_idempotency_results_total", "repeated"))
	})
}

// A holder is a subscriber that blocks publishers until hold is closed.
type holder struct{ hold chan struct{} }

func (holder) Missed() {}

func (holder) Forgotten() {}

func (h holder) Offer([]*frame.Frame, time.Time) { <-h.hold }

// Many clients send the same publishes at once. Each key is published once.
func TestConcurrentRetriesPublishOnce(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		const clients, keys = 8, 50
		k := newLane(t, way)
		callers := make([]*lanetest.Caller, clients)
		for i := range callers {
			if callers[i] = k.Call(); i%2 == 0 {
				callers[i] = k.CallOnLane()
			}
		}
		answers := make([][]string, clients)
		var running sync.WaitGroup
		for i, c := range callers {
			running.Go(func() {
				for n := range keys {
					c.Send(publishingOnce(fmt.Sprint(n), fmt.Sprint("body ", n)))
					answers[i] = append(answers[i], c.WantAnswer(http.StatusOK))
				}
			})
		}
		running.Wait()
		for _, each := range answers[1:] {
			require.Equal(t, answers[0], each)
		}
		require.Len(t, k.Held("a"), keys)
	})
}
