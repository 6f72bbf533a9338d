package session

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// token is a grant by a token that was issued now and expires after ttl.
func token(ttl time.Duration) *auth.Grant {
	now := time.Now()
	return &auth.Grant{Subject: "ann", Issued: now, Expires: now.Add(ttl)}
}

func (k *kit) openAs(g *auth.Grant, topics ...string) *Session {
	k.Helper()
	s, _, err := k.registry.Open(k.Context(), Opening{Grant: g, Topics: k.starts(topics...), Ack: true}, time.Now())
	require.NoError(k, err)
	return s
}

// sweep lets fake time pass, in which the registry is swept as the daemon does.
func (k *kit) sweep(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(time.Second, time.Until(end)))
		k.registry.Sweep(time.Now())
	}
	synctest.Wait()
}

func anything(string) bool { return true }

// only permits some names.
func only(names ...string) func(string) bool {
	return func(name string) bool {
		for _, n := range names {
			if n == name {
				return true
			}
		}
		return false
	}
}

// A parked poll ends when the token expires. The session stays, and goes on with a new token.
func TestATokenExpiresWhileAPollWaits(t *testing.T) {
	story(t, broker.Config{}, Config{InactivityTimeout: time.Minute}, func(k *kit) {
		s := k.openAs(token(10*time.Second), "a")
		waiting := k.park(s, 0)
		k.sweep(9 * time.Second)
		select {
		case <-waiting.done:
			require.Fail(k, "the poll ended early")
		default:
		}
		k.sweep(2 * time.Second)
		waiting.wantProblem(wire.CodeTokenExpired)
		_, err := k.tryPoll(s, 0, everything)
		require.ErrorIs(k, err, problem.New(wire.CodeTokenExpired, "", ""))
		k.publish("a")
		k.sweep(30 * time.Second)

		require.NoError(k, s.Renew(token(time.Minute), anything))
		require.Equal(k, "a1", k.poll(s, 0), "nothing was lost while the token had expired")
		k.sweep(61 * time.Second)
		_, err = k.tryPoll(s, 1, everything)
		require.ErrorIs(k, err, problem.New(wire.CodeSessionEnded, "", ""), "without a poll it ends as any session")
	})
}

// A renewal before the end does not disturb the poll that waits.
func TestARenewalDisturbsNoPoll(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.openAs(token(5*time.Second), "a")
		waiting := k.park(s, 0)
		time.Sleep(time.Second)
		old := s.Grant()
		require.NoError(k, s.Renew(token(time.Minute), anything))
		k.sweep(10 * time.Second)
		k.publish("a")
		waiting.wantFrames("a1")

		fresh := s.Grant()
		require.NoError(k, s.Renew(old, only()))
		require.Same(k, fresh, s.Grant(), "an older token does not replace a newer one")
		k.publish("a")
		require.Equal(k, "a2", k.poll(s, 1))
	})
}

// Subscriptions that the new token does not permit end with a gap, in a poll that waits too.
func TestARenewalEndsSubscriptionsThatItDoesNotPermit(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		counted := func() float64 { return testutil.ToFloat64(k.registry.metrics.Gaps.WithLabelValues("forbidden")) }
		s := k.openAs(token(time.Minute), "a", "b", "p.*")
		k.publish("a")
		k.publish("p.x")
		require.Equal(k, "a1 p.x1", k.poll(s, 0))
		waiting := k.park(s, 2)
		time.Sleep(time.Second)
		require.NoError(k, s.Renew(token(time.Minute), only("b")))
		<-waiting.done
		require.NoError(k, waiting.err)
		require.Contains(k, []string{"gap(forbidden p.*0-0) gap(forbidden a1-1)", "gap(forbidden a1-1) gap(forbidden p.*0-0)"}, waiting.said)
		require.InDelta(k, 2, counted(), 0)
		require.Empty(k, patternsOf(s))
		require.Len(k, subscriptionsOf(s), 1)
		k.publish("a")
		k.publish("p.x")
		k.publish("b")
		require.Equal(k, waiting.said+" b1", k.poll(s, 2), "the gaps are counted frames")
		require.Equal(k, "b1", k.poll(s, 4))
	})
}

// A topic ends with the last pattern that matches it, and is not announced apart from it.
func TestARenewalEndsTopicsThatNoPatternMatches(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.openAs(token(time.Minute), "p.*", "*.x", "p.>")
		k.publish("p.x")
		require.Equal(k, "p.x1", k.poll(s, 0))
		time.Sleep(time.Second)
		require.NoError(k, s.Renew(token(time.Minute), only("p.>")))
		k.publish("p.x")
		said := k.poll(s, 1)
		require.Contains(k, []string{"gap(forbidden p.*0-0) gap(forbidden *.x0-0) p.x2", "gap(forbidden *.x0-0) gap(forbidden p.*0-0) p.x2"}, said)
		time.Sleep(time.Second)
		require.NoError(k, s.Renew(token(time.Minute), only()))
		k.publish("p.x")
		require.Equal(k, "gap(forbidden p.>0-0)", k.poll(s, 4))
		require.Empty(k, subscriptionsOf(s))
	})
}

// What was sent but not acked is not sent again once it is not permitted.
func TestUnackedMessagesThatAreNotPermittedBecomeGaps(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.openAs(token(time.Minute), "a")
		k.publishN("a", 2)
		require.Equal(k, "a1 a2", k.poll(s, 0))
		k.publish("a") // queued
		synctest.Wait()
		time.Sleep(time.Second)
		require.NoError(k, s.Renew(token(time.Minute), only()))
		require.Equal(k, "gap(forbidden a0-1) gap(forbidden a1-2) gap(forbidden a2-3)", k.poll(s, 0))
	})
}

