package session

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// heard records what Events are told.
type heard struct{ told []string }

func (h *heard) SessionOpened(number uint64, principal string) {
	h.told = append(h.told, fmt.Sprintf("%d %s opened", number, principal))
}

func (h *heard) SessionEnded(number uint64, principal, reason string) {
	h.told = append(h.told, fmt.Sprintf("%d %s %s", number, principal, reason))
}

func (h *heard) take() []string {
	told := h.told
	h.told = nil
	return told
}

// Every session of a client is told when it opens and when it ends, once each, with the
// reason. A stateless poll is not, and neither is a session that could not be opened.
func TestEventsHearOfSessions(t *testing.T) {
	h := &heard{}
	cfg := Config{Subscriptions: 2, InactivityTimeout: time.Minute, Events: h}
	revokes := false
	cfg.Revoked = func(*auth.Grant) bool { return revokes }
	story(t, broker.Config{}, cfg, func(k *kit) {
		r, ann, now := k.registry, &auth.Grant{Subject: "ann"}, time.Now()
		open := func(o Opening) *Session {
			o.Grant = ann
			s, _, err := r.Open(context.Background(), o, now)
			require.NoError(k, err)
			return s
		}
		s := open(Opening{})
		r.End(s)
		r.End(s)
		require.Equal(k, []string{"1 ann opened", "1 ann closed"}, h.take())
		connection, _, err := r.OpenEphemeral(Opening{}, now)
		require.NoError(k, err)
		r.End(connection)
		require.Equal(k, []string{"2  opened", "2  closed"}, h.take())
		poll, _, err := r.OpenEphemeral(Opening{Brief: true}, now)
		require.NoError(k, err)
		r.End(poll)
		require.Empty(k, h.take())
		_, _, err = r.Open(context.Background(), Opening{Topics: []wire.Start{{Topic: "a"}, {Topic: "b"}, {Topic: "c"}}}, now)
		require.Error(k, err)
		require.Empty(k, h.take())

		open(Opening{})
		r.Reload(Config{InactivityTimeout: time.Minute}) // Events stay
		time.Sleep(2 * time.Minute)
		r.Sweep(time.Now())
		require.Equal(k, []string{"4 ann opened", "4 ann inactive"}, h.take())
		open(Opening{})
		revokes = true
		r.EndRevoked()
		revokes = false
		require.Equal(k, []string{"5 ann opened", "5 ann revoked"}, h.take())
		open(Opening{})
		r.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(1)
		require.Equal(k, []string{"6 ann opened", "6 ann draining"}, h.take())
		_, _, err = r.Open(context.Background(), Opening{}, now)
		require.Error(k, err)
		require.Empty(k, h.take(), "it did not open")
	})
}
