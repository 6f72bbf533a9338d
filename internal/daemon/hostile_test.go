package daemon

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An attacked daemon has a well-behaved subscriber, which must not notice the attack.
type attacked struct {
	*running
	stream  *wire.Decoder
	offsets uint64
}

// attack starts a daemon and its subscriber. A test shortens only the timeout that it is
// about: well-behaved clients may be slow on a busy machine.
func attack(t *testing.T, change func(c *config.Config)) *attacked {
	t.Helper()
	return attackWith(t, headTimeout, change)
}

// attackWith is attack with a timeout for request heads.
func attackWith(t *testing.T, head time.Duration, change func(c *config.Config)) *attacked {
	t.Helper()
	d := startWith(t, func(c *config.Config) {
		c.Listen.TCP = "127.0.0.1:0"
		if change != nil {
			change(c)
		}
	}, func(d *Daemon) { d.servers.public.ReadHeaderTimeout = head })
	conn := d.say("GET /v1/poll?topic=good&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close() // before the body, whose Close would read to its end
		resp.Body.Close()
	})
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	a := &attacked{running: d, stream: wire.NewDecoder(resp.Body)}
	hello, err := a.stream.Next()
	require.NoError(t, err)
	require.NotNil(t, hello.Hello)
	return a
}

// briefly is a short timeout for attackers. It is enough for clients that are not slow on
// purpose.
const briefly = 2 * time.Second

// say connects and sends text.
func (d *running) say(text string) net.Conn {
	d.Helper()
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(d, err)
	d.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(d, err)
	require.NoError(d, conn.SetReadDeadline(time.Now().Add(aMinute)))
	return conn
}

// wantServed publishes a message and checks that the subscriber gets it.
func (a *attacked) wantServed() {
	a.Helper()
	a.post("/v1/topics/good/messages", "1")
	a.offsets++
	for {
		c, err := a.stream.Next()
		require.NoError(a, err)
		if c.Message != nil {
			require.Equal(a, a.offsets, c.Message.Position.Offset)
			return
		}
	}
}

// wantEnded waits until the daemon has ended n connections for this reason. The
// subscriber is served meanwhile.
func (a *attacked) wantEnded(why metrics.Ending, n int) {
	a.Helper()
	begun := time.Now()
	for a.endings(why) < n {
		a.wantServed()
		require.Less(a, time.Since(begun), surely, "%d are ended: %s", a.endings(why), why)
		time.Sleep(10 * time.Millisecond)
	}
	require.Equal(a, n, a.endings(why), why)
}

func (d *running) endings(why metrics.Ending) int {
	d.Helper()
	return int(d.metric(`pubsubd_connections_ended_total{reason="` + string(why) + `"}`))
}

// wantConnections waits until n connections count against the limit.
func (d *running) wantConnections(n int) {
	d.Helper()
	d.client.CloseIdleConnections()
	require.Eventually(d, func() bool { return d.connectionsInUse() == n }, surely, 10*time.Millisecond, "connections: %d", n)
}

func (d *running) connectionsInUse() int {
	var g metrics.Gauges
	d.limiter.Gauges(&g)
	for _, l := range g.Limits {
		if l.Name == "connections" {
			return l.InUse
		}
	}
	return -1
}

// wantClosed reads from each connection until the daemon closes it.
func wantClosed(t *testing.T, conns ...net.Conn) {
	t.Helper()
	for _, conn := range conns {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(surely)))
		_, err := io.Copy(io.Discard, conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is open")
	}
}

// Hundreds of clients begin a request and send no more. Some connections are new, and
// others had a complete request before. Both net/http and the lane end them.
func TestSlowHeadsAreEnded(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			a := attackWith(t, briefly, func(c *config.Config) { c.Lane = lane })
			const each = 10
			var conns []net.Conn
			for range each {
				conns = append(conns, a.say("GET /v1/po"), a.say("GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\nGET /v1/topics HTTP/1.1\r\nX-"))
			}
			a.wantEnded(metrics.SlowHead, 2*each)
			wantClosed(t, conns...)
			a.wantConnections(1)
			require.Zero(t, a.endings(metrics.SlowBody)+a.endings(metrics.Silent))
		})
	}
}

