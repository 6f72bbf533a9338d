//go:build linux

package lane_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// limitedLane returns a kit that refuses an address after this many publishes.
func limitedLane(t *testing.T, way lane.Way, publishes int) *kit {
	rates := limit.Rates{limit.Publishes: {limit.Address: {PerSecond: 1.0 / 3600, Burst: publishes}}}
	return newLaneWith(t, way, lanetest.Settings{Limits: limit.Config{Rates: rates, Wait: 10 * time.Second}}, nil)
}

// callLimited returns a caller that has published once.
func (k *kit) callLimited() *lanetest.Caller {
	c := k.CallOnLane()
	c.Send(lanetest.Publishing("a", "0"))
	c.WantPublished("a")
	return c
}

func TestTheLaneDelaysRefusalsWithoutAGoroutine(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := limitedLane(t, way, 1)
		c := k.callLimited()
		refusals := c.RefuseUntilHeld()
		k.FromNow(9 * time.Second)
		c.Send(lanetest.Publishing("b", "1")) // pipelined
		c.WantToldLate()
		k.Want(refusals+1, k.Refusals, "refusals")
		c.WantToldLate()
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	})
}

func TestAClientCanLeaveDuringADelayedRefusal(t *testing.T) {
	k := limitedLane(t, lane.HandOff, 1)
	c := k.callLimited()
	c.RefuseUntilHeld()
	require.NoError(t, c.Conn.Close())
	k.WantOnLane(0)
	k.FromNow(11 * time.Second)
}

func TestADrainSendsDelayedRefusals(t *testing.T) {
	k := limitedLane(t, lane.HandOff, 1)
	c := k.callLimited()
	c.RefuseUntilHeld()
	k.Lane.Drain()
	c.WantAnswer(http.StatusTooManyRequests)
	c.WantClosed()
	k.WantOnLane(0)
}

// The lane applies the same limits as net/http.
func TestTheLaneCountsEveryPollAndPublish(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneWith(t, way, lanetest.Settings{Limits: limit.Config{PendingMessages: 1}, Session: session.Config{InactivityTimeout: time.Hour}}, nil)
		id := k.OpenA()
		k.Tell(1, 1, 10)
		reload := func(cfg limit.Config) {
			cfg.Sessions = 1000
			k.Parts.Limiter.Reload(cfg)
			k.Parts.Broker.Reload(broker.Config{Rules: lanetest.WithLimits(nil, cfg)}, time.Now())
		}
		c := k.CallOnLane()
		for _, story := range []struct {
			limit string
			cfg   limit.Config
			ask   string
		}{
			{"rates.publishes.address", limit.Config{Rates: limit.Rates{limit.Publishes: {limit.Address: lanetest.Once}}}, lanetest.Publishing("a", "1")},
			{"rates.publishes.all", limit.Config{Rates: limit.Rates{limit.Publishes: {limit.All: lanetest.Once}}}, lanetest.Publishing("a", "1")},
			{"rates.polls.address", limit.Config{Rates: limit.Rates{limit.Polls: {limit.Address: lanetest.Once}}}, lanetest.Polling(id, 0)},
			{"rates.polls.all", limit.Config{Rates: limit.Rates{limit.Polls: {limit.All: lanetest.Once}}}, "GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n"},
			{"topics.a.rate", limit.Config{Rules: []limit.Rule{{Name: "a", Pattern: "a", Rate: lanetest.Once}}}, lanetest.Publishing("a", "1")},
		} {
			reload(story.cfg)
			c.Send(story.ask)
			c.WantAnswer(http.StatusOK)
			c.Send(story.ask)
			require.Contains(t, c.WantAnswer(http.StatusTooManyRequests), story.limit)
		}
		reload(limit.Config{Rates: limit.Rates{limit.Polls: {limit.Address: lanetest.Once}}})
		wrong := "GET /v1/poll?topic=a@none HTTP/1.1\r\nHost: h\r\n\r\n"
		c.Send(wrong, wrong)
		c.WantAnswer(http.StatusBadRequest)
		require.Contains(t, c.WantAnswer(http.StatusTooManyRequests), "rates.polls.address")
		reload(limit.Config{Rates: limit.Rates{limit.Misses: {limit.Address: lanetest.Once}}})
		c.Send(lanetest.Polling("none", 0))
		c.WantAnswer(http.StatusNotFound)
		c.Send(lanetest.Polling("none", 0))
		require.Contains(t, c.WantAnswer(http.StatusTooManyRequests), "rates.misses.address")
		reload(limit.Config{Rates: limit.Rates{limit.Topics: {limit.Address: lanetest.Once}}})
		c.Send(lanetest.Publishing("new.1", "1"), lanetest.Publishing("new.1", "1"))
		c.WantAnswer(http.StatusOK)
		c.WantAnswer(http.StatusOK)
		c.Send(lanetest.Publishing("new.2", "1"))
		require.Contains(t, c.WantAnswer(http.StatusTooManyRequests), "rates.topics.address")
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	})
}

func TestAPublishOnTheLaneIsNoLongerPendingOnceItIsAnswered(t *testing.T) {
	k := newLaneWith(t, lane.HandOff, lanetest.Settings{Limits: limit.Config{PendingMessages: 1}}, nil)
	id := k.OpenA()
	c := k.CallOnLane()
	for range 3 {
		c.Send(strings.Replace(lanetest.Publishing("a", "1"), "/messages", "/messages?session="+id, 1))
		c.WantPublished("a")
	}
	require.Equal(t, 1, k.OnLane())
}

// A call that waits for a slot stays on the lane and spends its rate once.
func TestACallWaitsForItsSlotOnTheLane(t *testing.T) {
	rates := limit.Rates{limit.Publishes: {limit.Address: {PerSecond: 1.0 / 3600, Burst: 1}}}
	k := newLaneWith(t, lane.HandOff, lanetest.Settings{Limits: limit.Config{Calls: 1, Wait: lanetest.Surely, Rates: rates}}, nil)
	c := k.CallOnLane()
	call, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
	require.NoError(t, err)
	c.Send(lanetest.Publishing("a", "1"))
	k.WantCalls(1, 1)
	call.End()
	require.EqualValues(t, 1, c.WantPublished("a"))
	require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	c.Send(lanetest.Publishing("a", "1"))
	c.WantAnswer(http.StatusTooManyRequests)
}

func TestForwardedAddressesOfTrustedProxiesCount(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		t.Run(string(way), func(t *testing.T) { wantBelieved(t, way) })
	}
}

func wantBelieved(t *testing.T, way lane.Way) {
	rates := limit.Rates{limit.Publishes: {limit.Address: lanetest.Once}}
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	k := serveLane(t, way, lanetest.Settings{Limits: limit.Config{Rates: rates, TrustedProxies: trusted}}, nil)
	c := k.Call()
	from := func(addr string) string {
		return strings.Replace(lanetest.Publishing("a", "1"), "Host: h", "Host: h\r\nX-Forwarded-For: "+addr, 1)
	}
	for _, addr := range []string{"192.0.2.1", "192.0.2.2", "203.0.113.9, 192.0.2.3", "192.0.2.4"} {
		c.Send(from(addr))
		c.WantPublished("a")
	}
	c.Send(from("198.51.100.1, 192.0.2.1"))
	require.Contains(t, c.WantAnswer(http.StatusTooManyRequests), string(wire.CodeLimited))
	c.Send(lanetest.Publishing("a", "1"))
	c.WantPublished("a") // counts for the proxy's own address
	require.Equal(t, way != lane.Off, k.OnLane() == 1)
}
