package stats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

func TestASeriesHasAPointForEachInterval(t *testing.T) {
	s := stats.NewSeries(time.Second)
	s.Record(100*time.Millisecond, 4*time.Millisecond)
	s.Record(900*time.Millisecond, 8*time.Millisecond)
	s.Record(2*time.Second, time.Millisecond)
	require.Equal(t, []stats.Point{
		{AtS: 0, Count: 2, MeanMS: 6, MaxMS: 8},
		{AtS: 1},
		{AtS: 2, Count: 1, MeanMS: 1, MaxMS: 1},
	}, s.Points())
}

func TestASeriesIsBounded(t *testing.T) {
	s := stats.NewSeries(time.Nanosecond)
	s.Record(time.Hour, time.Millisecond)
	s.Record(-time.Hour, time.Millisecond)
	require.Len(t, s.Points(), 100_000)
}
