package httpapi

import (
	"bufio"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// secretKeeper rejects the credentials bad and identifies all others as ann. She has
// no right on the topic secret.
type secretKeeper struct{ auth.Open }

func (secretKeeper) Identify(c auth.Credentials, _ bool) (*auth.Grant, error) {
	if c.Authorization == "bad" {
		return nil, problem.New(wire.CodeUnauthorized, "say who you are", "unknown")
	}
	rights, err := auth.ParseRights([]byte(`[{"topics":["a","b","lobby.>"],"allow":["subscribe","publish","history","presence","delete"]}]`), "")
	return &auth.Grant{Subject: "ann", Rights: rights}, err
}

// everyName accepts any name in Authorization and allows everything.
type everyName struct{ auth.Open }

func (everyName) Identify(c auth.Credentials, _ bool) (*auth.Grant, error) {
	return &auth.Grant{Subject: c.Authorization, Rights: auth.Everything}, nil
}

// powerless is an authority without any rights.
type powerless struct{ auth.Open }

func (powerless) Identify(c auth.Credentials, _ bool) (*auth.Grant, error) {
	return &auth.Grant{Subject: c.Authorization}, nil
}

// A caller that may do nothing announces a large body, and never sends it. The answer does
// not wait for it.
func TestACallerWithoutRightsIsRefusedBeforeItsBody(t *testing.T) {
	for _, path := range []string{"/v1/sessions", "/v1/poll", "/v1/messages"} {
		for headers, status := range map[string]string{"": "401", "Authorization: ann\r\n": "403"} {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, lanetest.Settings{Authority: powerless{}})
				nc := k.dialFrom(1)
				defer nc.Close()
				go fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n", path, headers)
				begun := time.Now()
				line, err := bufio.NewReader(nc).ReadString('\n')
				require.NoError(t, err)
				require.Contains(t, line, " "+status+" ", path)
				require.Zero(t, time.Since(begun), path)
			})
		}
	}
}

// An empty list would hide from a caller without credentials that it lacks them. A principal gets
// the list, even an empty one.
func TestTopicsAreNotListedToACallerThatMayReadNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Authority: powerless{}})
		p := k.WantProblem(wire.CodeUnauthorized, "GET", "/v1/topics", "")
		require.Contains(t, p.Detail, "may not subscribe to any topic")
		_, list := k.Get("GET", "/v1/topics", "", "Authorization: ann")
		require.JSONEq(t, `{"topics":[]}`, list)
	})
}

func TestEveryAccessToATopicChecksPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Authority: secretKeeper{}})
		_, err := k.Parts.Broker.Join(wire.Start{Topic: "secret"}, nil, true)
		require.NoError(t, err)
		s := k.Open(`{"topics":["a"]}`).Session
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
			k.WantProblem(wire.CodeForbidden, c[0], c[1], c[2], lanetest.JSONType)
			k.WantProblem(wire.CodeUnauthorized, c[0], c[1], c[2], lanetest.JSONType, "Authorization: bad")
		}
		_, list := k.Get("GET", "/v1/topics", "")
		require.NotContains(t, list, "secret")
		require.Contains(t, list, `"topic":"a"`)
	})
}
