package app

import (
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Revoke carries out a wire.RevokeRequest of an operator. When it returns, the revocation is
// on disk, and the sessions that it affects have ended. The error is a *wire.Problem.
func (a *App) Revoke(r wire.RevokeRequest, now time.Time) (wire.RevokeResult, error) {
	if r.Session != 0 {
		if !a.cfg.Sessions.EndNumber(r.Session) {
			return wire.RevokeResult{}, problem.New(wire.CodeSessionUnknown, "see `pubsubd sessions` for the numbers", "no open session has the number %d", r.Session)
		}
		a.cfg.Log.Info("an operator ended a session", zap.Uint64("session", r.Session))
		return wire.RevokeResult{Ended: 1}, nil
	}
	if err := a.cfg.Revocations.Add(r.Subject, r.TokenID, now); err != nil {
		return wire.RevokeResult{}, err
	}
	ended := a.cfg.Sessions.EndRevoked()
	a.cfg.Log.Info("revoked", zap.String("subject", r.Subject), zap.String("token_id", r.TokenID), zap.Int("ended", ended))
	return wire.RevokeResult{Ended: ended}, nil
}

// Revocations returns the first n revocations.
func (a *App) Revocations(n int, now time.Time) auth.RevocationList {
	return a.cfg.Revocations.List(n, now)
}
