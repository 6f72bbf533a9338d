package httpapi

import (
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/transport"
)

// LaneWay is how polls wait on the lane.
type LaneWay string

// The ways; see the package lane.
const (
	LaneOff     LaneWay = "off" // or empty
	LaneChannel LaneWay = "channel"
	LaneHandOff LaneWay = "handoff"
)

// TCPHost returns the host of TCP connections.
func (a *API) TCPHost() transport.Host { return a.lane }

// Listener returns the listener of connections that the lane hands back. The http.Server
// must serve it too, with listen.NewContext as its ConnContext.
func (a *API) Listener() net.Listener { return a.lane.Listener() }

// Tick updates the Date of the lane's answers to now, and ends connections that take too
// long.
func (a *API) Tick(now time.Time) { a.lane.Tick(now) }

// Drain closes the lane's connections, each after the answer to its poll. Two-way
// connections end with their sessions. The channel is closed when none is left. Drain
// also ends the delay of refusals: net/http does not notice that a connection was closed
// while its request waits with an unread body.
func (a *API) Drain() <-chan struct{} {
	a.Limiter.Release()
	return a.lane.Drain()
}

// Close closes the connections that are left after Drain, and so its channel.
func (a *API) Close() { a.lane.Close() }
