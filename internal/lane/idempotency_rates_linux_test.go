package lane_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A publish waits while another one with its key is in progress. It spends the rates of
// its address and its topic once.
func TestARetryThatWaitsSpendsItsRateOnce(t *testing.T) {
	few := func(burst int) limit.Rate { return limit.Rate{PerSecond: 1.0 / 3600, Burst: burst} }
	for name, limits := range map[string]limit.Config{
		"rates.publishes.address": {Rates: limit.Rates{limit.Publishes: {limit.Address: few(3)}}}, // callOnLane spends the first
		"topics.a.rate":           {Rules: []limit.Rule{{Name: "a", Pattern: "a", Rate: few(2)}}},
	} {
		t.Run(name, func(t *testing.T) {
			k := serveLane(t, lane.HandOff, lanetest.Settings{Limits: limits}, nil)
			first, second := k.Call(), k.CallOnLane()
			hold := make(chan struct{})
			joined, err := k.Parts.Broker.Join(wire.Start{Topic: "a"}, holder{hold}, true) // every publish to the topic blocks in Offer
			require.NoError(t, err)
			defer joined.Leave()
			first.Send(publishingOnce("k", "1"))
			k.Want(1, func() int { return len(k.Held("a")) }, "messages published")
			second.Send(publishingOnce("k", "1"))
			k.WantCalls(2, 0) // the second waits for the first
			close(hold)
			require.Equal(t, first.WantAnswer(http.StatusOK), second.WantAnswer(http.StatusOK))
			second.Send(lanetest.Publishing("a", "1"))
			require.Contains(t, second.WantAnswer(http.StatusTooManyRequests), name, "all is spent now, and was not before")
		})
	}
}
