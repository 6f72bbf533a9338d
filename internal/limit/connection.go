package limit

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Seat is one of the connections that clients may have. All that may close the
// connection share it, and the last to leave frees it.
type Seat struct {
	limiter *Limiter
	source  *Source
	trusted bool // the peer is a trusted proxy
	shares  atomic.Int32
}

// Seat takes a seat for a connection from addr. The error is a *Refusal. Without an
// error, call Leave.
func (l *Limiter) Seat(addr netip.Addr) (*Seat, error) {
	f, now := l.inForce.Load(), time.Now()
	s := &Seat{limiter: l, source: l.addresses.get(keyOf(addr), now), trusted: f.trusts(addr)}
	s.shares.Store(1)
	w := Who{source: s.source}
	if n := s.source.connections.Add(1); f.AddressConnections > 0 && !s.trusted && n > int64(f.AddressConnections) {
		s.source.connections.Add(-1)
		return nil, l.refuse(w, now, "address_connections", tooMany("address_connections", "connections", f.AddressConnections))
	}
	if n := l.connections.Add(1); f.Connections > 0 && n > int64(f.Connections) {
		s.Leave()
		return nil, l.refuse(w, now, "connections", wire.NewProblem(wire.CodeOverloaded, "retry later, or raise limits.connections",
			"the daemon has %d connections, which is the limit", f.Connections).Retry(time.Second))
	}
	if !s.trusted {
		if err := l.Admit(Connections, w); err != nil {
			s.Leave()
			return nil, err
		}
	}
	return s, nil
}

// Share counts one more that may close the connection. It may be called on nil.
func (s *Seat) Share() *Seat {
	if s != nil {
		s.shares.Add(1)
	}
	return s
}

// Leave gives up a share, and with the last one the seat. It may be called on nil.
func (s *Seat) Leave() {
	if s != nil && s.shares.Add(-1) == 0 {
		s.source.connections.Add(-1)
		s.limiter.connections.Add(-1)
	}
}

// Who returns the client that a request on the connection counts for. forwarded holds the
// lines of X-Forwarded-For. If the peer is a trusted proxy, the client is the last
// address in it that is not a trusted proxy. Otherwise, or if that address cannot be
// read, it is the peer.
func (s *Seat) Who(forwarded []string, principal string) Who {
	if s == nil {
		return Who{principal: principal}
	}
	w := Who{source: s.source, principal: principal}
	if s.trusted && len(forwarded) > 0 {
		if addr, ok := s.limiter.inForce.Load().clientOf(forwarded); ok {
			w.source = s.limiter.addresses.get(keyOf(addr), time.Now())
		}
	}
	return w
}

// WhoAt returns the client that a request from addr counts for, without a seat.
func (l *Limiter) WhoAt(addr netip.Addr, principal string) Who {
	return Who{source: l.addresses.get(keyOf(addr), time.Now()), principal: principal}
}

// clientOf returns the last address that is not a trusted proxy, or the first one if all
// are.
func (f *inForce) clientOf(forwarded []string) (last netip.Addr, ok bool) {
	for _, rest := range slices.Backward(forwarded) {
		for more := true; more; {
			at := strings.LastIndexByte(rest, ',')
			addr, err := parseAddress(strings.TrimSpace(rest[at+1:]))
			rest, more = rest[:max(at, 0)], at >= 0
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

// parseAddress reads an address, which some proxies write with a port.
func parseAddress(text string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr, nil
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
