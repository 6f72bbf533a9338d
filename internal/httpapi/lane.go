package httpapi

import (
	"context"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/listen"
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

// laneIdle is how long a connection on the lane may be idle between requests, as with
// net/http.
const laneIdle = 2 * time.Minute

func (a *API) openLane() {
	if a.Lane == LaneOff || a.Lane == "" {
		return
	}
	a.lane = lane.New(lane.Config{
		App: a.App, Polls: a.Polls, Metrics: a.Metrics, Origins: a.origins, HandOff: a.Lane == LaneHandOff,
		WriteTimeout: a.WriteTimeout, Idle: laneIdle,
	})
}

// BareHost returns the host of TCP connections.
func (a *API) BareHost() transport.Host { return &a.twoWay }

// Listener returns the listener of connections that the lane hands back, or nil without
// a lane. The http.Server must serve it too, and use ConnContext.
func (a *API) Listener() net.Listener {
	if a.lane == nil {
		return nil
	}
	return a.lane.Listener()
}

// ConnContext is for http.Server.ConnContext.
func (a *API) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return listen.NewContext(ctx, c)
}

// Tick updates the Date of the lane's answers to now, and ends what takes too long.
func (a *API) Tick(now time.Time) {
	if a.lane != nil {
		a.lane.Tick(now)
	}
}

// Drain closes the lane's connections, each after the answer to its poll. Two-way
// connections end with their sessions. The channel is closed when none is left. Drain
// also ends the delay of refusals: net/http does not notice that a connection was closed
// while its request waits with an unread body.
func (a *API) Drain() <-chan struct{} {
	a.Limiter.Release()
	none := a.Polls.Drain()
	if a.lane == nil {
		return none
	}
	a.lane.Drain()
	all := make(chan struct{})
	go func() {
		<-none
		<-a.lane.Drained()
		close(all)
	}()
	return all
}

// Close closes the connections that are left after Drain, and so its channel.
func (a *API) Close() {
	a.Polls.Close()
	if a.lane != nil {
		a.lane.Close()
	}
}
