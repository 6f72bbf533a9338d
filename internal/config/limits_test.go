package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/limit"
)

// A kind or a scope that the limiter learns needs words here.
func TestEveryRateIsExplained(t *testing.T) {
	for _, kind := range limit.Kinds() {
		require.NotEmpty(t, ratedKinds[kind], kind)
		for _, scope := range kind.Scopes() {
			require.NotEmpty(t, ratedScopes[scope], scope)
		}
	}
}

func TestRatesOfTheFile(t *testing.T) {
	c, err := load(t, "rates:\n  polls: {address: 10/s burst 50, all: 5000/s}\n  misses.address: 30/m\n  sessions:\n    address: off\n", nil)
	require.NoError(t, err)
	var want limit.Rates
	want[limit.Polls][limit.Address] = limit.Rate{PerSecond: 10, Burst: 50}
	want[limit.Polls][limit.All] = limit.Rate{PerSecond: 5000}
	want[limit.Misses][limit.Address] = limit.Rate{PerSecond: 0.5}
	require.Equal(t, want, c.Limit.Rates)
}

func TestABoundThatAWordCanSay(t *testing.T) {
	n := 5
	f := countOr("off", &n)
	f.reset()
	require.Equal(t, "off", f.text())
	require.NoError(t, f.set("7"))
	require.Equal(t, 7, n)
	require.Equal(t, "7", f.text())
	for _, text := range []string{"0", "-1", "", "auto", "1.5", "OFF"} {
		require.Error(t, f.set(text), "%q", text)
	}
	require.NoError(t, f.set("off"))
	require.Zero(t, n)
}
