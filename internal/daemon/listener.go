package daemon

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A door is a listener that lets in the clients who find a seat. The others are
// refused in passing: they cost no goroutine and no wait.
type door struct {
	*steady
	limiter *limit.Limiter
	metrics *metrics.Metrics
	full    seldom // owned by Accept
}

// Accept implements net.Listener.
func (l *door) Accept() (net.Conn, error) {
	for {
		c, err := l.steady.Accept()
		if err != nil {
			return nil, err
		}
		seat, err := l.limiter.Seat(addressOf(c))
		if err == nil {
			return listen.New(c, seat, l.metrics), nil
		}
		refusal, _ := errors.AsType[*limit.Refusal](err)
		l.refuse(c, refusal)
		l.maybeTell(refusal)
	}
}

// maybeTell logs, now and then, that there is no seat for anyone: the operator's to
// mend, unlike what one address has too much of.
func (l *door) maybeTell(why *limit.Refusal) {
	if why != nil && why.Limit == "connections" && l.full.due(time.Now()) {
		l.log.Warn("limits.connections is full, connections are refused: raise it, or where it is auto the limit of open files (ulimit -n, LimitNOFILE)",
			zap.String("listener", l.name), zap.Int("limits.connections", l.limiter.Config().Connections))
	}
}

// addressOf is where a client is.
func addressOf(c *net.TCPConn) netip.Addr {
	at, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{} // it has gone
	}
	return at.AddrPort().Addr()
}

// publicDoor is where clients come in that speak HTTP; within TLS, those who are
// refused cannot be told.
func (d *Daemon) publicDoor(l *net.TCPListener) net.Listener {
	tell := tellProblem
	if d.certificate.Load() != nil {
		tell = tellNothing
	}
	return d.secure(d.door(l, "public", tell), alpn...) // what is counted is on the wire
}

// bareDoor is where clients come in without HTTP.
func (d *Daemon) bareDoor(l *net.TCPListener) net.Listener {
	return d.secure(d.door(l, "tcp", tellNothing))
}

func (d *Daemon) door(l *net.TCPListener, name string, tell telling) *door {
	return &door{steady: d.steady(l, name, tell), limiter: d.limiter, metrics: d.metrics}
}

// adminDoor is where operators come in, for whom there is always room: what clients do
// is bounded by itself.
func (d *Daemon) adminDoor(l *net.TCPListener) net.Listener {
	return &capped{steady: d.steady(l, "admin", tellNothing), places: make(chan struct{}, adminConnections)}
}

// adminConnections is how many there may be on the admin listener: more than scrapers,
// probes and people make.
const adminConnections = 100

// A capped listener has a place for each connection, and closes what has none.
type capped struct {
	*steady
	places chan struct{} // as full as places are taken
}

// Accept implements net.Listener.
func (l *capped) Accept() (net.Conn, error) {
	for {
		c, err := l.steady.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.places <- struct{}{}:
			return &placed{Conn: c, places: l.places}, nil
		default:
			l.refuse(c, nil)
		}
	}
}

// A placed connection leaves its place when it is closed.
type placed struct {
	net.Conn
	places chan struct{}
	closed atomic.Bool
}

// Close implements net.Conn.
func (c *placed) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		defer func() { <-c.places }()
	}
	return c.Conn.Close()
}
