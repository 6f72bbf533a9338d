package limit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Settings and metrics contain these names, as in rates.polls.address. A change breaks
// configuration files.
func TestTheNamesOfRatesDoNotChange(t *testing.T) {
	var names []string
	for _, kind := range Kinds() {
		for _, scope := range kind.Scopes() {
			names = append(names, kind.String()+"."+scope.String())
		}
	}
	require.Equal(t, []string{
		"publishes.all", "publishes.address", "publishes.principal", "sessions.all", "sessions.address", "sessions.principal",
		"polls.all", "polls.address", "polls.principal", "requests.all", "requests.address", "requests.principal",
		"topics.all", "topics.address", "topics.principal", "connections.all", "connections.address", "misses.all", "misses.address",
	}, names)
}

func TestUnsetFieldsGetTheirDefaults(t *testing.T) {
	c := Config{}.WithDefaults()
	require.Equal(t, Config{
		Calls: 1000, WaitingCalls: 1000, Sessions: 1_000_000, PendingSessions: 1000, PendingMessages: 100, Wait: 2 * time.Second,
	}, c, "the others are not limited")
	set := Config{Calls: 16, WaitingCalls: 1, Sessions: 10, PendingSessions: 2, PendingMessages: 3, Wait: time.Second, Connections: 4, AddressConnections: 5, AddressCalls: 6}
	require.Equal(t, set, set.WithDefaults())
}
