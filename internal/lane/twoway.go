package lane

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// Converse implements transport.Host.
func (l *Lane) Converse(c net.Conn) *transport.Conversation {
	return l.cfg.Polls.NewTCP(&listen.Owner{Who: listen.Counted(c).Who(nil), Conn: listen.Of(c)}, time.Now())
}

// Open implements transport.Host.
func (l *Lane) Open(c net.Conn, first []byte) (transport.Duplex, error) {
	caller := app.Caller{Credentials: auth.Credentials{Certificate: shown(c)}, Who: listen.Counted(c).Who(nil)}
	d, err := l.connect(caller, first)
	if err == nil {
		if conn := listen.Of(c); conn != nil {
			d.Request.Arrival = session.Arrival{At: conn.LastRead(), Client: conn}
		}
		return d, nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && !l.cfg.Limiter.Hold(context.Background(), refusal) {
		return d, app.ErrClientGone
	}
	if p := l.cfg.App.Problem(err); p != nil {
		return d, p
	}
	return d, err
}

// connect opens the session of a TCP connection, whose first item may be large.
func (l *Lane) connect(caller app.Caller, first []byte) (d transport.Duplex, err error) {
	asked := request.ConnectInItem(first, &caller.Credentials)
	o, err := l.cfg.App.BeginOpen(l.life, caller, limit.Sessions, app.OnTopics(asked.Session))
	if err == nil && asked.Fault == nil {
		err = o.Decode(len(first), func() error { return asked.Complete(first, l.cfg.App.MostNamed()) })
	}
	if err != nil {
		return d, err
	}
	return o.Connect(asked, "tcp")
}

// shown returns the certificate that the client has shown, or nil; see listen.Shown.
func shown(c net.Conn) *tls.ConnectionState {
	secure, ok := c.(*tls.Conn)
	if !ok {
		return nil
	}
	state := secure.ConnectionState()
	return listen.Shown(c, &state)
}

// Carry implements transport.Host. It also serves WebSockets. A connection that the loops
// cannot take has two goroutines.
func (l *Lane) Carry(ctx context.Context, c net.Conn, d transport.Duplex) {
	listen.Of(c).Opened()
	if !l.takeDuplex(c, d) {
		defer l.cfg.App.End(d.Session)
		l.cfg.Polls.Serve(ctx, c, d)
	}
}
