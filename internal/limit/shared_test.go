package limit

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A client has 2^24 networks of IPv6, more than the table has sources, and sends one call
// from each. New clients still get their full rate.
func TestAClientWithManyNetworksKeepsNoOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Publishes: {Address: {PerSecond: 1.0 / 60, Burst: 10}}}}, metrics.New("test"))
		asks := func(addr netip.Addr) bool { return l.Admit(Publishes, 1, l.WhoAt(addr)) == nil }
		network := netip.MustParseAddr("2001:db8::").As16()
		for i := range uint32(maxSources + 1000) {
			binary.BigEndian.PutUint32(network[4:], i)
			asks(netip.AddrFrom16(network))
		}
		time.Sleep(30 * time.Second)
		l.Sweep(time.Now())
		require.Equal(t, maxSources, l.addresses.len())
		binary.BigEndian.PutUint32(network[4:], maxSources+2000)
		require.False(t, asks(netip.AddrFrom16(network)), "its other networks share a source")
		in := 0
		for i := range 100 {
			if asks(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})) {
				in++
			}
		}
		require.GreaterOrEqual(t, in, 95)
	})
}
