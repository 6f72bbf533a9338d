package limit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]Rate{
		"off":               {},
		"100/s":             {PerSecond: 100},
		"30/m":              {PerSecond: 0.5},
		"1/h":               {PerSecond: 1.0 / 3600},
		"0.5/s":             {PerSecond: 0.5},
		"1000000000/s":      {PerSecond: 1e9},
		"60000000000/m":     {PerSecond: 1e9},
		"100/s burst 500":   {PerSecond: 100, Burst: 500},
		"30/m burst 1":      {PerSecond: 0.5, Burst: 1},
		"1/s burst 1000000": {PerSecond: 1, Burst: 1e6},
	} {
		got, err := ParseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "100", "/s", "100/", "100/d", "100/S", "100 /s", "100/ s", " 100/s", "100/s ", "0/s", "0/s burst 5", "-1/s", "+1/s", "1e3/s", "0x10/s", "Inf/s", "NaN/s",
		"1.2.3/s", "./s", "1_000/s", "1,5/s", "1000000001/s", "0.9/h", "100/s/m", "Off", "off burst 5", "100/s burst", "100/s burst 0", "100/s burst -1", "100/s burst 1.5",
		"100/s burst +5", "100/s burst 1000000001", "100/s burst 99999999999999999999", "100/s burst 5 burst 6", "100/s  burst 5", "100/s burst 5/m", "100/s, burst 5",
	} {
		_, err := ParseRate(text)
		require.Error(t, err, "%q", text)
	}
}

func TestRatesAreWrittenInRoundUnits(t *testing.T) {
	for text, want := range map[string]string{
		"off": "off", "100/s": "100/s", "100/m": "100/m", "7/h": "7/h", "60/m": "1/s", "3600/h": "1/s", "30/m": "30/m", "0.5/s": "30/m", "0.1/s": "6/m", "7.3/s": "438/m", "1.5/m": "90/h",
		"1/m burst 10": "1/m burst 10", "123456789.125/s": "444444440850/h", "1.23/h": "0.00034166666666666666/s",
	} {
		r, err := ParseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, r.String(), text)
	}
}

// A rate that was parsed is within the bounds. Its text parses as the same rate.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"off", "100/s", "30/m burst 500", "1.2345678901234567/h", "0.1/s", "123456789.123/s", "1/s burst 0", "1e5/s", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRate(text)
		if err != nil {
			require.Zero(t, r)
			return
		}
		require.True(t, r.Valid())
		again, err := ParseRate(r.String())
		require.NoError(t, err, "%q, written %q", text, r.String())
		require.Equal(t, r, again)
		require.Equal(t, r.PerSecond > 0, text != "off")
		require.GreaterOrEqual(t, r.bucket().Burst(), 1)
	})
}

func TestRatesAreValidated(t *testing.T) {
	for _, r := range []Rate{{}, {PerSecond: 1}, {PerSecond: 1e9, Burst: 1e9}, {PerSecond: 1.0 / 3600}} {
		require.True(t, r.Valid(), r)
	}
	for _, r := range []Rate{
		{Burst: 5}, {PerSecond: -1}, {PerSecond: math.NaN()}, {PerSecond: math.Inf(1)}, {PerSecond: 2e9}, {PerSecond: 1e-9}, {PerSecond: 1, Burst: -1}, {PerSecond: 1, Burst: 1e9 + 1},
	} {
		require.False(t, r.Valid(), r)
	}
}

// A bucket begins full. Without a burst it holds the tokens of one second.
func TestABucketHoldsItsBurst(t *testing.T) {
	now := time.Now()
	for r, want := range map[Rate]int{
		{PerSecond: 100}:             100,
		{PerSecond: 0.5}:             1,
		{PerSecond: 2.5}:             3,
		{PerSecond: 100, Burst: 500}: 500,
		{PerSecond: 100, Burst: 1}:   1,
	} {
		b := r.bucket()
		got := 0
		for b.AllowN(now, 1) {
			got++
		}
		require.Equal(t, want, got, r)
		require.True(t, b.AllowN(now.Add(time.Duration(float64(time.Second)/r.PerSecond)+time.Microsecond), 1), "the next token is due: %s", r)
	}
}
