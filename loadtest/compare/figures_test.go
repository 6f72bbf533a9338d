package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.True(t, math.IsNaN(median(nil)))
	require.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, median([]float64{4, 1, 3, 2}), 0)
}

func TestPercentileIsAValueThatWasMeasured(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	require.InDelta(t, 95, percentile(hundred, 95), 0)
	require.InDelta(t, 7, percentile([]float64{7}, 95), 0)
	require.True(t, math.IsNaN(percentile(nil, 95)))
}

func TestRatioDividesMediansAndMinima(t *testing.T) {
	got := spread{median: 12, least: 9}.ratio(spread{median: 10, least: 10})
	require.InDelta(t, 1.2, got.median, 1e-9)
	require.InDelta(t, 0.9, got.least, 1e-9)
}

func TestFailedRunsAreInNoFigure(t *testing.T) {
	c := Comparison{Measurements: []Measurement{
		measured("long-poll-5000", "nchan", 1, 20),
		{Scenario: "long-poll-5000", Server: "nchan", Round: 2, Error: "refused", Result: measured("", "", 0, 90).Result},
	}}
	f := c.figuresOf("long-poll-5000", "nchan")
	require.Equal(t, 2, f.runs)
	require.Equal(t, 1, f.failed)
	require.InDelta(t, 20, f.cpu.median, 0)
	require.Contains(t, f.remarks(), "1 of 2 runs failed**: refused")
}

func TestCPUPerMessageCountsRecordedPublishes(t *testing.T) {
	m := measured("collab", "nchan", 1, 20)
	m.Result.Server.CPUS = 1
	m.Result.Publishes.Answer.Count = 10_000
	require.InDelta(t, 100, cpuPerMessage(m), 1e-9)
}
