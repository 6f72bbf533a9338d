package limit

import (
	"context"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// Behind a proxy a client may have connections that last, and say nothing for long. It
// has one account all the same, however often it is forgotten.
func TestWhoIsForgottenMeanwhileHasNoSecondAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, AddressCalls: 2,
			Rates: Rates{Publishes: {Address: {PerSecond: 1.0 / 3600, Burst: 3}}},
		}, metrics.New("test"))
		seat, err := l.Seat(at("10.0.0.1"))
		require.NoError(t, err)
		defer seat.Leave()
		var sockets []Who
		for range 5 {
			sockets = append(sockets, seat.Who([]string{"192.0.2.7"}, ""))
			time.Sleep(time.Minute)
			l.Sweep(time.Now())
		}
		admitted := 0
		for _, w := range sockets {
			admitted += counted(func() error { return l.Admit(Publishes, w) })
		}
		require.Equal(t, 3, admitted)
		begun := 0
		for _, w := range sockets {
			begun += counted(func() error { _, err := l.Begin(t.Context(), w); return err })
		}
		require.Equal(t, 2, begun)
	})
}

// A topic that is looked up is part of a request, which is larger.
func TestTopicsThatAreKnownKeepNoRequests(t *testing.T) {
	l := New(Config{Rules: []Rule{{Name: "a", Pattern: "a.>", Rate: Rate{PerSecond: 1}}}}, metrics.New("test"))
	const requests, size = 1000, 32 << 10
	before := inUse()
	for i := range requests {
		request := strings.Repeat(" ", size) + "a." + strconv.Itoa(i)
		_ = l.AdmitTopic(request[size:], Who{})
	}
	require.Less(t, inUse()-before, int64(requests*size/10))
	runtime.KeepAlive(l)
}

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A place that comes free just as who waits for it leaves is for the next.
func TestWhoLeavesAtTheLastMomentTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 5, time.Minute)
		require.NoError(t, g.Enter(t.Context()))
		ctx, leave := context.WithCancel(t.Context())
		left, next := make(chan error, 1), make(chan error, 1)
		go func() { left <- g.Enter(ctx) }()
		synctest.Wait()
		go func() { next <- g.Enter(t.Context()) }()
		synctest.Wait()
		leave()
		g.Leave()
		require.ErrorIs(t, <-left, context.Canceled)
		begun := time.Now()
		require.NoError(t, <-next)
		require.Zero(t, time.Since(begun))
		g.Leave()
		require.Zero(t, g.Gauge().InUse)
	})
}
