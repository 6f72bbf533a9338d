package app

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
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

// mayOpen makes the checks of every call that opens a session. read returns what to open. A
// call that resumes names a session, whose id is enough.
func (a *App) mayOpen(ctx context.Context, c *Caller, kind limit.Kind, resumes bool, read func() (session.Opening, error)) (o session.Opening, err error) {
	if why := a.cfg.Sessions.Draining(); why != nil {
		return o, why
	}
	if err := a.admit(ctx, c, kind); err != nil {
		return o, err
	}
	if !resumes { // before the body arrives
		if err := c.grant.AllowAny(); err != nil {
			return o, err
		}
	}
	if o, err = read(); err != nil {
		return o, err
	}
	o.Grant = c.grant
	if err := a.maySubscribe(c, o.Topics); err != nil {
		return o, err
	}
	var place slot
	defer place.end()
	if err := a.authorize(ctx, c, &place, hook.Subscribing{Client: o.Client, Opens: true, Topics: o.Topics}); err != nil {
		return o, err
	}
	if takesLong(o.Topics, nil) {
		turns := a.cfg.Limiter.Turns()
		o.Turn = func() (end func(), err error) { return turns.Leave, turns.Enter(ctx, c.Who.Client()) }
	}
	return o, a.checkGrant(c.grant) // the checks may have waited
}

// OpenSession opens a session for the wire.OpenRequest in the body.
func (a *App) OpenSession(ctx context.Context, c Caller, body Body) (opened wire.SessionOpened, err error) {
	defer a.recovered(&err)
	o, err := a.mayOpen(ctx, &c, limit.Sessions, false, func() (o session.Opening, err error) {
		var r wire.OpenRequest
		if err := a.readTopics(ctx, &c, body, &r); err != nil {
			return o, err
		}
		o, err = openingOf(r.Topics, r.Client, r.Echo)
		o.Ack = r.Ack == nil || *r.Ack
		return o, err
	})
	if err != nil {
		return opened, err
	}
	s, positions, err := a.openSession(ctx, &c, o)
	if err != nil {
		return opened, err
	}
	return wire.SessionOpened{Session: s.ID(), Ack: o.Ack, Positions: positions, ExpiresMS: s.Grant().ExpiresMS(time.Now()), Limits: *a.Limits()}, nil
}

// openSession opens a session. It may wait for one of limits.sessions. While it waits, it
// holds no slot of limits.calls.
func (a *App) openSession(ctx context.Context, c *Caller, o session.Opening) (*session.Session, []wire.Position, error) {
	call, err := a.cfg.Limiter.BeginElsewhere(c.Who)
	if err != nil {
		return nil, nil, err
	}
	defer call.End()
	o.Address = c.Who.Client()
	return a.cfg.Sessions.Open(ctx, o, time.Now())
}

// ChangeSession applies the wire.ChangeRequest in the body to a session's subscriptions,
// and calls answer with the result.
func (a *App) ChangeSession(ctx context.Context, c Caller, id string, body Body, answer func(wire.SessionChanged) error) (err error) {
	defer a.recovered(&err)
	var place slot
	defer place.end()
	s, r, err := a.mayChange(ctx, &c, &place, func() (s *session.Session, r wire.ChangeRequest, err error) {
		if s, err = a.session(&c, []byte(id)); err == nil {
			err = mayChange(&c, s)
		}
		if err == nil {
			err = a.readJSON(ctx, &c, body, &r)
		}
		return s, r, err
	})
	if err != nil {
		return err
	}
	place.end() // what follows may wait for its turn
	if err := a.renew(ctx, &c, s); err != nil {
		return err
	}
	positions, err := a.change(ctx, &c, s, r, false)
	if err != nil {
		return err
	}
	return answer(wire.SessionChanged{Positions: positions, ExpiresMS: s.Grant().ExpiresMS(time.Now())})
}

// renew gives the caller's grant to a session of the same principal, if that is newer.
func (a *App) renew(ctx context.Context, c *Caller, s *session.Session) error {
	return a.inTurn(ctx, c, c.grant.Renews(s.Grant()) && renewsLong(s), func() error {
		return s.Renew(c.grant, func(name string) bool { return a.allow(c, auth.Subscribe, name) == nil })
	})
}

// renewsLong reports whether renewing a session takes long: each subscription is checked.
func renewsLong(s *session.Session) bool { return s.Subscriptions() > quickNames }

// change makes a change of subscriptions after mayChange. If it takes long, it waits for its turn,
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

// mayChange checks a change of subscriptions, which read returns. The caller ends the slot, and
// makes the change.
func (a *App) mayChange(ctx context.Context, c *Caller, place *slot, read func() (*session.Session, wire.ChangeRequest, error)) (s *session.Session, r wire.ChangeRequest, err error) {
	if err := a.admit(ctx, c, limit.Requests); err != nil {
		return nil, r, err
	}
	if s, r, err = read(); err != nil {
		return nil, r, err
	}
	if err := a.maySubscribe(c, r.Add); err != nil {
		return nil, r, err
	}
	if err := place.take(ctx, a, c); err != nil {
		return nil, r, err
	}
	if err := a.authorize(ctx, c, place, hook.Subscribing{Topics: r.Add}); err != nil {
		return nil, r, err
	}
	return s, r, a.checkGrant(c.grant) // the checks may have waited
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
	var place slot
	return a.readLong(ctx, &c, place.ofReads(), find, func() error {
		state, subscriptions := s.State(time.Now())
		return answer(state, subscriptions, place.end)
	})
}

