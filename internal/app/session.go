package app

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// session returns the session with an id. Ids that do not exist spend the rate of misses.
func (a *App) session(c *Caller, id []byte) (*session.Session, error) {
	s, err := a.cfg.Sessions.Get(id)
	if errors.Is(err, errSessionUnknown) {
		if refused := a.cfg.Limiter.Admit(limit.Misses, 1, c.Who); refused != nil {
			return nil, refused
		}
	}
	return s, err
}

var errSessionUnknown = &wire.Problem{Code: wire.CodeSessionUnknown}

// An Opening is a session that is about to be opened: its caller has passed the checks that need
// no body. It is for one session.
type Opening struct {
	app    *App
	ctx    context.Context
	caller Caller
}

// A Basis is what an opening stands on.
type Basis uint8

// The bases of openings.
const (
	OfQuery   Basis = iota // topics that are known
	OfBody                 // topics in a body, which is not read for a caller who may subscribe to none
	OfSession              // a session, whose id is enough
)

// OnTopics returns the basis of a request that has its topics, or names a session instead.
func OnTopics(session string) Basis {
	if session != "" {
		return OfSession
	}
	return OfQuery
}

// BeginOpen makes the checks of every call that opens a session, before its body arrives. Waits
// end with ctx.
func (a *App) BeginOpen(ctx context.Context, c Caller, kind limit.Kind, on Basis) (o Opening, err error) {
	defer a.recovered(&err)
	if why := a.cfg.Sessions.Draining(); why != nil {
		return o, why
	}
	if err := a.admit(ctx, &c, kind); err != nil {
		return o, err
	}
	switch on {
	case OfQuery:
		err = c.grant.AllowAny()
	case OfBody:
		err = c.grant.AllowSome(auth.Subscribe)
	}
	return Opening{a, ctx, c}, err
}

// OpeningWaits reports whether BeginOpen, or to open a session for topics, may wait. If not, a loop
// may open it.
func (a *App) OpeningWaits(c *Caller, topics []wire.Start) (waits bool) {
	waits = true // also after a panic
	defer a.recovered(&c.unknown)
	return !a.Recognise(c) || takesLong(topics, nil) || a.cfg.Authorize.Selects(topics)
}

// Decode calls decode for a body of so many bytes. A large one waits for its turn.
func (o *Opening) Decode(bytes int, decode func() error) error {
	return o.app.inTurn(o.ctx, &o.caller, bytes > request.LargeBody, decode)
}

// check checks the subscriptions of a session to open, and completes it.
func (o *Opening) check(s *session.Opening) error {
	a, c := o.app, &o.caller
	s.Grant = c.grant
	var place slot
	defer place.end()
	if err := a.maySubscribe(o.ctx, c, &place, hook.Subscribing{Client: s.Client, Opens: true, Topics: s.Topics}); err != nil {
		return err
	}
	if takesLong(s.Topics, nil) {
		ctx, turns, address := o.ctx, a.cfg.Limiter.Turns(), c.Who.Client()
		s.Turn = func() (end func(), err error) { return turns.Leave, turns.Enter(ctx, address) }
	}
	return nil
}

// Session opens a session.
func (o *Opening) Session(s session.Opening) (opened wire.SessionOpened, err error) {
	defer o.app.recovered(&err)
	if err := o.check(&s); err != nil {
		return opened, err
	}
	of, positions, err := o.open(s)
	if err != nil {
		return opened, err
	}
	return wire.SessionOpened{
		Session: of.ID(), Ack: s.Ack, Positions: positions, Unfollowed: of.Unfollowed(),
		ExpiresMS: of.Grant().ExpiresMS(time.Now()), Limits: *o.app.Limits(),
	}, nil
}

// open opens a session. It may wait for one of limits.sessions. While it waits, it
// holds no slot of limits.calls.
func (o *Opening) open(s session.Opening) (*session.Session, []wire.Position, error) {
	call, _, err := o.app.cfg.Limiter.TryBegin(o.caller.Who, false)
	if err != nil {
		return nil, nil, err
	}
	defer call.End()
	s.Address = o.caller.Who.Client()
	return o.app.cfg.Sessions.Open(o.ctx, s, time.Now())
}

// A Change changes a session's subscriptions: its caller has passed the checks that need no body.
type Change struct {
	Opening // decodes the body
	session *session.Session
}

// BeginChange checks, before the body arrives, that the caller may change the session with an id.
func (a *App) BeginChange(ctx context.Context, c Caller, id string) (change Change, err error) {
	defer a.recovered(&err)
	if err := a.admit(ctx, &c, limit.Requests); err != nil {
		return change, err
	}
	s, err := a.session(&c, []byte(id))
	if err == nil {
		err = mayChange(&c, s)
	}
	return Change{Opening{a, ctx, c}, s}, err
}