// Renewals whose gaps nobody fetches end the session, not the memory.
func TestRenewalsAreBounded(t *testing.T) {
	story(t, broker.Config{}, Config{Subscriptions: 2}, func(k *kit) {
		s := k.openAs(token(time.Minute))
		var err error
		for i := 0; i < 10 && err == nil; i++ {
			time.Sleep(time.Second)
			_, err = s.Change(k.starts("a"), nil, nil)
			if err == nil {
				err = s.Renew(token(time.Minute), only())
			}
			require.LessOrEqual(k, len(s.notices), 3)
		}
		require.ErrorIs(k, err, problem.New(wire.CodeSessionEnded, "", ""))
	})
}

// A change that the session's grant does not permit adds and removes nothing.
func TestAChangeNeedsTheGrantOfTheSession(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		weak := token(time.Minute)
		s := k.openAs(weak, "a")
		allowed := func(g *auth.Grant, name string) bool { return g != weak || name != "secret" }
		_, err := s.Change(k.starts("b", "secret"), []string{"a"}, allowed)
		require.ErrorIs(k, err, problem.New(wire.CodeForbidden, "", ""))
		require.Len(k, subscriptionsOf(s), 1)
		require.False(k, k.broker.Has("b"))
		_, err = s.Change(k.starts("b"), []string{"a"}, allowed)
		require.NoError(k, err)
		time.Sleep(time.Second)
		require.NoError(k, s.Renew(token(time.Minute), anything))
		_, err = s.Change(k.starts("secret"), nil, allowed)
		require.NoError(k, err)
	})
}

// revocable is a configuration in which the tokens of ann can be revoked.
func revocable() (c Config, revoke func()) {
	revoked := new(atomic.Bool)
	return Config{Revoked: func(g *auth.Grant) bool { return g.Subject == "ann" && revoked.Load() }}, func() { revoked.Store(true) }
}

// Revocation ends the sessions of one principal, parked or not, and no others.
func TestRevocationEndsSessions(t *testing.T) {
	cfg, revoke := revocable()
	story(t, broker.Config{}, cfg, func(k *kit) {
		s, idle, other := k.openAs(token(time.Minute), "a"), k.openAs(token(time.Minute), "a"), k.open("a")
		stateless, _, err := k.registry.OpenEphemeral(Opening{Grant: token(time.Minute), Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		waiting, polls, others := k.park(s, 0), k.park(stateless, 0), k.park(other, 0)
		require.Zero(k, k.registry.EndRevoked())
		revoke()
		require.Equal(k, 3, k.registry.EndRevoked())
		waiting.wantProblem(wire.CodeSessionEnded)
		polls.wantProblem(wire.CodeUnauthorized)
		_, err = k.tryPoll(idle, 0, everything)
		require.ErrorIs(k, err, problem.New(wire.CodeSessionEnded, "", ""))
		k.publish("a")
		others.wantFrames("a1")
		require.InDelta(k, 2, testutil.ToFloat64(k.registry.metrics.SessionsEnded.WithLabelValues("revoked")), 0)
		require.Zero(k, k.registry.EndRevoked())
	})
}

// A session is renewed while its old grant is revoked. It has another grant by then, and stays.
func TestARevocationEndsNoSessionThatWasRenewed(t *testing.T) {
	var old *auth.Grant
	var renew func()
	cfg := Config{Revoked: func(g *auth.Grant) bool {
		if g == old {
			renew()
		}
		return g == old
	}}
	story(t, broker.Config{}, cfg, func(k *kit) {
		s := k.openAs(token(time.Minute), "a")
		time.Sleep(time.Second)
		fresh := token(time.Minute)
		old = s.Grant()
		renew = sync.OnceFunc(func() { require.NoError(k, s.Renew(fresh, anything)) })
		require.Zero(k, k.registry.EndRevoked())
		require.Same(k, fresh, s.Grant())
		waiting := k.park(s, 0)
		k.publish("a")
		waiting.wantFrames("a1")
	})
}

// A client whose token is revoked while its session opens, or is renewed, has none.
func TestARevokedGrantGetsNoSession(t *testing.T) {
	cfg, revoke := revocable()
	story(t, broker.Config{}, cfg, func(k *kit) {
		older := token(time.Minute)
		older.Subject = "" // not revoked
		s := k.openAs(older, "a")
		revoke()
		ended := problem.New(wire.CodeSessionEnded, "", "")
		_, _, err := k.registry.Open(k.Context(), Opening{Grant: token(time.Minute), Topics: k.starts("a")}, time.Now())
		require.ErrorIs(k, err, ended)
		_, _, err = k.registry.OpenEphemeral(Opening{Grant: token(time.Minute), Topics: k.starts("a")}, time.Now())
		require.ErrorIs(k, err, problem.New(wire.CodeUnauthorized, "", ""))
		time.Sleep(time.Second)
		require.ErrorIs(k, s.Renew(token(time.Minute), anything), ended)
		require.Zero(k, k.registry.List(10, ByLag, time.Now()).Open)
		require.Zero(k, k.registry.ephemeral.Load())
	})
}

// An operator ends one session by its number.
func TestAnOperatorEndsASession(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, other := k.open("a"), k.open("a")
		waiting, others := k.park(s, 0), k.park(other, 0)
		list := k.registry.List(10, ByIdle, time.Now())
		require.Equal(k, s.number, list.Sessions[0].Number)
		require.True(k, k.registry.EndNumber(s.number))
		waiting.wantProblem(wire.CodeSessionEnded)
		require.False(k, k.registry.EndNumber(s.number))
		require.False(k, k.registry.EndNumber(0))
		k.publish("a")
		others.wantFrames("a1")
	})
}