// CloseSession ends a session.
func (a *App) CloseSession(ctx context.Context, c Caller, id string) error {
	var s *session.Session
	find := func() (err error) { s, err = a.sessionToReceive(&c, limit.Requests, id); return err }
	return a.read(ctx, &c, &slot{}, find, func() error { a.cfg.Sessions.End(s); return nil })
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

// Connect opens or finds the session of a two-way connection by a query. The caller
// completes the Duplex, and ends the session after the connection.
func (a *App) Connect(ctx context.Context, c Caller, rawQuery string, accepts Accepts) (d transport.Duplex, err error) {
	defer a.recovered(&err)
	q := parseQuery(rawQuery)
	c.takeToken(&q)
	return a.connect(ctx, &c, "websocket", q.one("session") != "", func() (r wire.ConnectRequest, format frame.Format, err error) {
		format = q.format(accepts)
		r = wire.ConnectRequest{Topics: q.topics(), Client: q.one("client"), Session: q.one("session")}
		q.limitRate(r.Topics, transport.Stream)
		echo, ack := q.truth("echo", true), q.number("ack", 0, maxAck, 0)
		if r.Echo = &echo; q.values.Has("ack") {
			r.Ack = &ack
		}
		return r, format, q.err
	})
}

// ConnectByItem is Connect by a CBOR map. The map has the token and may be large. Before
// authentication, only the token and the session's id are decoded.
func (a *App) ConnectByItem(ctx context.Context, c Caller, item []byte) (d transport.Duplex, err error) {
	defer a.recovered(&err)
	var named, r wire.ConnectRequest
	object, err := cbor.MembersToJSON(item, "auth", "session")
	switch {
	case err != nil:
		err = noOpening(err)
	case len(object) > largeBody:
		err = problem.New(wire.CodeInvalidRequest, "send a shorter token", "auth and session must have at most %d bytes together", largeBody)
	default:
		err = decode(object, &named)
	}
	c.Token = named.Auth
	return a.connect(ctx, &c, "tcp", named.Session != "", func() (wire.ConnectRequest, frame.Format, error) {
		if err == nil {
			err = a.inTurn(ctx, &c, len(item) > largeBody, func() error { return a.readOpening(item, named, &r) })
		}
		return r, frame.CBOR, err
	})
}

// readOpening decodes the whole of a connection's first item. named has its token and its
// session.
func (a *App) readOpening(item []byte, named wire.ConnectRequest, r *wire.ConnectRequest) error {
	if named.Session != "" && len(item) > largeBody { // the caller may be unknown
		return errSessionAlone
	}
	object, _, err := cbor.MapToJSON(item)
	if err != nil {
		return noOpening(err)
	}
	err = a.decodeTopics(object, r, allNames)
	r.Auth = ""
	return err
}

func noOpening(err error) error {
	return problem.New(wire.CodeInvalidRequest, `begin with a map such as {"topics":["a"]}`, "the first item of the connection cannot be read: %v", err)
}

func (a *App) connect(ctx context.Context, c *Caller, over string, resumes bool, read func() (wire.ConnectRequest, frame.Format, error)) (d transport.Duplex, err error) {
	var r wire.ConnectRequest
	d.Request = transport.Request{Mode: transport.Stream, Acks: true}
	o, err := a.mayOpen(ctx, c, limit.Sessions, resumes, func() (o session.Opening, err error) {
		if r, d.Request.Format, err = read(); err != nil || r.Session != "" {
			return o, err
		}
		if r.Ack != nil {
			return o, problem.New(wire.CodeInvalidRequest, "add session, or omit ack", "ack needs a session")
		}
		return openingOf(r.Topics, r.Client, r.Echo)
	})
	if err != nil {
		return d, err
	}
	if r.Session != "" {
		if d.Session, err = a.sessionToReceive(c, limit.Sessions, r.Session); err == nil {
			d.Request.Ack, err = ackOf(r, d.Session)
		}
	} else {
		o.Peer, d.Request.Hello = c.peer(over), &wire.Hello{}
		d.Session, d.Request.Hello.Positions, err = a.cfg.Sessions.OpenEphemeral(o, time.Now())
	}
	client := &commands{app: a, caller: *c}
	client.caller.Agent = "" // the connection may last
	client.binary = d.Request.Format.IsBinary()
	d.Do, d.Who = client.do, c.Who
	return d, err
}

// ackOf returns how many frames the client has of the session to continue.
func ackOf(r wire.ConnectRequest, s *session.Session) (uint64, error) {
	if len(r.Topics) > 0 || r.Client != "" {
		return 0, errSessionAlone
	}
	switch {
	case !s.Acks():
		return 0, nil
	case r.Ack == nil:
		return 0, ackMissing()
	}
	return *r.Ack, nil
}

var errSessionAlone = problem.New(wire.CodeInvalidRequest, "send session alone, and subscribe when the connection is open", "session cannot be combined with topics or client")

// ReadSessionList reads a query for the list of sessions: how many, and in which order.
func ReadSessionList(rawQuery string) (n int, by session.Order, refused *wire.Problem) {
	q := parseQuery(rawQuery)
	n = q.pageSize()
	by = cmp.Or(session.Order(q.one("sort")), session.ByLag)
	if !slices.Contains(session.Orders(), by) {
		q.fail(problem.New(wire.CodeInvalidRequest, "use lag or idle", "unknown order %s", wire.Quote(by)))
	}
	refused, _ = errors.AsType[*wire.Problem](q.err)
	return n, by, refused
}
