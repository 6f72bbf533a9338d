package app

import (
	"context"
	"errors"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An Authority authenticates callers and decides what they may do. Its errors are
// *wire.Problems: unauthorized, forbidden. For a pattern, Allow answers for all topics
// that the pattern matches.
type Authority interface {
	Identify(c auth.Credentials) (auth.Principal, error)
	Allow(p auth.Principal, a auth.Action, topic string) error
}

// A Caller is the sender of a call. It is made from the headers of each request. A two-way
// connection keeps the Caller that opened it.
type Caller struct {
	auth.Credentials // of the request, not verified
	limit.Who        // the address; once authenticated, the principal too
	principal        auth.Principal
	known            bool // authenticated
}

// admit makes the first checks of every call: the rate of the address, authentication, the
// rate of the principal.
func (a *App) admit(c *Caller, kind limit.Kind) error {
	if err := a.cfg.Limiter.AdmitAddress(kind, c.Who); err != nil {
		return err
	}
	if err := a.authenticate(c); err != nil {
		return err
	}
	return a.cfg.Limiter.AdmitPrincipal(kind, c.Who)
}

func (a *App) authenticate(c *Caller) error {
	if c.known {
		return nil
	}
	p, err := a.cfg.Authority.Identify(c.Credentials)
	if err != nil {
		return err
	}
	c.principal, c.known, c.Who = p, true, c.Who.As(p.Name)
	return nil
}

// Reject counts a request that no call serves, and returns err, or a refusal instead: a
// wrong request spends as much of the rate as a right one.
func (a *App) Reject(c Caller, err error) error {
	if refused := a.cfg.Limiter.Admit(limit.Requests, c.Who); refused != nil {
		return refused
	}
	return err
}

// maySubscribe checks the permission to subscribe to topics, and the rate of new topics. It
// counts all new topics together, so that a retry after retry_after_ms succeeds.
func (a *App) maySubscribe(c *Caller, topics []wire.Start) error {
	fresh, limits := 0, a.cfg.Limiter.Limits(limit.Topics)
	for _, start := range topics {
		if err := a.cfg.Authority.Allow(c.principal, auth.Subscribe, start.Topic); err != nil {
			return err
		}
		if !wire.IsPattern(start.Topic) && limits && !a.cfg.Broker.Has(start.Topic) {
			fresh++
		}
	}
	if fresh == 0 {
		return nil
	}
	return a.cfg.Limiter.AdmitMany(limit.Topics, fresh, c.Who)
}

// A slot is one of limits.calls. It is for one goroutine, which must end it.
type slot struct {
	call limit.Call
	held bool
	err  error // of the last attempt: later ones do not wait again
}

// take waits for the slot, unless it is held.
func (s *slot) take(ctx context.Context, a *App, c *Caller) error {
	if s.held || s.err != nil {
		return s.err
	}
	s.call, s.err = a.cfg.Limiter.Begin(ctx, c.Who)
	s.held = s.err == nil
	return s.err
}

// takeEarly takes the slot of a call that must not wait, before it spends anything.
func (s *slot) takeEarly(a *App, c *Caller) error { return orWouldWait(s.take(NoWait, a, c)) }

func (s *slot) end() {
	if s.held {
		s.held = false
		s.call.End()
	}
}

// NoWait is the context of a call that must not wait: it has ended.
var NoWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// orWouldWait returns err, or ErrWouldWait in place of what a call that must not wait
// gets where it would have to.
func orWouldWait(err error) error {
	if errors.Is(err, context.Canceled) {
		return ErrWouldWait
	}
	return err
}
