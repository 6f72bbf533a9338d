package limit

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

var limited = &wire.Problem{Code: wire.CodeLimited}

func at(addr string) netip.Addr { return netip.MustParseAddr(addr) }

// counted returns how many calls are admitted before one is refused.
func counted(admit func() error) int {
	n := 0
	for admit() == nil {
		n++
	}
	return n
}

func TestEachAddressHasItsOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Polls: {Address: {PerSecond: 2, Burst: 5}, All: {PerSecond: 1, Burst: 8}}}}, metrics.New("test"))
		ann, bob := l.WhoAt(at("192.0.2.1")), l.WhoAt(at("192.0.2.2"))
		require.Equal(t, 5, counted(func() error { return l.Admit(Polls, 1, ann) }))
		require.Equal(t, 3, counted(func() error { return l.Admit(Polls, 1, bob) }), "the rate of all clients")
		require.NoError(t, l.Admit(Publishes, 1, ann), "publishes have no rate")
		time.Sleep(time.Second)
		err := l.Admit(Polls, 1, bob)
		require.NoError(t, err)
		err = l.Admit(Polls, 1, ann)
		require.ErrorIs(t, err, limited)
		var refusal *Refusal
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, "rates.polls.all", refusal.Limit)
		require.EqualValues(t, 1000, refusal.RetryAfterMS, "until the bucket has one more token")
	})
}

// A call that exceeds the rate of its address does not use up the rate of all clients.
func TestARefusedCallTakesNothingFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Polls: {Address: {PerSecond: 1, Burst: 1}, All: {PerSecond: 1, Burst: 2}}}}, metrics.New("test"))
		ann, bob := l.WhoAt(at("192.0.2.1")), l.WhoAt(at("192.0.2.2"))
		require.NoError(t, l.Admit(Polls, 1, ann))
		for range 1000 {
			require.ErrorIs(t, l.Admit(Polls, 1, ann), limited)
		}
		require.NoError(t, l.Admit(Polls, 1, bob))
	})
}

func TestAPrincipalHasOneRateAtAllAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Publishes: {Principal: {PerSecond: 1, Burst: 3}}}}, metrics.New("test"))
		n := 0
		require.Equal(t, 3, counted(func() error {
			n++
			return l.Admit(Publishes, 1, Who{l.WhoAt(at("192.0.2." + strconv.Itoa(n))).source, "ann"})
		}))
		require.NoError(t, l.Admit(Publishes, 1, Who{l.WhoAt(at("192.0.2.1")).source, "bob"}))
		for range 10 {
			require.NoError(t, l.Admit(Publishes, 1, l.WhoAt(at("192.0.2.1"))), "anonymous calls have no rate")
		}
	})
}

func TestANetworkIsOneAddress(t *testing.T) {
	for same, of := range map[string]string{
		"2001:db8:1:2::1":          "2001:db8:1:2:ffff::9",
		"::ffff:192.0.2.1":         "192.0.2.1",
		"fe80::1%eth0":             "fe80::2",
		"2001:db8:1:2:3:4:5:6%en1": "2001:db8:1:2::",
	} {
		require.Equal(t, keyOf(at(same)), keyOf(at(of)), same)
	}
	require.NotEqual(t, keyOf(at("2001:db8:1:2::1")), keyOf(at("2001:db8:1:3::1")))
	require.NotEqual(t, keyOf(at("192.0.2.1")), keyOf(at("192.0.2.2")))
}

