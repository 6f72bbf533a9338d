package limit

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// Behind a proxy a client may have idle connections that last. It has one source, even if
// Sweep forgets that meanwhile.
func TestAForgottenClientGetsNoSecondSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, AddressCalls: 2,
			Rates: Rates{Publishes: {Address: {PerSecond: 1.0 / 3600, Burst: 3}}},
		}, metrics.New("test"))
		connection, err := l.Connect(at("10.0.0.1"))
		require.NoError(t, err)
		defer connection.Leave()
		var sockets []Who
		for range 5 {
			sockets = append(sockets, connection.Who([]string{"192.0.2.7"}))
			time.Sleep(time.Minute)
			l.Sweep(time.Now())
		}
		admitted := 0
		for _, w := range sockets {
			admitted += counted(func() error { return l.Admit(Publishes, 1, w) })
		}
		require.Equal(t, 3, admitted)
		begun := 0
		for _, w := range sockets {
			begun += counted(func() error { _, err := l.Begin(t.Context(), w, false); return err })
		}
		require.Equal(t, 2, begun)
	})
}

// A slot becomes free just as the caller that waits for it leaves. The next caller gets it.
func TestACallerThatLeavesAtTheLastMomentTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 5, time.Minute)
		require.NoError(t, g.Enter(t.Context(), nil))
		ctx, leave := context.WithCancel(t.Context())
		left, next := make(chan error, 1), make(chan error, 1)
		go func() { left <- g.Enter(ctx, nil) }()
		synctest.Wait()
		go func() { next <- g.Enter(t.Context(), nil) }()
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

// A refused call or connection holds nothing, whichever limit refused it.
func TestARefusalHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Calls: 1, AddressCalls: 3, AddressConnections: 2, Connections: 3, Wait: time.Second}, metrics.New("test"))
		ann := l.WhoAt(at("192.0.2.1"))
		held, err := l.Begin(t.Context(), l.WhoAt(at("192.0.2.2")), false)
		require.NoError(t, err)
		for range 10 {
			_, err := l.Begin(t.Context(), ann, false)
			require.ErrorIs(t, err, overloaded, "by the limit of all clients, not of its address")
		}
		held.End()
		require.Zero(t, ann.source.calls.Load())

		var connections []*Connection
		for range 2 {
			connection, err := l.Connect(at("192.0.2.1"))
			require.NoError(t, err)
			connections = append(connections, connection)
		}
		for range 10 {
			_, err := l.Connect(at("192.0.2.1"))
			require.ErrorIs(t, err, limited)
		}
		for _, connection := range connections {
			connection.Leave()
		}
		require.Zero(t, ann.source.connections.Load())
		var rates Rates
		rates[Connections][Address] = Rate{PerSecond: 1, Burst: 1}
		l.Reload(Config{Connections: 2, Rates: rates})
		connection, err := l.Connect(at("192.0.2.1"))
		require.NoError(t, err)
		for range 10 {
			_, err := l.Connect(at("192.0.2.1"))
			require.ErrorIs(t, err, limited)
		}
		connection.Leave()
		require.Zero(t, ann.source.connections.Load())
		require.Zero(t, l.connections.Load())
	})
}

// A refusal that waited leaves its slot to the next.
func TestARefusalThatWaitedFreesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{WaitingCalls: 1}, metrics.New("test"))
		for range 3 {
			require.True(t, l.Hold(t.Context(), &Refusal{Hold: time.Second}))
		}
		require.Zero(t, l.held.Load())
	})
}

// A source with a long call is not forgotten.
func TestASourceWithACallIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{AddressCalls: 1}, metrics.New("test"))
		call, err := l.Begin(t.Context(), l.WhoAt(at("192.0.2.1")), false)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		l.Sweep(time.Now())
		_, err = l.Begin(t.Context(), l.WhoAt(at("192.0.2.1")), false)
		require.ErrorIs(t, err, limited)
		call.End()
	})
}

// A source with an unfinished body is not forgotten.
func TestASourceWithUnfinishedBytesIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{}, metrics.New("test"))
		w := l.WhoAt(at("192.0.2.1"))
		a := memory.New(1<<30, nil, metrics.New("test"))
		var unfinished memory.UnfinishedBytes
		require.NoError(t, unfinished.Set(a, 1<<20, w))
		time.Sleep(time.Minute)
		l.Sweep(time.Now())
		require.True(t, l.WhoAt(at("192.0.2.1")).Client().Holds())
		require.NoError(t, unfinished.Set(a, 0, w))
		time.Sleep(time.Minute)
		l.Sweep(time.Now())
		require.Zero(t, l.addresses.len())
	})
}

// The wall clock may be set back. Sources are idle after the same time nevertheless.
func TestAClockThatIsSetBackKeepsNoSource(t *testing.T) {
	var table table
	table.init()
	now := time.Now()
	later := now.Add(2 * linger)
	*(*uint64)(unsafe.Pointer(&later)) -= 3600 << 30 // the seconds of the wall clock, and not of the monotonic one
	require.Equal(t, 2*linger, later.Sub(now))
	require.True(t, later.Round(0).Before(now.Round(0)))
	table.get(key{principal: "ann"}, now)
	table.sweep(now)
	require.Equal(t, 1, table.len())
	table.sweep(later)
	require.Zero(t, table.len())
}

// Sweep looks at a full table for long. Meanwhile others use it.
func TestALookAtTheTableStopsNobody(t *testing.T) {
	var table table
	table.init()
	now := time.Now()
	table.get(key{principal: "ann"}, now)
	table.mu.RLock()
	defer table.mu.RUnlock()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		table.sweep(now)
	}()
	select {
	case <-swept:
	case <-time.After(time.Minute):
		require.Fail(t, "sweep waits for the lock, although no source is idle")
	}
}

// A source that is used while Sweep looks for idle ones is not removed.
func TestASourceThatIsUsedMeanwhileIsNotForgotten(t *testing.T) {
	var table table
	table.init()
	begun := time.Now()
	ann, bob := key{principal: "ann"}, key{principal: "bob"}
	s := table.get(ann, begun)
	table.get(bob, begun)
	later := begun.Add(2 * linger)
	idle := table.idle(later)
	require.Len(t, idle, 2)
	require.Same(t, s, table.get(ann, later))
	table.remove(idle, later)
	require.Same(t, s, table.get(ann, later))
	require.False(t, s.forgotten.Load())
	require.Equal(t, 1, table.len())
}
