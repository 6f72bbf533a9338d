package stats_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

func TestAnEmptyLatencyIsAllZero(t *testing.T) {
	require.Equal(t, stats.Summary{}, stats.NewLatency().Summary())
	require.Zero(t, stats.NewLatency().Quantile(0.99))
}

func TestSummaryOfFewDurations(t *testing.T) {
	l := recorded(2*time.Millisecond, 4*time.Millisecond, 4*time.Millisecond, 4*time.Millisecond,
		5*time.Millisecond, 5*time.Millisecond, 7*time.Millisecond, 9*time.Millisecond)
	s := l.Summary()
	require.EqualValues(t, 8, s.Count)
	require.InDelta(t, 5, s.MeanMS, 1e-9)
	require.InDelta(t, 2, s.StdevMS, 1e-9)
	require.InEpsilon(t, 4, s.MedianMS, 0.001)
	require.InDelta(t, 9, s.MaxMS, 1e-9)
}

func TestExtremesAreKept(t *testing.T) {
	l := recorded(-time.Second, 3*time.Hour)
	require.EqualValues(t, 2, l.Count())
	require.InDelta(t, (3*time.Hour).Seconds()*1000, l.Summary().MaxMS, 1e-6)
	require.InEpsilon(t, float64(time.Hour), float64(l.Quantile(1)), 0.001, "percentiles end at an hour")
}

// Merging parts says the same as recording the whole, however it is split.
func TestMergeIsTheWhole(t *testing.T) {
	mergesToWhole := func(seed uint64, parts uint8) bool {
		random := rand.New(rand.NewPCG(seed, 1))
		whole, merged := stats.NewLatency(), stats.NewLatency()
		for range parts%5 + 1 {
			part := stats.NewLatency()
			for range random.IntN(200) {
				d := someLatency(random)
				part.Record(d)
				whole.Record(d)
			}
			merged.Merge(part)
		}
		return sameSummary(whole.Summary(), merged.Summary())
	}
	require.NoError(t, quick.Check(mergesToWhole, nil))
}

// Percentiles are those of the sorted durations, within a thousandth.
func TestPercentilesAgreeWithSorting(t *testing.T) {
	agrees := func(seed uint64) bool {
		random := rand.New(rand.NewPCG(seed, 2))
		all := make([]time.Duration, random.IntN(3000)+1)
		l := stats.NewLatency()
		for i := range all {
			all[i] = someLatency(random)
			l.Record(all[i])
		}
		slices.Sort(all)
		for _, share := range []float64{0.5, 0.9, 0.99, 0.999, 1} {
			if !within(l.Quantile(share), nearestRank(all, share)) {
				t.Logf("%v of %d: got %v, want %v", share, len(all), l.Quantile(share), nearestRank(all, share))
				return false
			}
		}
		return true
	}
	require.NoError(t, quick.Check(agrees, nil))
}

func nearestRank(sorted []time.Duration, share float64) time.Duration {
	rank := int(math.Ceil(share * float64(len(sorted))))
	// The histogram rounds the rank half up, as its paper does.
	rank = min(rank, int(share*float64(len(sorted))+0.5))
	return sorted[max(rank, 1)-1]
}

func within(got, want time.Duration) bool {
	return math.Abs(float64(got-want)) <= 0.001*float64(want)+float64(time.Microsecond)
}

// someLatency spreads over six orders of magnitude, as latencies do.
func someLatency(random *rand.Rand) time.Duration {
	return time.Duration(math.Pow(10, 3+6*random.Float64()))
}

func sameSummary(a, b stats.Summary) bool {
	near := func(x, y float64) bool { return math.Abs(x-y) <= 0.0011 }
	return a.Count == b.Count && near(a.MeanMS, b.MeanMS) && near(a.StdevMS, b.StdevMS) &&
		a.MedianMS == b.MedianMS && a.P90MS == b.P90MS && a.P99MS == b.P99MS && a.P999MS == b.P999MS && a.MaxMS == b.MaxMS
}

func recorded(durations ...time.Duration) *stats.Latency {
	l := stats.NewLatency()
	for _, d := range durations {
		l.Record(d)
	}
	return l
}
