package app

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"
	"unique"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An Authority authenticates callers. Its grants say what they may do. It never blocks. Its
// errors are *wire.Problems: unauthorized, token_expired. Without credentials, Identify returns an
// anonymous grant. Without verify, it takes microseconds: its error is auth.ErrUnverified where it
// would have to check a signature. Revoked reports whether a grant was revoked since Identify
// returned it. It runs for each command and does not allocate.
type Authority interface {
	Identify(c auth.Credentials, verify bool) (*auth.Grant, error)
	Revoked(g *auth.Grant) bool
}

// A Caller is the sender of a call. It is made from the headers of each request. A two-way
// connection keeps the Caller that opened it.
type Caller struct {
	auth.Credentials             // of the request, not verified
	limit.Who                    // the address; once authenticated, the principal too
	Agent            string      // the User-Agent; empty: none
	grant            *auth.Grant // nil until authenticated
	unknown          error       // why grant is nil; nil: nobody has looked
	paid             bool        // the rates have already counted this call
}

// maxAgentBytes bounds what is kept of a User-Agent.
const maxAgentBytes = 100

// peer describes the caller of a connection that has its session for itself.
func (c *Caller) peer(transport string) *session.Peer {
	agent := c.Agent[:min(len(c.Agent), maxAgentBytes)]
	return &session.Peer{Transport: transport, Address: c.Who.Address(), Agent: unique.Make(strings.ToValidUTF8(agent, ""))}
}

// admit makes the first checks of every call: the rate of the address, authentication, the
// rate of the principal.
func (a *App) admit(ctx context.Context, c *Caller, kind limit.Kind) error {
	if !c.paid {
		if err := a.cfg.Limiter.Admit(kind, 1, c.Who, limit.Address); err != nil {
			return err
		}
	}
	a.Recognise(c)
	err := c.unknown
	switch {
	case c.grant != nil: // perhaps since a two-way connection was opened
		err = a.checkGrant(c.grant)
	case errors.Is(err, auth.ErrUnverified):
		err = a.verify(ctx, c)
	}
	if err != nil || c.paid {
		return err
	}
	return a.cfg.Limiter.Admit(kind, 1, c.Who, limit.Principal, limit.All)
}

// Recognise authenticates a caller, once, unless it returns false: then calls have to wait until
// the signature of its token was checked.
func (a *App) Recognise(c *Caller) bool {
	defer a.recovered(&c.unknown)
	if c.grant == nil && c.unknown == nil {
		if c.grant, c.unknown = a.cfg.Authority.Identify(c.Credentials, false); c.grant != nil {
			c.Principal = c.grant.Subject
		}
	}
	return c.grant != nil || !errors.Is(c.unknown, auth.ErrUnverified)
}

// recovered logs a panic and sets err to errPanicked. Defer it.
func (a *App) recovered(err *error) {
	if why := recover(); why != nil {
		a.cfg.Log.Error("panic", zap.Any("panic", why), zap.Stack("stack"))
		*err = errPanicked
	}
}

// verify authenticates a caller by the signature of its token. Few are checked at a time, those
// of different addresses in turn: tokens that nobody has seen leave processors for others.
func (a *App) verify(ctx context.Context, c *Caller) error {
	gate := a.cfg.Limiter.Signatures()
	if err := gate.Enter(ctx, c.Who.Client()); err != nil {
		return err
	}
	defer gate.Leave()
	g, err := a.cfg.Authority.Identify(c.Credentials, true)
	if err == nil {
		c.grant, c.Principal = g, g.Subject
	}
	return err
}

// checkGrant checks that a grant, which was valid once, has neither expired nor been revoked.
func (a *App) checkGrant(g *auth.Grant) error {
	switch {
	case g.HasExpired(time.Now()):
		return errGrantExpired
	case a.cfg.Authority.Revoked(g):
		return errGrantRevoked
	}
	return nil
}

// newTokenRemedy is the remedy for a grant that has ended.
const newTokenRemedy = `get a new token; on a two-way connection, send it: {"auth":"…"}`

var (
	errGrantExpired = problem.New(wire.CodeTokenExpired, newTokenRemedy, "the token has expired")
	errGrantRevoked = problem.New(wire.CodeUnauthorized, newTokenRemedy, "the credentials were revoked")
)

// mayUse checks the name of a topic to read or change, and the permission, which a prohibition takes.
func (a *App) mayUse(c *Caller, right auth.Right, topic string) error {
	if err := wire.CheckTopic(topic); err != nil {
		return problem.New(wire.CodeInvalidTopic, "see PROTOCOL.md for the rules of names", "%v", err)
	}
	if (right == auth.Publish || right == auth.Delete) && wire.ReservedTopic(topic) {
		return problem.New(wire.CodeReservedTopic, "use a topic that does not begin with '_'", "topic %s is reserved for the daemon", wire.Quote(topic))
	}
	if err := c.grant.Allow(right, topic); err != nil {
		return err
	}
	return a.checkForbidden(c.grant, topic)
}

// mayReceive checks that the caller may receive, ack and close a session. Its id is enough,
// unless the caller has credentials of another principal. An anonymous caller counts for the
// session's principal.
func (a *App) mayReceive(c *Caller, kind limit.Kind, s *session.Session) error {
	subject := s.Grant().Subject
	switch {
	case c.grant.Subject == subject:
		return nil
	case c.grant.Subject != "":
		return mayChange(c, s)
	}
	c.grant, c.Principal = auth.Ticket, subject
	return a.cfg.Limiter.Admit(kind, 1, c.Who, limit.Principal, limit.All)
}

