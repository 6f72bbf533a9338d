package httpapi

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// connect finds or opens the session that a connection carries which goes both ways.
// The error is a *wire.Problem; without one, release must follow.
func (a *API) connect(p asker, c wire.ConnectRequest, format frame.Format) (transport.Duplex, error) {
	commands := &requester{api: a, asker: p, read: readCommand}
	if format.IsBinary() {
		commands.read = readCBORCommand
	}
	d := transport.Duplex{Request: transport.Request{Mode: transport.Stream, Acks: true}, Commands: commands}
	var err error
	if c.Session != "" {
		d.Session, err = a.session(p, c.Session)
		if err == nil {
			d.Request.Ack, err = ackOf(c, d.Session)
		}
		return d, err
	}
	if c.Ack != nil {
		return d, wire.NewProblem(wire.CodeInvalidRequest, "name the session, or leave ack out", "ack is said, but of no session")
	}
	if err := a.allowAll(p, c.Topics); err != nil {
		return d, err
	}
	except, err := exceptOf(c.Client, c.Echo == nil || *c.Echo)
	if err != nil {
		return d, err
	}
	var positions []wire.Position
	d.Session, positions, err = a.Sessions.OpenEphemeral(session.Opening{Topics: c.Topics, Except: except}, time.Now())
	d.Request.Hello = &wire.Hello{Positions: positions}
	return d, err
}

// ackOf returns how many frames the client has of a session that it goes on with.
func ackOf(c wire.ConnectRequest, s *session.Session) (uint64, error) {
	if len(c.Topics) > 0 || c.Client != "" {
		return 0, wire.NewProblem(wire.CodeInvalidRequest, "subscribe when it is open", "a session is named, and topics or a client besides")
	}
	switch {
	case !s.Acks():
		return 0, nil
	case c.Ack == nil:
		return 0, ackMissing()
	}
	return *c.Ack, nil
}

// release ends what connect has opened.
func (a *API) release(d transport.Duplex) {
	if d.Session.ID() == "" {
		a.Sessions.End(d.Session)
	}
}

// carry serves a connection that goes both ways, with what connect has opened for it.
func (a *API) carry(ctx context.Context, c net.Conn, d transport.Duplex) {
	listen.Of(c).Opened()
	if a.lane != nil && a.lane.Carry(c, d) {
		return
	}
	defer a.release(d)
	a.Polls.Serve(ctx, c, d)
}

// bareHost is the API to the clients of bare connections.
type bareHost API

// BareHost returns who takes in the clients of bare connections.
func (a *API) BareHost() transport.Host { return (*bareHost)(a) }

// Open implements transport.Host.
func (h *bareHost) Open(c net.Conn, opening []byte) (transport.Duplex, error) {
	a := (*API)(h)
	if why := a.Sessions.Draining(); why != nil {
		return transport.Duplex{}, why
	}
	request, err := readConnectRequest(opening)
	if err != nil {
		return transport.Duplex{}, a.problemOfCommand(context.Background(), err)
	}
	p, err := a.askerFrom(lane.From{Seat: listen.SeatOf(c)})
	if err == nil {
		err = a.Limiter.Admit(limit.Sessions, p.Who)
	}
	var d transport.Duplex
	if err == nil {
		d, err = a.connect(p, request, frame.CBOR)
	}
	if err == nil {
		if conn := listen.Of(c); conn != nil {
			d.Request.Arrival = session.Arrival{At: conn.LastRead(), Client: conn}
		}
		return d, nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && !a.Limiter.Hold(context.Background(), refusal) {
		return d, errGone
	}
	return d, a.problemOfCommand(context.Background(), err)
}

// Carry implements transport.Host.
func (h *bareHost) Carry(ctx context.Context, c net.Conn, d transport.Duplex) {
	(*API)(h).carry(ctx, c, d)
}

// Converse implements transport.Host.
func (h *bareHost) Converse(c net.Conn) *transport.Conversation {
	a := (*API)(h)
	return a.Polls.NewTCP(a.counted(listen.SeatOf(c).Who(nil, "")), time.Now())
}

func readConnectRequest(opening []byte) (request wire.ConnectRequest, err error) {
	object, _, err := cbor.MapToJSON(opening)
	if err != nil {
		return request, wire.NewProblem(wire.CodeInvalidRequest, `send a map first: {"topics":["a"]}`, "what the connection opens cannot be read: %v", err)
	}
	return request, decode(object, &request)
}
