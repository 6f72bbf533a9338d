//go:build linux

package httpapi

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// limitedLane returns a kit that refuses an address after this many publishes.
func limitedLane(t *testing.T, way lane.Way, publishes int) *kit {
	rates := limit.Rates{limit.Publishes: {limit.Address: {PerSecond: 1.0 / 3600, Burst: publishes}}}
	return serveLane(t, way, settings{limits: limit.Config{Rates: rates, Wait: 10 * time.Second}}, nil)
}

// refuseUntilHeld publishes until a refusal is delayed, and returns the number of
// refusals. One more refusal each second is sent at once, so the number depends on the
// machine.
func (c *caller) refuseUntilHeld() (refusals int) {
	c.Helper()
	for refusals = 1; refusals < 100; refusals++ {
		c.send(publishing("a", "1"))
		c.want(refusals, c.refusals, "refusals")
		if !c.isToldAtOnce() {
			return refusals
		}
		require.Contains(c, c.wantAnswer(http.StatusTooManyRequests), "rates.publishes.address")
	}
	require.Fail(c, "no answer is held back")
	return refusals
}

// fromNow sets the lane's clock to d from now. The delay of a refusal starts when it is
// made.
func (k *kit) fromNow(d time.Duration) { k.api.Lane.Tick(time.Now().Add(d)) }

// refusals returns the number of refused publishes.
func (k *kit) refusals() int {
	k.Helper()
	return int(k.counted("pubsubd_limited_total", "rates.publishes.address"))
}

// isToldAtOnce reports whether an answer arrives within 50 ms.
func (c *caller) isToldAtOnce() bool {
	c.Helper()
	require.NoError(c, c.conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.answers.Peek(1)
	if err != nil {
		require.ErrorContains(c, err, "timeout")
	}
	return err == nil
}

// wantToldLate advances the lane's clock by the maximum delay until the refusal arrives.
// Once is not enough: a refusal may be counted before its delay starts.
func (c *caller) wantToldLate() {
	c.Helper()
	for begun := time.Now(); time.Since(begun) < surely; {
		c.fromNow(11 * time.Second)
		if c.isToldAtOnce() {
			break
		}
	}
	require.Contains(c, c.wantAnswer(http.StatusTooManyRequests), `"code":"limited"`)
}

func TestTheLaneDelaysRefusalsWithoutAGoroutine(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := limitedLane(t, way, 1)
		c := k.callOnLane()
		refusals := c.refuseUntilHeld()
		k.fromNow(9 * time.Second)
		c.send(publishing("b", "1")) // pipelined
		c.wantToldLate()
		k.want(refusals+1, k.refusals, "refusals")
		c.wantToldLate()
		require.Zero(t, k.counted("pubsubd_lane_returned_total"))
	})
}

func TestAClientCanLeaveDuringADelayedRefusal(t *testing.T) {
	k := limitedLane(t, lane.HandOff, 1)
	c := k.callOnLane()
	c.refuseUntilHeld()
	require.NoError(t, c.conn.Close())
	k.wantOnLane(0)
	k.fromNow(11 * time.Second)
}

func TestADrainSendsDelayedRefusals(t *testing.T) {
	k := limitedLane(t, lane.HandOff, 1)
	c := k.callOnLane()
	c.refuseUntilHeld()
	k.api.Lane.Drain()
	c.wantAnswer(http.StatusTooManyRequests)
	c.wantClosed()
	k.wantOnLane(0)
}

