package httpapi

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Clients that never finish large bodies use a bounded part of the memory. Other clients
// can still send small bodies.
func TestUnfinishedBodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{MemoryBudget: 32 << 20}})
		var conns []net.Conn
		for i := range 30 {
			conns = append(conns, k.postOn(i%5, 900_000, 1_000_000))
			synctest.Wait() // bodies that arrive together may be refused more often than necessary
		}
		require.LessOrEqual(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(8<<20+30*1000), "a quarter, and a reading each")
		require.Greater(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(6<<20))
		large := "[" + strings.Repeat(" ", 800_000) + "]"
		p := k.WantProblem(wire.CodeOverloaded, "POST", "/v1/messages", large, lanetest.JSONType)
		require.Contains(t, p.Remedy, "memory.budget")
		k.wantOK("/v1/topics/a/messages", `"`+strings.Repeat("x", 15_000)+`"`, lanetest.JSONType)
		require.Positive(t, k.Counted("pubsubd_limited_total", "memory"))

		time.Sleep(2 * lanetest.Defaults.RestTimeout)
		k.wantFreed(conns...)
		k.wantOK("/v1/messages", large, lanetest.JSONType)
	})
}

// One address may use at most half of the memory for unfinished bodies.
func TestBodiesOfOneAddressAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{MemoryBudget: 32 << 20}})
		var conns []net.Conn
		for range 20 {
			conns = append(conns, k.postOn(1, 900_000, 1_000_000))
			synctest.Wait()
		}
		require.LessOrEqual(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(4<<20+20*1000), "half of a quarter, and a reading each")
		require.Greater(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(3<<20))

		one := k.postOn(1, 800_000, 800_000)
		text, err := bufio.NewReader(one).ReadString('}')
		require.NoError(t, err)
		require.Contains(t, text, "HTTP/1.1 429 ")
		require.Contains(t, text, "trusted_proxies")
		k.wantOK("/v1/messages", "["+strings.Repeat(" ", 800_000)+"]", lanetest.JSONType)
		k.wantFreed(append(conns, one)...)
	})
}

// wantFreed closes conns and requires that no unfinished body or command is left in memory.
func (k *kit) wantFreed(conns ...net.Conn) {
	k.Helper()
	for _, nc := range conns {
		nc.Close()
	}
	synctest.Wait()
	require.Zero(k, k.api.Polls.Memory().Of(memory.Unfinished))
}

// postOn sends the first bytes of a body to /v1/messages, from the address 10.0.0.from.
// length is the Content-Length.
func (k *kit) postOn(from, bytes, length int) net.Conn {
	nc := k.dialFrom(from)
	go func() {
		fmt.Fprintf(nc, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n[", length)
		_, _ = io.WriteString(nc, strings.Repeat(" ", bytes-1))
	}()
	return nc
}

// A client that waits for 100 gets the refusal of a body that is too long instead, and need not
// send it (RFC 9110, section 10.1.1).
func TestABodyThatIsTooLongIsNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		id := k.OpenA()
		many := k.api.App.MostBytes()
		for request, most := range map[string]int{
			"POST /v1/topics/a/messages": 64 << 10, "POST /v1/messages": many, "POST /v1/sessions": many, "PATCH /v1/sessions/" + id: many,
			"POST /v1/poll": many, "POST /v1/subjects": many,
		} {
			for length, want := range map[int]string{most: "100 Continue", most + 1: "413 Request Entity Too Large"} {
				nc, err := k.Dial()
				require.NoError(t, err)
				go fmt.Fprintf(nc, "%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", request, length)
				line, err := bufio.NewReader(nc).ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "HTTP/1.1 "+want+"\r\n", line, request)
				nc.Close()
			}
		}
	})
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	for length, want := range map[int64]int{maxRevokeBytes: http.StatusBadRequest, maxRevokeBytes + 1: http.StatusRequestEntityTooLarge} {
		r := httptest.NewRequest("POST", "/revocations", iotest.ErrReader(errors.New("asked for")))
		r.ContentLength = length
		r.Header.Set("Expect", "100-continue")
		r.Header.Set("Authorization", "Bearer "+operatorsKey)
		w := httptest.NewRecorder()
		NewAdmin(adminOf(cfg, "")).ServeHTTP(w, r)
		require.Equal(t, want, w.Code)
		require.Equal(t, want == http.StatusBadRequest, strings.Contains(w.Body.String(), "asked for"))
	}
}

// Any refusal comes before the body of a client that waits for 100.
func TestARefusalDoesNotWaitForTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for request, want := range map[string]string{
			"POST /v1/topics/%61/messages": "404 Not Found", "POST /v1/nothing": "404 Not Found", "POST /v1/topics/_a/messages": "403 Forbidden",
			"PUT /v1/topics": "405 Method Not Allowed", "GET /v1/topics": "400 Bad Request",
		} {
			nc, err := k.Dial()
			require.NoError(t, err)
			begun := time.Now()
			go fmt.Fprintf(nc, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n", request)
			line, err := bufio.NewReader(nc).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "HTTP/1.1 "+want+"\r\n", line, request)
			require.Zero(t, time.Since(begun), request)
			nc.Close()
		}
	})
}

