package daemon

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// unreadBudget is the memory budget of the tests below. Unread answers may take 4 MiB of
// it, and those of one address 2 MiB.
const unreadBudget = 16 << 20

// startWithLongLists starts a daemon whose list of topics is 200 KB long.
func startWithLongLists(t *testing.T, change func(c *config.Config)) *running {
	d := start(t, func(c *config.Config) {
		c.Broker.MemoryBudget, c.DrainWindow = unreadBudget, 100*time.Millisecond
		if change != nil {
			change(c)
		}
	})
	for i := range 600 {
		topic := fmt.Sprintf("%s.%d", strings.Repeat("x", 100), i)
		_, err := d.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
		require.NoError(t, err)
	}
	return d
}

// deaf sends a request and never reads.
func (d *running) deaf(request string) {
	d.Helper()
	dialer := net.Dialer{}
	conn, err := dialer.Dial("tcp", d.PublicAddr())
	require.NoError(d, err)
	d.Cleanup(func() { _ = conn.Close() })
	require.NoError(d, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	_, _ = io.WriteString(conn, request) // the daemon may have refused it
}

const unreadSample = `pubsubd_memory_bytes{kind="unread"}`

// Clients request lists and do not read them. Unread answers count as memory and are
// bounded. They do not affect other readers, and closing the connections frees them.
func TestUnreadAnswersAreCountedAndBounded(t *testing.T) {
	d := startWithLongLists(t, nil)
	list := "GET /v1/topics?limit=1000 HTTP/1.1\r\nHost: h\r\n\r\n"
	seen, most := 0.0, 0.0
	for begun := time.Now(); d.endings(metrics.SlowReader) < 5 && time.Since(begun) < surely; {
		for range 5 {
			d.deaf(list)
		}
		seen = max(seen, d.metric(unreadSample))
		most = max(most, d.metric(unreadSample))
	}
	require.Positive(t, seen, "what waits is counted")
	require.GreaterOrEqual(t, d.endings(metrics.SlowReader), 5, "the slowest readers are cut")
	require.Less(t, most, float64(unreadBudget/4), "an address has half of the share, and those that come at one time")
	d.wantLogged("clients that do not read were closed")
	require.Zero(t, d.metric("pubsubd_memory_pressure"), "it does not come to that")
	require.NoError(t, d.wait())
	require.Zero(t, d.broker.Memory().Of(memory.Unread))
}

// An HTTP/2 client sets its window to 0 and sends a request on every stream. The daemon
// closes its connections with all their streams.
func TestUnreadStreamsAreCountedAndBounded(t *testing.T) {
	d := startWithLongLists(t, cleartext)
	const frameHeaders, endsStream, isHead, initialWindow = 1, 0x1, 0x4, 4
	path := "/v1/topics?limit=1000"
	head := append([]byte{0x82, 0x86, 0x04, byte(len(path))}, path...) // GET, http, and the path (RFC 7541)
	head = append(head, 0x01, 1, 'h')                                  // the authority
	for begun := time.Now(); d.endings(metrics.SlowReader) < 2 && time.Since(begun) < surely; {
		f := d.dialHTTP2()
		asked := []byte{0, 0, 6, frameSettings, 0, 0, 0, 0, 0, 0, initialWindow, 0, 0, 0, 0}
		for id := byte(1); id < 2*maxStreams-1; id += 2 {
			asked = append(append(asked, 0, 0, byte(len(head)), frameHeaders, endsStream|isHead, 0, 0, 0, id), head...)
		}
		_, _ = f.Write(asked) // the daemon may have closed it
	}
	require.GreaterOrEqual(t, d.endings(metrics.SlowReader), 2)
}

// Behind a trusted proxy, each client address has its own share.
func TestUnreadAnswersCountForTheAddressBehindAProxy(t *testing.T) {
	d := startWithLongLists(t, func(c *config.Config) {
		c.Limit.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	list := "GET /v1/topics?limit=1000 HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.%d\r\n\r\n"
	for range 2 {
		d.deaf(fmt.Sprintf(list, 1))
	}
	at := func(last byte) *memory.Client {
		return d.limiter.WhoAt(netip.AddrFrom4([4]byte{192, 0, 2, last})).Client()
	}
	require.Eventually(t, at(1).Holds, surely, 10*time.Millisecond)
	require.False(t, at(2).Holds())
}

// Unread answers count as memory on every transport, on the lane and off it. When memory
// is short, the daemon closes their connections.
func TestUnreadAnswersAreCutOffOnEveryTransport(t *testing.T) {
	t.Parallel()
	for i, way := range []struct{ request, lanes string }{
		{"GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n", "handoff channel off"},
		{"GET /v1/poll?topic=a@oldest&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n", "handoff channel"},
		{"GET /v1/sse?topic=a@oldest&topic=b@oldest HTTP/1.1\r\nHost: h\r\n\r\n", "handoff off"},
		{"GET /v1/ws?topic=a@oldest HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", "handoff off"},
		{"GET /v1/topics/a/messages?limit=1000 HTTP/1.1\r\nHost: h\r\n\r\n", "off"},
	} {
		lanes := strings.Fields(way.lanes)
		if !exhaustive.On() {
			lanes = lanes[i%len(lanes):][:1]
		}
		for _, lane := range lanes {
			path, _, _ := strings.Cut(way.request[len("GET "):], " ")
			t.Run(path+", lane "+lane, func(t *testing.T) {
				t.Parallel()
				d := start(t, func(c *config.Config) {
					c.Lane, c.DrainWindow = lane, 100*time.Millisecond
					c.Broker.HistoryBytes, c.Broker.MemoryBudget = 4<<20, 64<<20
				})
				payload := []byte(`"` + strings.Repeat("x", 60_000) + `"`)
				for range 40 {
					_, err := d.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: payload}, 0, time.Now())
					require.NoError(t, err)
				}
				d.deaf(way.request)
				account := d.broker.Memory()
				require.Eventually(t, func() bool { return account.Of(memory.Queued) > 0 || account.Of(memory.Unread) > 100 }, surely, 10*time.Millisecond)
				account.Add(memory.Queues, 60<<20) // memory becomes critical because of others
				require.Eventually(t, func() bool { return d.endings(metrics.SlowReader) == 1 }, surely, 10*time.Millisecond)
				account.Add(memory.Queues, -60<<20)
				require.Eventually(t, func() bool { return account.Of(memory.Unread) == 0 && account.Of(memory.Queued) == 0 }, surely, 10*time.Millisecond)
				require.NoError(t, d.wait())
			})
		}
	}
}
