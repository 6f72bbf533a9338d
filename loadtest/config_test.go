package loadtest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNumbersOfClientsAreBounded(t *testing.T) {
	require.NoError(t, checkClients(mostClients, 1))
	for _, c := range [][2]int{{0, 1}, {1, 0}, {-1, 1}, {math.MaxInt, 2}, {1 << 32, 1 << 32}, {mostClients, 2}} {
		require.Error(t, checkClients(c[0], c[1]), c)
		steady := DefaultSteady()
		steady.Topics, steady.ClientsPerTopic = c[0], c[1]
		_, err := RunSteady(t.Context(), steady, nil)
		require.ErrorAs(t, err, &ConfigError{}, c)
		collab := DefaultCollab()
		collab.Topics, collab.ClientsPerTopic = c[0], c[1]
		_, err = RunCollab(t.Context(), collab, nil)
		require.ErrorAs(t, err, &ConfigError{}, c)
	}
}

// Instants of the longest period with the most clients do not overflow.
func TestTheLongestPeriodHasInstants(t *testing.T) {
	s := schedule{period: longestPeriod, perPeriod: mostClients}
	require.Positive(t, s.instant(mostClients-1))
	c := DefaultSteady()
	c.Target, c.Period = "http://h", longestPeriod+time.Nanosecond
	require.ErrorContains(t, c.Check(), "--period")
}

func TestTargetsAreBaseURLs(t *testing.T) {
	for _, good := range []string{"http://h", "http://h:8080", "http://h:8080/", "http://[::1]:80", "h:8080", "127.0.0.1:80", "[::1]:80"} {
		_, err := parseTarget(good)
		require.NoError(t, err)
	}
	for _, bad := range []string{"h", "https://h", "http://", "http://h:0x50", "http://h:65536", "http://h/v1", "http://u@h", "http://h?q=1", "h:65536", "h:80/v1", "u@h:80", "unix:/h"} {
		_, err := parseTarget(bad)
		require.ErrorContains(t, err, fmt.Sprintf("--target %q: ", bad))
	}
}