// A client of HTTP/1.0 does not wait for 100, whatever it expects (RFC 9110, section 10.1.1). It may
// miss an answer that comes while it sends the body.
func TestAClientOfHTTP10IsAnsweredAfterItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		nc, err := k.Dial()
		require.NoError(t, err)
		answered := make(chan string, 1)
		go func() {
			line, _ := bufio.NewReader(nc).ReadString('\n')
			answered <- line
		}()
		const bytes = 64<<10 + 1
		fmt.Fprintf(nc, "POST /v1/topics/a/messages HTTP/1.0\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", bytes)
		synctest.Wait()
		require.Empty(t, answered)
		_, err = io.WriteString(nc, strings.Repeat("x", bytes))
		require.NoError(t, err)
		require.Contains(t, <-answered, " 413 ")
		nc.Close()
	})
}

func TestAParkedPollHoldsNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		from := k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		var published wire.Published
		require.NoError(t, json.Unmarshal([]byte(from), &published))
		polled := make(chan string, 1)
		go func() {
			_, answer := k.Get("POST", "/v1/poll", `{"topics":["`+published.Position.String()+`"`+strings.Repeat(" ", 500_000)+`]}`, lanetest.JSONType)
			polled <- answer
		}()
		synctest.Wait()
		require.Empty(t, polled)
		require.Zero(t, k.api.Polls.Memory().Of(memory.Unfinished))
		k.wantOK("/v1/topics/a/messages", "2", lanetest.JSONType)
		require.Contains(t, <-polled, `"data":2`)
	})
}

// A waitingAuthorizer does not agree before it is told to.
type waitingAuthorizer struct{ agree chan struct{} }

func (waitingAuthorizer) Selects([]wire.Start) bool { return true }

func (w waitingAuthorizer) Authorize(context.Context, hook.Subscribing) error {
	<-w.agree
	return nil
}

// A large body counts until its session is open: also while it waits to be decoded.
func TestABodyCountsUntilItsSessionIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waitingAuthorizer{make(chan struct{})}
		k := newKit(t, lanetest.Settings{Authorize: w})
		opened := make(chan int)
		go func() {
			status, _ := k.Get("POST", "/v1/sessions", `{"topics":["a"`+strings.Repeat(" ", 500_000)+`]}`, lanetest.JSONType)
			opened <- status
		}()
		synctest.Wait()
		require.Greater(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(450_000))
		close(w.agree)
		require.Equal(t, 201, <-opened)
		synctest.Wait()
		require.Zero(t, k.api.Polls.Memory().Of(memory.Unfinished))
	})
}

// Unfinished commands are bounded like unfinished bodies.
func TestUnfinishedCommandsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{MemoryBudget: 32 << 20}})
		var conns []net.Conn
		for i := range 20 {
			conns = append(conns, k.talkOn(i%4, 900_000, 1_000_000))
			synctest.Wait()
		}
		require.LessOrEqual(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(8<<20+20*5000), "a quarter, and a reading each")
		require.Greater(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(6<<20))
		require.Positive(t, k.Counted("pubsubd_limited_total", "memory"))
		k.wantFreed(conns...)
	})
}

// A client behind a proxy may keep idle WebSockets until the limiter forgets its address.
// All its connections still share one memory account.
func TestCommandsOfForgottenAddressesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{
			Broker: broker.Config{MemoryBudget: 20 << 20},
			Limits: limit.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		})
		var conns []net.Conn
		for range 4 {
			conns = append(conns, k.socketOn(1, "X-Forwarded-For: 192.0.2.7\r\n"))
			time.Sleep(11 * time.Second)
			k.api.Limiter.Sweep(time.Now())
		}
		for _, nc := range conns {
			beginToTalk(nc, 900_000, 1_000_000)
			synctest.Wait()
		}
		require.Positive(t, k.Counted("pubsubd_limited_total", "memory"))
		require.LessOrEqual(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(5<<19+4*5000), "half of a quarter, and a reading each")
		k.wantFreed(conns...)
	})
}

// talkOn opens a WebSocket from the address 10.0.0.from and sends the first bytes of a
// command of this length.
func (k *kit) talkOn(from, bytes int, length uint64) net.Conn {
	nc := k.socketOn(from, "")
	beginToTalk(nc, bytes, length)
	return nc
}

// socketOn opens a WebSocket from the address 10.0.0.from and discards what it receives.
func (k *kit) socketOn(from int, headers string) net.Conn {
	nc := k.dialFrom(from)
	go func() { _, _ = io.Copy(io.Discard, nc) }()
	_, _ = io.WriteString(nc, "GET /v1/ws?topic=a HTTP/1.1\r\nHost: pubsubd\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+headers+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	return nc
}

// beginToTalk sends the first bytes of a command of this length.
func beginToTalk(nc net.Conn, bytes int, length uint64) {
	go func() {
		head := binary.BigEndian.AppendUint64([]byte{0x81, 0xff}, length)
		_, _ = nc.Write(append(append(head, 0, 0, 0, 0), strings.Repeat(" ", bytes)...))
	}()
}
