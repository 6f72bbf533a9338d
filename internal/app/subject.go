package app

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A SubjectChange is what an application does to the clients of one principal: its caller has
// passed the checks that need no body.
type SubjectChange struct {
	Opening // decodes the body
}

// BeginSubject checks, before the body arrives, that the caller may manage the clients of some
// topic.
func (a *App) BeginSubject(ctx context.Context, c Caller) (change SubjectChange, err error) {
	defer a.recovered(&err)
	if err := a.admit(ctx, &c, limit.Requests); err != nil {
		return change, err
	}
	return SubjectChange{Opening{a, ctx, c}}, c.grant.AllowSome(auth.Manage)
}

// Make makes the change. When it returns, what is forbidden is on disk, and the sessions and
// subscriptions that it affects have ended.
func (ch *SubjectChange) Make(r wire.SubjectRequest) (result wire.SubjectResult, err error) {
	a, c := ch.app, &ch.caller
	defer a.recovered(&err)
	names := r.Forbid
	if r.End {
		names = []string{">"} // a session may have any topic
	}
	for _, name := range names {
		if err := c.grant.Allow(auth.Manage, name); err != nil {
			return result, err
		}
	}
	var place slot
	defer place.end()
	if err := place.take(ch.ctx, a, c); err != nil {
		return result, err
	}
	if err := a.checkGrant(c.grant); err != nil { // the body and the slot may have taken long
		return result, err
	}
	by, of := zap.String("by", c.grant.Subject), zap.String("subject", r.Subject)
	if r.End {
		result.Sessions = a.cfg.Sessions.EndSubject(r.Subject, r.Reason)
		a.cfg.Log.Info("an application ended the sessions of a subject", by, of, zap.Int("sessions", result.Sessions))
		return result, nil
	}
	mayLift := func(name string) bool { return c.grant.Allow(auth.Manage, name) == nil }
	if err := a.cfg.Revocations.Forbid(r.Subject, r.Forbid, time.UnixMilli(r.UntilMS), r.Reason, mayLift, time.Now()); err != nil {
		return result, err
	}
	result.Sessions = a.cfg.Sessions.Forbid(r.Subject)
	a.cfg.Log.Info("an application has set what is forbidden to a subject", by, of,
		zap.Strings("topics", r.Forbid), zap.Int64("until_ms", r.UntilMS), zap.Int("sessions", result.Sessions))
	return result, nil
}

// checkForbidden checks that a topic is not forbidden to the subject of a grant. It does not
// allocate.
func (a *App) checkForbidden(g *auth.Grant, topic string) error {
	if p := a.cfg.Revocations.Forbidden(g.Subject).Find(topic); p != nil {
		return p.Problem(topic)
	}
	return nil
}
