package limit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A source that was refused often is kept until its bucket of prompt refusals is full
// again: a short pause does not reset it.
func TestAClientThatIgnoresRefusalsIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Polls: {Address: {PerSecond: 100, Burst: 1}}}}, metrics.New("test"))
		addr := at("192.0.2.1")
		for range 2 + promptBurst {
			_ = l.Admit(Polls, 1, l.WhoAt(addr))
		}
		time.Sleep(linger + time.Second)
		l.Sweep(time.Now())
		require.Equal(t, 1, l.addresses.len())
		time.Sleep(promptBurst * time.Second)
		l.Sweep(time.Now())
		require.Zero(t, l.addresses.len())
	})
}