// The daemon ends connections on which nothing is sent, in clear and within TLS. In clear, a client
// that was only slow gets an answer to the request that it sends later. An idle
// connection that had a request stays open.
func TestSilentConnectionsAreEnded(t *testing.T) {
	t.Parallel()
	t.Run("in clear", func(t *testing.T) {
		t.Parallel()
		a := attackWith(t, briefly, nil)
		const many = 200
		idle := a.say("GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(idle), nil)
		require.NoError(t, err)
		resp.Body.Close()
		var silent []net.Conn
		for range many {
			silent = append(silent, a.say(""))
		}
		a.wantEnded(metrics.Silent, many)
		for _, conn := range silent {
			wantLateAnswer(t, conn, wire.CodeOverloaded)
		}
		a.wantConnections(2)
		require.Zero(t, a.endings(metrics.SlowHead))
	})
	t.Run("within TLS", func(t *testing.T) {
		t.Parallel()
		secure := startWith(t, func(c *config.Config) {
			pair := certtest.New(t)
			c.TLS = config.TLS{Cert: pair.Cert, Key: pair.Key}
		}, func(d *Daemon) { d.servers.public.ReadHeaderTimeout = briefly })
		wantClosed(t, secure.say(""), secure.say("\x16\x03\x01"))
		require.Equal(t, 1, secure.endings(metrics.Silent))
		require.Equal(t, 1, secure.endings(metrics.SlowHead))
		secure.wantConnections(0)
	})
}

// Bodies arrive a byte at a time, for paths that read them and for paths that do not.
func TestSlowBodiesAreEnded(t *testing.T) {
	t.Parallel()
	a := attack(t, func(c *config.Config) { c.Transport.RestTimeout = briefly })
	var conns []net.Conn
	for _, path := range []string{"/v1/topics/a/messages", "/v1/sessions", "/nowhere"} {
		for range 50 {
			conns = append(conns, a.say("POST "+path+" HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n["))
		}
	}
	for begun := time.Now(); a.endings(metrics.SlowBody) < len(conns); time.Sleep(briefly / 20) {
		require.Less(t, time.Since(begun), surely)
		a.wantServed()
		for _, conn := range conns {
			_, _ = io.WriteString(conn, "1") // until the daemon ends it
		}
	}
	a.wantEnded(metrics.SlowBody, len(conns))
	wantClosed(t, conns...)
	a.wantConnections(1)
	require.Zero(t, a.endings(metrics.SlowHead)+a.endings(metrics.Silent))
}

// Subscribers on every streaming transport never read.
func TestSlowReadersAreEnded(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			a := attack(t, func(c *config.Config) {
				c.Lane, c.MessageBytes, c.Broker.HistoryBytes, c.Transport.WriteTimeout = lane, 4<<20, 32<<20, briefly
			})
			ways := []string{
				"GET /v1/poll?topic=big&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n",
				"GET /v1/sse?topic=big HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n",
				"GET /v1/ws?topic=big HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
			}
			for _, way := range ways {
				conn := a.say(way)
				require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10)) // otherwise the kernel might take all of it
				_, err := conn.Read(make([]byte, 1))
				require.NoError(t, err)
			}
			a.waitSubscriptions(1 + len(ways))
			big := []byte(`"` + strings.Repeat("x", 2<<20) + `"`)
			for range 3 {
				_, err := a.broker.Publish(&wire.Message{Position: wire.Position{Topic: "big"}, Data: big}, 0, time.Now())
				require.NoError(t, err)
			}
			a.wantEnded(metrics.SlowReader, len(ways))
			a.wantConnections(1)
		})
	}
}

func (d *running) waitSubscriptions(n int) {
	d.Helper()
	require.Eventually(d, func() bool { return d.metric("pubsubd_subscriptions") == float64(n) }, surely, 10*time.Millisecond)
}

// A client that closes its connection, or its half of it, during a poll frees its slot at
// once.
func TestHalfClosedAndAbandonedPollsFreeTheirSlots(t *testing.T) {
	for _, lane := range []string{"handoff", "channel", "off"} {
		t.Run(lane, func(t *testing.T) {
			a := attack(t, func(c *config.Config) { c.Lane = lane })
			for i := range 100 {
				conn := a.say("GET /v1/poll?topic=a@oldest HTTP/1.1\r\nHost: h\r\n\r\n")
				if i%2 == 0 {
					require.NoError(t, conn.(*net.TCPConn).CloseWrite())
				} else {
					require.NoError(t, conn.Close())
				}
			}
			a.wantConnections(1)
			a.wantServed()
		})
	}
}