// mayChange checks that the caller is the session's principal.
func mayChange(c *Caller, s *session.Session) error {
	switch {
	case c.grant.Subject == s.Grant().Subject:
		return nil
	case c.grant.Subject == "":
		return problem.New(wire.CodeUnauthorized, "send a token of the session's principal", "a session's id alone permits only receiving, acknowledging and closing")
	}
	return problem.New(wire.CodeForbidden, "open a session of your own", "the session belongs to another principal")
}

// Reject counts a request that no call serves, and returns err, or a refusal instead: a
// wrong request spends as much of the rate as a right one.
func (a *App) Reject(c Caller, err error) error {
	if c.paid {
		return err
	}
	if refused := a.cfg.Limiter.Admit(limit.Requests, 1, c.Who); refused != nil {
		return refused
	}
	return err
}

// maySubscribe checks a subscription: the permission, the number, the rate of new topics, and, with the slot,
// what the application says. The caller ends the slot. To change a session always needs it.
func (a *App) maySubscribe(ctx context.Context, c *Caller, place *slot, s hook.Subscribing) error {
	for _, start := range s.Topics {
		if err := c.grant.Allow(auth.Subscribe, start.Topic); err != nil {
			return err
		}
	}
	if err := a.cfg.Revocations.Forbidden(c.grant.Subject).CheckStarts(s.Topics); err != nil {
		return err
	}
	sessions := a.cfg.Sessions.Config()
	hasPattern := slices.ContainsFunc(s.Topics, func(start wire.Start) bool { return wire.IsPattern(start.Topic) })
	if err := sessions.CheckNumber(len(s.Topics), hasPattern); err != nil { // before it costs a rate, or the application's time
		return err
	}
	if err := a.mayCreate(c, s.Topics); err != nil {
		return err
	}
	isAsked := a.cfg.Authorize.Selects(s.Topics)
	if isAsked || !s.Opens {
		if err := place.take(ctx, a, c); err != nil {
			return err
		}
	}
	if isAsked {
		s.Principal = principalOf(c)
		if err := a.cfg.Authorize.Authorize(ctx, s); err != nil {
			return err
		}
	}
	return a.checkGrant(c.grant) // the checks may have waited
}

// mayCreate checks the rate of new topics. It counts all new topics together, so that a
// retry after retry_after_ms succeeds.
func (a *App) mayCreate(c *Caller, topics []wire.Start) error {
	fresh, limits := 0, a.cfg.Limiter.Limits(limit.Topics)
	for _, start := range topics {
		if limits && !wire.IsPattern(start.Topic) && !a.cfg.Broker.Has(start.Topic) {
			fresh++
		}
	}
	if fresh == 0 {
		return nil
	}
	return a.cfg.Limiter.Admit(limit.Topics, fresh, c.Who)
}

// An Authorizer asks the application about subscriptions, after all other checks.
type Authorizer interface {
	// Selects reports whether the application is asked about any of the topics. It does not
	// wait.
	Selects(topics []wire.Start) bool

	// Authorize asks, and returns nil if the application agrees. The error is a
	// *wire.Problem, or ctx's.
	Authorize(ctx context.Context, s hook.Subscribing) error
}

// principalOf returns the principal of a caller, for a hook.
func principalOf(c *Caller) hook.Principal {
	return hook.Principal{Subject: c.grant.Subject, Claims: c.grant.Claims, Address: c.Who.Client()}
}

// A slot is one of limits.calls. It is for one goroutine at a time, which must end it.
type slot struct {
	reads bool // it is for a call that only reads
	call  limit.Call
	held  bool
	err   error // of the last attempt: later ones do not wait again
}

// take waits for the slot, unless it is held.
func (s *slot) take(ctx context.Context, a *App, c *Caller) error {
	if s.held || s.err != nil {
		return s.err
	}
	s.call, s.err = a.cfg.Limiter.Begin(ctx, c.Who, s.reads)
	s.held = s.err == nil
	return s.err
}

// end may be called again.
func (s *slot) end() {
	s.held = false
	s.call.End()
}

// inTurn calls do. If do takes long, it waits for its turn: to decode 900 KB takes 25 ms, and
// many at once would keep all cores from deliveries. Addresses get their turns one after the
// other. If ctx ends first, inTurn returns its error.
func (a *App) inTurn(ctx context.Context, c *Caller, long bool, do func() error) error {
	if long {
		turns := a.cfg.Limiter.Turns()
		if err := turns.Enter(ctx, c.Who.Client()); err != nil {
			return err
		}
		defer turns.Leave()
	}
	return do()
}

// A call with at most quickNames topics and patterns may be made in a loop. To decode and to join
// a topic takes 5 µs, and a few times as long in a session with many patterns.
const (
	quickNames = 16
	allNames   = math.MaxInt
)

// takesLong reports whether a change of subscriptions needs a turn: it names many topics, or a
// pattern, whose topics must be found.
func takesLong(add []wire.Start, remove []string) bool {
	return len(add)+len(remove) > quickNames || slices.ContainsFunc(add, func(s wire.Start) bool { return wire.IsPattern(s.Topic) }) || slices.ContainsFunc(remove, wire.IsPattern)
}

// MostNamed is how many topics a request may name.
func (a *App) MostNamed() int { return a.cfg.Sessions.Config().MostNamed() }
