package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An asker is who a request comes from: a principal, by what it says, and an address,
// by its connection. The one has rights, and both have limits.
type asker struct {
	auth.Principal
	limit.Who
}

// askerOf returns who r comes from.
func (a *API) askerOf(r *http.Request) (asker, error) {
	p, err := a.Authority.Identify(auth.Credentials{Authorization: r.Header.Get("Authorization")})
	if err != nil {
		return asker{}, err
	}
	return asker{p, a.whoOf(r, p.Name)}, nil
}

// whoOf returns whom r is counted for, which principal has sent.
func (a *API) whoOf(r *http.Request, principal string) limit.Who {
	if seat := listen.SeatOf(listen.FromContext(r.Context())); seat != nil {
		return seat.Who(r.Header["X-Forwarded-For"], principal)
	}
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // who has none shares one
	return a.Limiter.WhoAt(at.Addr(), principal)
}

// askerFrom returns who something comes from that net/http has not read.
func (a *API) askerFrom(from lane.From) (asker, error) {
	p, err := a.Authority.Identify(from.Credentials)
	if err != nil {
		return asker{}, err
	}
	return asker{p, from.Seat.Who(header(from.Forwarded), p.Name)}, nil
}

// allowAll asks for every topic of a subscription who may refuse it.
func (a *API) allowAll(p asker, topics []wire.Start) error {
	for _, start := range topics {
		if err := a.Authority.Allow(p.Principal, auth.Subscribe, start.Topic); err != nil {
			return err
		}
	}
	names := make([]string, len(topics))
	for i, start := range topics {
		names[i] = start.Topic
	}
	return a.mayMake(p, names...)
}

// mayMake asks the limits if topics would be made: all together, so that who is refused
// and waits may have them all.
func (a *API) mayMake(p asker, topics ...string) error {
	// Fast path: nothing is said of them.
	if !a.Limiter.Limits(limit.Topics) {
		return nil
	}
	fresh := 0
	for _, topic := range topics {
		if !wire.IsPattern(topic) && !a.Broker.Has(topic) {
			fresh++
		}
	}
	if fresh == 0 {
		return nil
	}
	return a.Limiter.AdmitMany(limit.Topics, fresh, p.Who)
}

// open opens a session, for which there may have to be waited.
func (a *API) open(ctx context.Context, p asker, o session.Opening) (*session.Session, []wire.Position, error) {
	call, err := a.Limiter.BeginElsewhere(p.Who)
	if err != nil {
		return nil, nil, err
	}
	defer call.End()
	return a.Sessions.Open(ctx, o, time.Now())
}

// session returns the session of that id. Who often names one that is not there is
// limited.
func (a *API) session(p asker, id string) (*session.Session, error) {
	s, err := a.Sessions.Get(id)
	return s, a.maybeMissed(p, err)
}

// maybeMissed returns err, or in its place a refusal, if err says that no session has
// an id.
func (a *API) maybeMissed(p asker, err error) error {
	if errors.Is(err, errSessionUnknown) {
		if refused := a.Limiter.Admit(limit.Misses, p.Who); refused != nil {
			return refused
		}
	}
	return err
}

var errSessionUnknown = &wire.Problem{Code: wire.CodeSessionUnknown}

// publishing counts a publish among those that a session has pending, if it names one;
// done is told when it is over.
func (a *API) publishing(p asker, id string) (done func(), err error) {
	if id == "" {
		return func() {}, nil
	}
	s, err := a.session(p, id)
	if err != nil {
		return nil, err
	}
	done = func() { s.Pending.Add(-1) }
	if n := s.Pending.Add(1); n > int64(a.Limiter.Config().PendingMessages) {
		done()
		return nil, a.Limiter.TooManyPending(p.Who)
	}
	return done, nil
}

// call does what a call is for, once there is a place for it.
func (a *API) call(ctx context.Context, p asker, do func() error) error {
	call, err := a.Limiter.Begin(ctx, p.Who)
	if err != nil {
		return err
	}
	defer call.End()
	return do()
}