// Make makes the change.
func (ch *Change) Make(r wire.ChangeRequest) (changed wire.SessionChanged, err error) {
	a, ctx, c, s := ch.app, ch.ctx, &ch.caller, ch.session
	defer a.recovered(&err)
	var place slot
	defer place.end()
	if err := a.maySubscribe(ctx, c, &place, hook.Subscribing{Topics: r.Add}); err != nil {
		return changed, err
	}
	place.end() // what follows may wait for its turn
	if err := a.renew(ctx, c, s); err != nil {
		return changed, err
	}
	changed.Positions, err = a.change(ctx, c, s, r, false)
	changed.ExpiresMS, changed.Unfollowed = s.Grant().ExpiresMS(time.Now()), s.Unfollowed()
	return changed, err
}

// renew gives the caller's grant to a session of the same principal, if that is newer.
func (a *App) renew(ctx context.Context, c *Caller, s *session.Session) error {
	isLong := c.grant.Renews(s.Grant()) && s.Subscriptions() > quickNames // each is checked
	return a.inTurn(ctx, c, isLong, func() error {
		return s.Renew(c.grant, func(name string) bool { return c.grant.Allow(auth.Subscribe, name) == nil })
	})
}

// change makes a change of subscriptions after maySubscribe. If it takes long, it waits for its turn,
// unless the caller is in turn already. A session may have another grant than the caller, who can
// use an older token or one that does not renew. Rights of the caller that the session's grant
// lacks must not outlive the caller's token in the session.
func (a *App) change(ctx context.Context, c *Caller, s *session.Session, r wire.ChangeRequest, inTurn bool) (positions []wire.Position, err error) {
	err = a.inTurn(ctx, c, !inTurn && takesLong(r.Add, r.Remove), func() (err error) {
		positions, err = s.Change(r.Add, r.Remove, func(g *auth.Grant, name string) bool {
			return g == c.grant || g.Allow(auth.Subscribe, name) == nil
		})
		return err
	})
	return positions, err
}

// SessionState calls answer with the state of a session; see session.State. It names the
// topics, so the session's id is not enough.
func (a *App) SessionState(ctx context.Context, c Caller, id string, answer func(s wire.SessionState, subscriptions iter.Seq[wire.SubscriptionState], leave func()) error) error {
	var s *session.Session
	find := func() (err error) {
		if s, err = a.session(&c, []byte(id)); err == nil {
			err = mayChange(&c, s)
		}
		return err
	}
	return a.readLong(ctx, &c, "", find, func(leave func()) error {
		state, subscriptions := s.State(time.Now())
		return answer(state, subscriptions, leave)
	})
}

// CloseSession ends a session.
func (a *App) CloseSession(ctx context.Context, c Caller, id string) error {
	var s *session.Session
	find := func() (err error) { s, err = a.sessionToReceive(&c, limit.Requests, id); return err }
	return a.read(ctx, &c, "", slot{}, find, func(func()) error { a.cfg.Sessions.End(s); return nil })
}

// sessionToReceive returns the session with an id, if the caller may receive it.
func (a *App) sessionToReceive(c *Caller, kind limit.Kind, id string) (*session.Session, error) {
	s, err := a.session(c, []byte(id))
	if err == nil {
		err = a.mayReceive(c, kind, s)
	}
	return s, err
}

// End ends a session that was opened for one answer or connection, and has no id. It
// leaves other sessions open.
func (a *App) End(s *session.Session) {
	if s.ID() == "" {
		a.cfg.Sessions.End(s)
	}
}

// Connect opens or finds the session of a two-way connection. The caller completes the Duplex,
// and ends the session after the connection.
func (o *Opening) Connect(r request.Connect, over string) (d transport.Duplex, err error) {
	a, c := o.app, &o.caller
	defer a.recovered(&err)
	if r.Fault != nil {
		return d, r.Fault
	}
	if err := o.check(&r.Open); err != nil {
		return d, err
	}
	d.Request = transport.Request{Mode: transport.Stream, Acks: true, Format: r.Format}
	if r.Session != "" {
		if d.Session, err = a.sessionToReceive(c, limit.Sessions, r.Session); err != nil {
			return d, err
		}
		switch {
		case !d.Session.Acks():
		case r.Ack == nil:
			return d, ackMissing()
		default:
			d.Request.Ack = *r.Ack
		}
	} else {
		r.Open.Peer, d.Request.Hello = c.peer(over), &wire.Hello{}
		if d.Session, d.Request.Hello.Positions, err = a.cfg.Sessions.OpenEphemeral(r.Open, time.Now()); err != nil {
			return d, err
		}
	}
	client := &commands{app: a, caller: *c}
	client.caller.Agent = "" // the connection may last
	client.binary = r.Format.IsBinary()
	d.Do, d.Who = client.do, c.Who
	return d, nil
}
