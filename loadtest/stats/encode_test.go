package stats

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What two processes recorded and sent merges into what one would have recorded.
func TestSentLatenciesMergeAsIfOneHadRecordedThem(t *testing.T) {
	one, merged := NewLatency(), NewLatency()
	oneSeries, mergedSeries := NewSeries(time.Second), NewSeries(time.Second)
	random := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		part, series := NewLatency(), NewSeries(time.Second)
		for range random.IntN(5000) {
			d, at := time.Duration(random.Int64N(int64(2*time.Hour))), time.Duration(random.Int64N(int64(time.Minute)))
			part.Record(d)
			one.Record(d)
			series.Record(at, d)
			oneSeries.Record(at, d)
		}
		merged.Merge(sent(t, part, &Latency{}))
		mergedSeries.Merge(sent(t, series, &Series{}))
	}
	want, got := one.Summary(), merged.Summary()
	require.InDelta(t, want.MeanMS, got.MeanMS, 0.002, "the last digit is of the order in which they are added")
	require.InDelta(t, want.StdevMS, got.StdevMS, 0.002)
	want.MeanMS, want.StdevMS = got.MeanMS, got.StdevMS
	require.Equal(t, want, got)
	require.Equal(t, oneSeries.Points(), mergedSeries.Points())
}

func sent[T any](t *testing.T, v, into T) T {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
	return into
}

func TestWhatIsNoLatencyOrSeriesIsRefused(t *testing.T) {
	l := NewLatency()
	l.Record(time.Second)
	text, err := json.Marshal(l)
	require.NoError(t, err)
	var e map[string]any
	require.NoError(t, json.Unmarshal(text, &e))
	e["count"] = 7
	other, err := json.Marshal(e)
	require.NoError(t, err)
	for _, bad := range []string{"{}", "[]", `{"histogram":"x"}`, string(other)} {
		require.Error(t, json.Unmarshal([]byte(bad), &Latency{}), bad)
	}
	for _, bad := range []string{"{}", "[]", `{"interval_ns":-1}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &Series{}), bad)
	}
	require.Panics(t, func() { NewSeries(1).Merge(NewSeries(2)) })
}

func FuzzLatencyJSON(f *testing.F) {
	l := NewLatency()
	l.Record(time.Second)
	text, _ := json.Marshal(l)
	f.Add(text)
	f.Add([]byte(`{"histogram":""}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		var l Latency
		if json.Unmarshal(text, &l) == nil {
			NewLatency().Merge(&l)
		}
	})
}
