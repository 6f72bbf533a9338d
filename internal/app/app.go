// Package app carries out every call, in one order of checks, whether it came over HTTP,
// the lane, a WebSocket or TCP. No other package asks the authority, the limits or the
// hook.
//
// A call makes these checks in this order, and skips those that do not apply to it:
//
//	draining
//	the rate of the address
//	authentication
//	the rate of the principal
//	the topic's name, permission, what is forbidden, the rate of the topic
//	the arrival and the contents of the body, a slot
//	the idempotency key
//	the hook: of a message, or of a subscription
//	the expiry and the revocation of the grant, again
//
// If the body names the topics, the call checks their names and permissions after the body.
// Before the body, it checks that the caller has the right on some topic.
package app

import (
	"context"
	"crypto/cipher"
	"errors"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/presence"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Config is what an App is made of. All fields but Revocations and Traces are required.
type Config struct {
	Broker    *broker.Broker
	Sessions  *session.Registry
	Presence  *presence.Members // needed if topics have presence
	Authority Authority

	// Revocations are those that Authority and Sessions know, with what is forbidden to subjects.
	// Default nil: there are none, Revoke ends only sessions, and nothing can be forbidden.
	Revocations *auth.Revocations

	Limiter   *limit.Limiter
	Hook      Hook
	Authorize Authorizer
	Metrics   *metrics.Metrics
	Log       *zap.Logger

	// Traces gets spans of publishes. Default nil: none.
	Traces *observe.Traces

	// Limits are sent to clients, and MessageBytes is enforced here, until a Reload.
	Limits wire.Limits
}

// An App carries out calls. All methods may be called concurrently.
type App struct {
	cfg     Config // immutable, but for Limits: see limits
	limits  atomic.Pointer[wire.Limits]
	repeats atomic.Int64 // publishes that wait for another with the same key

	cursors cipher.AEAD // encrypts them
}

// New returns an App made of cfg.
func New(cfg Config) *App {
	a := &App{cfg: cfg, cursors: newCursors()}
	a.Reload(cfg.Limits)
	return a
}

// Reload puts other limits in force.
func (a *App) Reload(limits wire.Limits) {
	a.limits.Store(&limits)
	a.cfg.Broker.Memory().SetLargestBody(a.MostBytes())
}

// Limits returns the limits in force.
func (a *App) Limits() *wire.Limits { return a.limits.Load() }

// MostBytes is how many bytes a body may have, but for one that is a payload.
func (a *App) MostBytes() int { return transport.MostBytes(a.limits.Load().MessageBytes) }

// Errors that are not for the client.
var (
	// ErrClientGone means that the client has disconnected.
	ErrClientGone = errors.New("the client is gone")

	errPanicked = errors.New("the call panicked")
)

// withoutAnswer are the errors after which the client gets no answer.
var withoutAnswer = []error{errPanicked, ErrClientGone, context.Canceled, context.DeadlineExceeded}

// Problem returns the problem to send for err, and counts it. It returns nil for an error
// without an answer: then the caller closes the connection, so that the client cannot take
// an incomplete answer for a whole one.
//
// A *wire.Problem is sent as it is. Any other error is the daemon's fault: Problem logs
// it, with the fields, and hides it from the client.
func (a *App) Problem(err error, fields ...zap.Field) *wire.Problem {
	p, ok := errors.AsType[*wire.Problem](err)
	switch {
	case ok:
	case slices.ContainsFunc(withoutAnswer, func(e error) bool { return errors.Is(err, e) }):
		return nil
	default:
		a.cfg.Log.Error("request failed", append(fields, zap.Error(err))...)
		p = internal()
	}
	a.cfg.Metrics.Refused.WithLabelValues(string(p.Code)).Inc()
	return limit.Spread(p)
}

func internal() *wire.Problem {
	return problem.New(wire.CodeInternal, "retry later; if the error repeats, see the daemon's log", "the daemon has an internal error")
}
