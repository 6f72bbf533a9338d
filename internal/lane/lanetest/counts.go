package lanetest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// Later sets the lane's clock to d after its start, however long the test has taken.
func (k *Kit) Later(d time.Duration) { k.Lane.Tick(k.begun.Add(d)) }

// FromNow sets the lane's clock to d from now. The delay of a refusal starts when it is
// made.
func (k *Kit) FromNow(d time.Duration) { k.Lane.Tick(time.Now().Add(d)) }

// WantOnLaneAfter advances the lane's clock by d and 2 seconds, repeatedly, until the
// lane has n connections. Once is not enough: a client may have its answer before the
// lane starts the timer.
func (k *Kit) WantOnLaneAfter(d time.Duration, n int) {
	k.Helper()
	now := time.Now()
	k.Want(n, func() int {
		now = now.Add(d + 2*time.Second)
		k.Lane.Tick(now)
		return k.OnLane()
	}, "connections on the lane, in time")
}

// Surely is the time limit for an event that must happen.
const Surely = time.Minute

// Want waits until count returns n.
func (k *Kit) Want(n int, count func() int, what string) {
	k.Helper()
	got := 0
	for begun := time.Now(); time.Since(begun) < Surely; {
		if got = count(); got == n {
			return
		}
		time.Sleep(min(time.Millisecond+time.Since(begun)/8, 25*time.Millisecond)) // to count takes CPU, too
	}
	require.Equal(k, n, got, what)
}

// Counted returns the sum of a metric's samples that have all these label values.
func (k *Kit) Counted(name string, labels ...string) float64 {
	k.Helper()
	families, err := k.Parts.Metrics.Registry.Gather()
	require.NoError(k, err)
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, sample := range family.GetMetric() {
			has := map[string]bool{}
			for _, label := range sample.GetLabel() {
				has[label.GetValue()] = true
			}
			matches := true
			for _, label := range labels {
				matches = matches && has[label]
			}
			if matches {
				sum += sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// WantNoNewSeries requires that the test adds no counter series. Every series must exist
// at 0 before its first event.
func (k *Kit) WantNoNewSeries() {
	k.Helper()
	before := k.series()
	k.Cleanup(func() {
		for name := range k.series() {
			require.True(k, before[name], "announce it in metrics.New: %s", name)
		}
	})
}

// series returns the names of pubsubd's counter series.
func (k *Kit) series() map[string]bool {
	k.Helper()
	names := map[string]bool{}
	families, err := k.Parts.Metrics.Registry.Gather()
	require.NoError(k, err)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "pubsubd_") || family.GetType().String() != "COUNTER" {
			continue
		}
		for _, sample := range family.GetMetric() {
			name := family.GetName()
			for _, label := range sample.GetLabel() {
				name += " " + label.GetValue()
			}
			if !strings.Contains(name, "rate") { // a reload adds rates
				names[name] = true
			}
		}
	}
	return names
}

// Compressed returns the counted bytes before and after compression.
func (k *Kit) Compressed() (bytes [2]string) {
	k.Helper()
	families, err := k.Parts.Metrics.Registry.Gather()
	require.NoError(k, err)
	for _, family := range families {
		if family.GetName() != "pubsubd_compressed_bytes_total" {
			continue
		}
		for _, sample := range family.GetMetric() {
			stage := map[string]int{"before": 0, "after": 1}[sample.GetLabel()[0].GetValue()]
			bytes[stage] = strconv.FormatFloat(sample.GetCounter().GetValue(), 'f', -1, 64)
		}
	}
	return bytes
}

// OnLane returns the number of connections on the lane.
func (k *Kit) OnLane() int {
	k.Helper()
	return int(testutil.ToFloat64(k.Parts.Metrics.LaneConnections))
}

// Gone returns the number of polls that were counted as gone.
func (k *Kit) Gone() int {
	k.Helper()
	return int(k.Counted("pubsubd_polls_total", "gone"))
}

// Parked returns the number of polls that wait for a message.
func (k *Kit) Parked() int {
	const name = "pubsubd_polls_parked"
	return int(k.Counted(name, "longpoll") + k.Counted(name, "stream") + k.Counted(name, "sse"))
}

// calls returns how many calls have a slot and how many wait for one.
func (k *Kit) calls() (inUse, waiting int) {
	var g metrics.Gauges
	k.Parts.Limiter.Gauges(&g)
	for _, limit := range g.Limits {
		if limit.Name == "calls" {
			return limit.InUse, limit.Waiting
		}
	}
	return 0, 0
}

// WaitingFor returns how many calls wait for a slot of this limit.
func (k *Kit) WaitingFor(limit string) int {
	var g metrics.Gauges
	k.Parts.Limiter.Gauges(&g)
	for _, l := range g.Limits {
		if l.Name == limit {
			return l.Waiting
		}
	}
	panic("BUG: no such limit")
}

// Delivered returns the number of frames that were written or are buffered.
func (k *Kit) Delivered() int {
	k.Helper()
	return int(k.Counted("pubsubd_frames_delivered_total"))
}

// Refusals returns the number of refused publishes.
func (k *Kit) Refusals() int {
	k.Helper()
	return int(k.Counted("pubsubd_limited_total", "rates.publishes.address"))
}

// Subscriptions returns the broker's number of subscriptions.
func (k *Kit) Subscriptions() int {
	var g metrics.Gauges
	k.Parts.Broker.Gauges(&g)
	return g.Subscriptions
}

// WantOnLane waits until the lane has n connections.
func (k *Kit) WantOnLane(n int) { k.Helper(); k.Want(n, k.OnLane, "connections on the lane") }

// WantCalls waits until so many calls have a slot, and wait for one.
func (k *Kit) WantCalls(inUse, waiting int) {
	k.Helper()
	k.Want(inUse, func() int { n, _ := k.calls(); return n }, "calls with a slot")
	k.Want(waiting, func() int { _, n := k.calls(); return n }, "calls that wait for one")
}

// WantParked waits until n polls wait for a message.
func (k *Kit) WantParked(n int) { k.Helper(); k.Want(n, k.Parked, "polls that wait") }

// WantGone waits until n polls are counted as gone.
func (k *Kit) WantGone(n int) { k.Helper(); k.Want(n, k.Gone, "polls that are gone") }

// WantNoLaneConnections waits until the lane has served all its connections to the end.
func (k *Kit) WantNoLaneConnections() {
	k.Helper()
	if k.HTTP != nil {
		k.HTTP.CloseIdleConnections()
	}
	require.Eventually(k, func() bool {
		return testutil.ToFloat64(k.Parts.Metrics.LaneConnections) == 0
	}, Surely, time.Millisecond)
}

// OnBothWays runs story once for each way to wait on the lane.
func OnBothWays(t *testing.T, story func(t *testing.T, way lane.Way)) {
	t.Helper()
	for _, way := range []lane.Way{lane.HandOff, lane.Channel} {
		t.Run(string(way), func(t *testing.T) { story(t, way) })
	}
}

// OnBothWaysToCarry runs a test with two-way connections off the lane, and again on it.
func OnBothWaysToCarry(t *testing.T, test func(t *testing.T, way lane.Way)) {
	for _, way := range []lane.Way{lane.Off, lane.HandOff} {
		t.Run(string(way), func(t *testing.T) { test(t, way) })
	}
}