// Beyond limits.connections, a new connection gets an error, and open connections are not
// affected. A client that keeps connecting gets no more answers.
func TestAFloodOfConnectionsIsRefused(t *testing.T) {
	const most = 50
	a := attackWith(t, time.Minute, func(c *config.Config) { c.Limit.Connections = most })
	a.wantServed() // its publisher holds a connection
	var held []net.Conn
	for range most - 2 {
		held = append(held, a.say(""))
	}
	refused, told := 300, 0
	require.Eventually(t, func() bool { return a.connectionsInUse() == most }, surely, 10*time.Millisecond)
	for range refused {
		conn, err := net.Dial("tcp", a.PublicAddr())
		if err != nil {
			continue // reset before Dial returned
		}
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if len(answer) > 0 {
			told++
			resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(answer))), nil)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			require.Equal(t, wire.ProblemType, resp.Header.Get("Content-Type"))
			require.Contains(t, string(body), wire.CodeOverloaded)
		}
	}
	require.Positive(t, told)
	require.Less(t, told, refused)
	a.wantServed()
	require.Equal(t, refused, a.endings(metrics.Refused))
	require.EqualValues(t, refused, a.metric(`pubsubd_limited_total{limit="connections"}`))
	for _, conn := range held {
		conn.Close()
	}
	a.wantConnections(1)
	require.Contains(t, a.post("/v1/topics/a/messages", "1"), "position", "there is room again")
}

// One address can use only its share of the connections. The TCP port and the public port
// count together.
func TestAnAddressHasItsShareOfConnections(t *testing.T) {
	a := attackWith(t, time.Minute, func(c *config.Config) { c.Limit.AddressConnections = 20 })
	a.wantServed()
	for range 18 {
		a.say("")
	}
	conn, err := net.Dial("tcp", a.PublicAddr())
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	resp.Body.Close()
	conn.Close()
	if bareConn, err := net.Dial("tcp", a.TCPAddr()); err == nil { // otherwise it was reset before Dial returned
		wantClosed(t, bareConn)
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	neighbour, err := other.Dial("tcp", a.PublicAddr())
	require.NoError(t, err)
	defer neighbour.Close()
	_, err = io.WriteString(neighbour, "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n")
	require.NoError(t, err)
	resp, err = http.ReadResponse(bufio.NewReader(neighbour), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	resp.Body.Close()
	a.wantServed()
	require.Equal(t, 2, a.endings(metrics.Refused))
}

// A connection that ends, in whatever state, no longer counts against the limit.
func TestEveryConnectionLimitIsFreedAgain(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "off", "channel"}[:2+1/exhaustive.Step(2)] {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			a := attackWith(t, briefly, func(c *config.Config) { c.Lane, c.Limit.Connections = lane, 12 })
			const poll, odd = "GET /v1/poll?topic=a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n"
			for _, said := range []string{
				poll, odd, poll + odd, poll + odd + poll + odd + poll, // to the lane and back
				poll + "GET /v1/", "nonsense\r\n\r\n", "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1",
				"GET /v1/poll?topic=a&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n",
				"GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
			} {
				conn := a.say(said)
				_, err := conn.Read(make([]byte, 1))
				require.NoError(t, err, said)
				conn.Close()
				a.wantConnections(1)
			}
			b, err := net.Dial("tcp", a.TCPAddr())
			require.NoError(t, err)
			a.connect(b, `{"topics":["good"]}`)
			b.Close()
			a.wantConnections(1)
			for range 20 { // a connection too many may be reset before Dial returns
				if conn, err := net.Dial("tcp", a.PublicAddr()); err == nil {
					defer conn.Close()
				}
			}
			require.Eventually(t, func() bool { return a.endings(metrics.Refused)+a.endings(metrics.Silent) == 20 }, surely, 10*time.Millisecond)
			a.wantConnections(1)
			a.say(poll)
			a.say("GET /v1/poll?topic=a&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n")
			b, err = net.Dial("tcp", a.TCPAddr())
			require.NoError(t, err)
			a.connect(b, `{"topics":["good"]}`)
			_ = a.wait()
			a.wantConnections(0)
		})
	}
	t.Run("within TLS", func(t *testing.T) {
		t.Parallel()
		pair := certtest.New(t)
		d := startSecure(t, pair)
		for _, protocol := range alpn {
			conn, err := tls.Dial("tcp", d.PublicAddr(), &tls.Config{RootCAs: poolOf(t, pair), NextProtos: []string{protocol}})
			require.NoError(t, err)
			require.Equal(t, 1, d.connectionsInUse(), protocol)
			_, err = fmt.Fprint(conn, "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n")
			require.NoError(t, err)
			_, _ = conn.Read(make([]byte, 1)) // this is no HTTP/2 request
			_ = conn.Close()
			d.wantConnections(0)
		}
	})
}
