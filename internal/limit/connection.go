package limit

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Connection is a client's connection as the limits count it. Its owners share it, and
// it counts until the last of them leaves.
type Connection struct {
	limiter *Limiter
	source  *Source
	trusted bool // the peer is a trusted proxy
	shares  atomic.Int32
}

// Connect counts a connection from addr. The error is a *Refusal. Without an error, call
// Leave.
func (l *Limiter) Connect(addr netip.Addr) (*Connection, error) {
	f, now := l.inForce.Load(), time.Now()
	w := l.WhoAt(addr)
	c := &Connection{limiter: l, source: w.source, trusted: f.trusts(addr)}
	c.shares.Store(1)
	if n := c.source.connections.Add(1); f.AddressConnections > 0 && !c.trusted && n > int64(f.AddressConnections) {
		c.source.connections.Add(-1)
		return nil, l.refuse(w, now, "address_connections", tooMany("address_connections", "connections", f.AddressConnections))
	}
	if n := l.connections.Add(1); f.Connections > 0 && n > int64(f.Connections) {
		c.Leave()
		return nil, l.refuse(w, now, "connections", problem.New(wire.CodeOverloaded, "retry later, or raise limits.connections",
			"the daemon can have at most %d connections", f.Connections).Retry(time.Second))
	}
	if !c.trusted {
		if err := l.Admit(Connections, 1, w); err != nil {
			c.Leave()
			return nil, err
		}
	}
	return c, nil
}

// Share counts one more owner of the connection. It may be called on nil.
func (c *Connection) Share() *Connection {
	if c != nil {
		c.shares.Add(1)
	}
	return c
}

// IsProxy reports whether the peer is a trusted proxy. It may be called on nil.
func (c *Connection) IsProxy() bool { return c != nil && c.trusted }

// Leave ends the use of one owner. After the last one the connection does not count any
// more. It may be called on nil.
func (c *Connection) Leave() {
	if c != nil && c.shares.Add(-1) == 0 {
		c.source.connections.Add(-1)
		c.limiter.connections.Add(-1)
	}
}

// clientOf returns the last address that is not a trusted proxy, or the first one if all
// are.
func (f *inForce) clientOf(forwarded []string) (last netip.Addr, ok bool) {
	for _, rest := range slices.Backward(forwarded) {
		for more := true; more; {
			at := strings.LastIndexByte(rest, ',')
			text := strings.TrimSpace(rest[at+1:])
			if rest, more = rest[:max(at, 0)], at >= 0; text == "" {
				continue // RFC 9110, section 5.6.1.2: ignore empty elements
			}
			addr, err := parseAddress(text)
			if err != nil {
				return last, ok
			}
			last, ok = addr, true
			if !f.trusts(addr) {
				return last, true
			}
		}
	}
	return last, ok
}

// parseAddress reads an address, which some proxies write with a port, or in brackets.
func parseAddress(text string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr, nil
	}
	if strings.HasSuffix(text, "]") {
		text += ":0"
	}
	at, err := netip.ParseAddrPort(text)
	return at.Addr(), err
}

func (f *inForce) trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(f.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// keyOf returns the key of an address in the table. A client that has one address of an
// IPv6 network has all 2^64 of them (RFC 6177, section 2), so the network is the key.
func keyOf(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		if prefix, err := addr.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return addr
}