func TestForwardedForOfATrustedProxyIsUsed(t *testing.T) {
	l := New(Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}}, metrics.New("test"))
	who := func(peer string, forwarded ...string) *Source {
		connection, err := l.Connect(at(peer))
		require.NoError(t, err)
		defer connection.Leave()
		return connection.Who(forwarded).source
	}
	client := l.WhoAt(at("192.0.2.7")).source
	require.Same(t, client, who("10.0.0.1", "192.0.2.7"))
	require.Same(t, client, who("10.0.0.1", "8.8.8.8, 192.0.2.7"), "an address that the client sent does not count")
	require.Same(t, client, who("10.0.0.1", "8.8.8.8, 192.0.2.7 ,10.1.2.3", "10.4.5.6"), "through several proxies")
	require.Same(t, client, who("10.0.0.1", "192.0.2.7:4711"))
	require.Same(t, client, who("2001:db8:ffff::1", "192.0.2.7"))
	require.Same(t, client, who("10.0.0.1", "nonsense, 192.0.2.7"))
	for _, empty := range [][]string{{"192.0.2.7,"}, {"192.0.2.7, \t,,"}, {"192.0.2.7,, 10.1.2.3"}, {"192.0.2.7", ""}, {"8.8.8.8, 192.0.2.7", ", ", ","}} {
		require.Same(t, client, who("10.0.0.1", empty...), "%q", empty)
	}
	for _, written := range []string{"2001:db8:1::7", "[2001:db8:1::7]", "[2001:db8:1::7]:4711", "2001:DB8:1::7%eth0", "8.8.8.8,\t[2001:db8:1::7]\t"} {
		require.Same(t, l.WhoAt(at("2001:db8:1::7")).source, who("10.0.0.1", written), written)
	}
	require.Same(t, l.WhoAt(at("10.9.9.9")).source, who("10.0.0.1", "10.9.9.9"), "a call of the proxy itself")
	for _, nothing := range [][]string{nil, {""}, {"nonsense"}, {"192.0.2.7, nonsense"}, {",", " , "}} {
		require.Same(t, l.WhoAt(at("10.0.0.1")).source, who("10.0.0.1", nothing...), "%q", nothing)
	}
	require.Same(t, l.WhoAt(at("203.0.113.1")).source, who("203.0.113.1", "192.0.2.7"), "the peer is not a trusted proxy")
}

func TestConnectionsAreBoundedByAddressAndInTotal(t *testing.T) {
	l := New(Config{Connections: 5, AddressConnections: 3, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, metrics.New("test"))
	var connections []*Connection
	connect := func(addr string) func() error {
		return func() error {
			connection, err := l.Connect(at(addr))
			if err == nil {
				connections = append(connections, connection)
			}
			return err
		}
	}
	require.Equal(t, 3, counted(connect("192.0.2.1")))
	require.ErrorIs(t, connect("192.0.2.1")(), limited)
	require.Equal(t, 2, counted(connect("192.0.2.2")))
	require.ErrorIs(t, connect("192.0.2.2")(), overloaded)
	for _, connection := range connections {
		shared := connection.Share()
		connection.Leave()
		require.Positive(t, l.connections.Load(), "one owner is left")
		shared.Leave()
	}
	require.Zero(t, l.connections.Load())
	require.Equal(t, 5, counted(connect("10.0.0.1")), "a proxy has many clients")
}

func TestCallsAreBoundedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Calls: 1, AddressCalls: 2, Wait: time.Minute}, metrics.New("test"))
		ann := l.WhoAt(at("192.0.2.1"))
		first, err := l.Begin(t.Context(), ann, false)
		require.NoError(t, err)
		second := make(chan Call, 1)
		go func() {
			call, _ := l.Begin(t.Context(), ann, false)
			second <- call
		}()
		synctest.Wait()
		_, err = l.Begin(t.Context(), ann, false)
		require.ErrorIs(t, err, limited, "calls that wait count, too")
		first.End()
		waited := <-second
		waited.End()
		third, err := l.Begin(t.Context(), ann, false)
		require.NoError(t, err)
		third.End()
		require.Zero(t, ann.source.calls.Load())
		require.Zero(t, l.calls.Gauge().InUse)
	})
}

func TestAReloadWithTheSameRatesKeepsTheBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{
			Rates: Rates{Polls: {Address: {PerSecond: 1, Burst: 1}}},
			Rules: []Rule{{Name: "chat", Pattern: "chat.>", Rate: Rate{PerSecond: 1, Burst: 1}}},
		}
		l := New(cfg, metrics.New("test"))
		ann := l.WhoAt(at("192.0.2.1"))
		require.NoError(t, l.Admit(Polls, 1, ann))
		require.NoError(t, l.AdmitTopic("chat.>", ann))
		cfg.Calls = 7
		l.Reload(cfg)
		require.ErrorIs(t, l.Admit(Polls, 1, ann), limited)
		require.ErrorIs(t, l.AdmitTopic("chat.>", ann), limited)
		cfg.Rates[Polls][Address].Burst = 3
		l.Reload(cfg)
		require.Equal(t, 3, counted(func() error { return l.Admit(Polls, 1, ann) }))
		l.Reload(Config{})
		require.NoError(t, l.Admit(Polls, 1, ann))
		require.NoError(t, l.AdmitTopic("chat.>", ann))
	})
}

