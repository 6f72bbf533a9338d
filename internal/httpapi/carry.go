package httpapi

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// carry serves a connection that goes both ways, with what connect has opened for it.
func (a *API) carry(ctx context.Context, c net.Conn, d transport.Duplex, who limit.Who) {
	listen.Of(c).Opened()
	d.Owner = &link{a, who, c}
	if a.lane != nil && a.lane.Carry(c, d) {
		return
	}
	defer a.App.End(d.Session)
	a.Polls.Serve(ctx, c, d)
}

// bareHost is the API to the clients of bare connections.
type bareHost API

// BareHost returns who takes in the clients of bare connections.
func (a *API) BareHost() transport.Host { return (*bareHost)(a) }

// Open implements transport.Host.
func (h *bareHost) Open(c net.Conn, opening []byte) (transport.Duplex, error) {
	a := (*API)(h)
	d, err := a.App.ConnectByItem(app.Caller{Who: listen.SeatOf(c).Who(nil, "")}, opening)
	if err == nil {
		if conn := listen.Of(c); conn != nil {
			d.Request.Arrival = session.Arrival{At: conn.LastRead(), Client: conn}
		}
		return d, nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && !a.Limiter.Hold(context.Background(), refusal) {
		return d, app.ErrClientGone
	}
	if p := a.App.Problem(err); p != nil {
		return d, p
	}
	return d, err
}

// Carry implements transport.Host.
func (h *bareHost) Carry(ctx context.Context, c net.Conn, d transport.Duplex) {
	(*API)(h).carry(ctx, c, d, listen.SeatOf(c).Who(nil, ""))
}

// Converse implements transport.Host.
func (h *bareHost) Converse(c net.Conn) *transport.Conversation {
	a := (*API)(h)
	return a.Polls.NewTCP(a.counted(listen.SeatOf(c).Who(nil, "")), time.Now())
}
