package limit

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

// A Seat is a connection's place among those that there may be. It is shared by all
// who may have to close the connection, and given up by the last of them.
type Seat struct {
	limiter *Limiter
	source  *Source
	trusted bool // the client is a proxy, whose word for its own clients is taken
	shares  atomic.Int32
}

// Seat takes a place for a connection from addr. The error is a *Refusal; without
// one, Leave must follow.
func (l *Limiter) Seat(addr netip.Addr) (*Seat, error) {
	f, now := l.force.Load(), time.Now()
	s := &Seat{limiter: l, source: l.addresses.get(keyOf(addr), now), trusted: f.trusts(addr)}
	s.shares.Store(1)
	w := Who{source: s.source}
	if n := s.source.connections.Add(1); f.AddressConnections > 0 && !s.trusted && n > int64(f.AddressConnections) {
		s.source.connections.Add(-1)
		return nil, l.refuse(w, now, tooMany("address_connections", "connections", f.AddressConnections))
	}
	if n := l.connections.Add(1); f.Connections > 0 && n > int64(f.Connections) {
		s.Leave()
		return nil, l.refuse(w, now, full("connections", "connections", f.Connections))
	}
	if !s.trusted {
		if err := l.Admit(Connections, w); err != nil {
			s.Leave()
			return nil, err
		}
	}
	return s, nil
}

// Share is told that one more may close the connection.
func (s *Seat) Share() *Seat {
	if s != nil {
		s.shares.Add(1)
	}
	return s
}

// Leave gives a share up, and with the last the place.
func (s *Seat) Leave() {
	if s != nil && s.shares.Add(-1) == 0 {
		s.source.connections.Add(-1)
		s.limiter.connections.Add(-1)
	}
}

// Who returns whom a request on the connection is counted for. forwarded is its
// X-Forwarded-For, line by line, of which what trusted proxies wrote is believed: the
// last address that is not one of theirs is the client's. Without such a proxy, or if
// that cannot be read, it is who connected.
func (s *Seat) Who(forwarded []string, principal string) Who {
	if s == nil {
		return Who{principal: principal}
	}
	w := Who{source: s.source, principal: principal}
	if s.trusted && len(forwarded) > 0 {
		if addr, ok := s.limiter.force.Load().clientOf(forwarded); ok {
			w.source = s.limiter.addresses.get(keyOf(addr), time.Now())
		}
	}
	return w
}

// WhoAt returns whom a request from addr is counted for, where there is no seat.
func (l *Limiter) WhoAt(addr netip.Addr, principal string) Who {
	return Who{source: l.addresses.get(keyOf(addr), time.Now()), principal: principal}
}

// clientOf returns the last address that is not a trusted proxy's. If all are, it is
// the first.
func (f *force) clientOf(forwarded []string) (last netip.Addr, ok bool) {
	for i := len(forwarded) - 1; i >= 0; i-- {
		for rest, more := forwarded[i], true; more; {
			var one string
			if at := strings.LastIndexByte(rest, ','); at >= 0 {
				rest, one = rest[:at], rest[at+1:]
			} else {
				one, more = rest, false
			}
			addr, err := parseAddress(strings.TrimSpace(one))
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

func (f *force) trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, prefix := range f.TrustedProxies {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// keyOf returns what stands for an address. Who has one address of an IPv6 network has
// all 2^64 of them (RFC 6177, section 2), so it stands for its network.
func keyOf(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		if prefix, err := addr.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return addr
}