// A source without state is forgotten. A source with connections or a bucket that is not
// full is kept.
func TestSourcesAreForgottenAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Polls: {Address: {PerSecond: 1.0 / 60, Burst: 1}}}}, metrics.New("test"))
		ann := l.WhoAt(at("192.0.2.1"))
		require.NoError(t, l.Admit(Polls, 1, ann))
		connection, err := l.Connect(at("192.0.2.2"))
		require.NoError(t, err)
		l.WhoAt(at("192.0.2.3"))
		time.Sleep(30 * time.Second)
		l.Sweep(time.Now())
		require.Equal(t, 2, l.addresses.len())
		require.ErrorIs(t, l.Admit(Polls, 1, l.WhoAt(at("192.0.2.1"))), limited)
		connection.Leave()
		time.Sleep(5 * time.Minute)
		l.Sweep(time.Now())
		require.Zero(t, l.addresses.len())

		for i := range maxSources {
			l.addresses.get(key{addr: netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})}, time.Now())
		}
		one, other := l.WhoAt(at("2001:db8:1::1")), l.WhoAt(at("2001:db8:2::1"))
		require.Same(t, one.source, other.source, "in a full table, the networks of an allocation share a source")
		require.Equal(t, maxSources, l.addresses.len())
	})
}

func TestAClientThatIgnoresRefusalsGetsThemLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rates: Rates{Polls: {Address: {PerSecond: 1.0 / 3600, Burst: 1}}}, Wait: 2 * time.Second, WaitingCalls: 1}, metrics.New("test"))
		ann := l.WhoAt(at("192.0.2.1"))
		refusal := func() *Refusal {
			r, _ := errors.AsType[*Refusal](l.Admit(Polls, 1, ann))
			return r
		}
		require.Nil(t, refusal())
		for range promptBurst {
			require.Zero(t, refusal().Hold)
		}
		late := refusal()
		require.Equal(t, 2*time.Second, late.Hold)
		begun := time.Now()
		held := make(chan bool, 1)
		go func() { held <- l.Hold(t.Context(), late) }()
		synctest.Wait()
		require.False(t, l.Hold(t.Context(), late), "no more refusals wait than calls")
		require.True(t, <-held)
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.True(t, l.Hold(t.Context(), &Refusal{}))
	})
}

// A daemon that stops answers all refusals at once.
func TestAfterReleaseNothingIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{}, metrics.New("test"))
		late := &Refusal{Hold: time.Hour}
		begun := time.Now()
		held := make(chan bool, 1)
		go func() { held <- l.Hold(t.Context(), late) }()
		synctest.Wait()
		l.Release()
		l.Release()
		require.True(t, <-held)
		require.True(t, l.Hold(t.Context(), late))
		require.Equal(t, begun, time.Now())
	})
}

func TestOnlyRulesWithARateLimitTheirTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Rules: []Rule{
			{Name: "chat", Pattern: "chat.>", Rate: Rate{PerSecond: 1, Burst: 2}},
			{Name: "news", Pattern: "chat.news"},
		}}, metrics.New("test"))
		for pattern, want := range map[string]int{"chat.>": 2, "chat.news": 10, "": 10, "unknown": 10} {
			n := 0
			for range 10 {
				if l.AdmitTopic(pattern, Who{}) == nil {
					n++
				}
			}
			require.Equal(t, want, n, pattern)
		}
	})
}

// Every poll and publish asks the limits.
func BenchmarkAdmit(b *testing.B) {
	r := Rate{PerSecond: 1e9, Burst: 1e9}
	for name, rates := range map[string]Rates{"unlimited": {}, "address": {Polls: {Address: r}}, "address and all": {Polls: {Address: r, All: r}}} {
		b.Run(name, func(b *testing.B) {
			l := New(Config{Rates: rates}, metrics.New("test"))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				who := l.WhoAt(at("192.0.2.1"))
				for pb.Next() {
					if err := l.Admit(Polls, 1, who); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
