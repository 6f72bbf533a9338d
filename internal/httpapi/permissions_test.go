package httpapi

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// secretKeeper rejects the credentials bad and identifies all others as ann. It forbids
// the topic secret.
type secretKeeper struct{ auth.Open }

func (secretKeeper) Identify(c auth.Credentials) (*auth.Grant, error) {
	if c.Authorization == "bad" {
		return nil, wire.NewProblem(wire.CodeUnauthorized, "say who you are", "unknown")
	}
	return &auth.Grant{Subject: "ann"}, nil
}

// everyName accepts any name in Authorization and allows everything.
type everyName struct{ auth.Open }

func (everyName) Identify(c auth.Credentials) (*auth.Grant, error) {
	return &auth.Grant{Subject: c.Authorization}, nil
}

func (secretKeeper) Allow(_ *auth.Grant, _ auth.Right, topic string) error {
	if topic == "secret" {
		return wire.NewProblem(wire.CodeForbidden, "ask for another topic", "not for you")
	}
	return nil
}

func TestEveryAccessToATopicChecksPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{authority: secretKeeper{}})
		_, err := k.cfg.Broker.Join(wire.Start{Topic: "secret"}, nil, true)
		require.NoError(t, err)
		s := k.open(`{"topics":["a"]}`).Session
		for _, c := range [][3]string{
			{"POST", "/v1/topics/secret/messages", "1"},
			{"GET", "/v1/topics/secret/messages", ""},
			{"GET", "/v1/topics/secret", ""},
			{"GET", "/v1/topics/secret/presence", ""},
			{"DELETE", "/v1/topics/secret", ""},
			{"POST", "/v1/sessions", `{"topics":["secret"]}`},
			{"PATCH", "/v1/sessions/" + s, `{"add":["secret"]}`},
			{"GET", "/v1/poll?topic=secret", ""},
			{"POST", "/v1/poll", `{"topics":["a","secret"]}`},
		} {
			k.wantProblem(wire.CodeForbidden, c[0], c[1], c[2], jsonType)
			k.wantProblem(wire.CodeUnauthorized, c[0], c[1], c[2], jsonType, "Authorization: bad")
		}
		_, list := k.get("GET", "/v1/topics", "")
		require.NotContains(t, list, "secret")
		require.Contains(t, list, `"topic":"a"`)
	})
}