// The lane applies the same limits as net/http.
func TestTheLaneCountsEveryPollAndPublish(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := serveLane(t, way, settings{limits: limit.Config{PendingMessages: 1}, session: session.Config{InactivityTimeout: time.Hour}}, nil)
		id := k.openA()
		k.tell(1, 1, 10)
		reload := func(cfg limit.Config) {
			cfg.Sessions = 1000
			k.cfg.Limiter.Reload(cfg)
			k.cfg.Broker.Reload(broker.Config{Rules: withLimits(nil, cfg)}, time.Now())
		}
		c := k.callOnLane()
		for _, story := range []struct {
			limit string
			cfg   limit.Config
			ask   string
		}{
			{"rates.publishes.address", limit.Config{Rates: limit.Rates{limit.Publishes: {limit.Address: once}}}, publishing("a", "1")},
			{"rates.publishes.all", limit.Config{Rates: limit.Rates{limit.Publishes: {limit.All: once}}}, publishing("a", "1")},
			{"rates.polls.address", limit.Config{Rates: limit.Rates{limit.Polls: {limit.Address: once}}}, polling(id, 0)},
			{"rates.polls.all", limit.Config{Rates: limit.Rates{limit.Polls: {limit.All: once}}}, "GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n"},
			{"topics.a.rate", limit.Config{Rules: []limit.Rule{{Name: "a", Pattern: "a", Rate: once}}}, publishing("a", "1")},
		} {
			reload(story.cfg)
			c.send(story.ask)
			c.wantAnswer(http.StatusOK)
			c.send(story.ask)
			require.Contains(t, c.wantAnswer(http.StatusTooManyRequests), story.limit)
		}
		reload(limit.Config{Rates: limit.Rates{limit.Polls: {limit.Address: once}}})
		wrong := "GET /v1/poll?topic=a@none HTTP/1.1\r\nHost: h\r\n\r\n"
		c.send(wrong, wrong)
		c.wantAnswer(http.StatusBadRequest)
		require.Contains(t, c.wantAnswer(http.StatusTooManyRequests), "rates.polls.address")
		reload(limit.Config{Rates: limit.Rates{limit.Misses: {limit.Address: once}}})
		c.send(polling("none", 0))
		c.wantAnswer(http.StatusNotFound)
		c.send(polling("none", 0))
		require.Contains(t, c.wantAnswer(http.StatusTooManyRequests), "rates.misses.address")
		reload(limit.Config{Rates: limit.Rates{limit.Topics: {limit.Address: once}}})
		c.send(publishing("new.1", "1"), publishing("new.1", "1"))
		c.wantAnswer(http.StatusOK)
		c.wantAnswer(http.StatusOK)
		c.send(publishing("new.2", "1"))
		require.Contains(t, c.wantAnswer(http.StatusTooManyRequests), "rates.topics.address")
		require.Zero(t, k.counted("pubsubd_lane_returned_total"))
	})
}

func TestAPublishOnTheLaneIsNoLongerPendingOnceItIsAnswered(t *testing.T) {
	k := serveLane(t, lane.HandOff, settings{limits: limit.Config{PendingMessages: 1}}, nil)
	id := k.openA()
	c := k.callOnLane()
	for range 3 {
		c.send(strings.Replace(publishing("a", "1"), "/messages", "/messages?session="+id, 1))
		c.wantPublished("a")
	}
	require.Equal(t, 1, k.onLane())
}

// A call that waits for a slot stays on the lane and spends its rate once.
func TestACallWaitsForItsSlotOnTheLane(t *testing.T) {
	rates := limit.Rates{limit.Publishes: {limit.Address: {PerSecond: 1.0 / 3600, Burst: 2}}}
	k := serveLane(t, lane.HandOff, settings{limits: limit.Config{Calls: 1, Wait: surely, Rates: rates}}, nil)
	c := k.callOnLane()
	call, err := k.cfg.Limiter.Begin(t.Context(), limit.Who{}, false)
	require.NoError(t, err)
	c.send(publishing("a", "1"))
	k.wantCalls(1, 1)
	call.End()
	require.EqualValues(t, 1, c.wantPublished("a"))
	require.Zero(t, k.counted("pubsubd_lane_returned_total"))
	c.send(publishing("a", "1"))
	c.wantAnswer(http.StatusTooManyRequests)
}

func TestForwardedAddressesOfTrustedProxiesCount(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		t.Run(string(way), func(t *testing.T) { wantBelieved(t, way) })
	}
}

func wantBelieved(t *testing.T, way lane.Way) {
	rates := limit.Rates{limit.Publishes: {limit.Address: once}}
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	k := serveLane(t, way, settings{limits: limit.Config{Rates: rates, TrustedProxies: trusted}}, nil)
	c := k.call()
	from := func(addr string) string {
		return strings.Replace(publishing("a", "1"), "Host: h", "Host: h\r\nX-Forwarded-For: "+addr, 1)
	}
	for _, addr := range []string{"192.0.2.1", "192.0.2.2", "203.0.113.9, 192.0.2.3", "192.0.2.4"} {
		c.send(from(addr))
		c.wantPublished("a")
	}
	c.send(from("198.51.100.1, 192.0.2.1"))
	require.Contains(t, c.wantAnswer(http.StatusTooManyRequests), string(wire.CodeLimited))
	c.send(publishing("a", "1"))
	c.wantPublished("a") // counts for the proxy's own address
	require.Equal(t, way != lane.Off, k.onLane() == 1)
}
