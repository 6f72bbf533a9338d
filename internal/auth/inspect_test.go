package auth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAnInspectionSaysWhatATokenSays(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	i, err := Inspect(t.Context(), Config{PublicClaims: []string{"name"}}, token(good("iat", now.Unix()-60, "exp", now.Unix()+600, "nbf", "soon",
		"aud", []string{"a", "b"}, "name", "Alice"), "kid", "k1"), now)
	require.NoError(t, err)
	require.False(t, i.Checked)
	require.Equal(t, [][2]string{
		{"algorithm", "EdDSA"}, {"key id", "k1"}, {"subject", "alice"}, {"audience", `["a","b"]`},
		{"issued", "2027-01-15 07:59:00 UTC, 1m0s ago"}, {"not before", "soon"}, {"expires", "2027-01-15 08:10:00 UTC, in 10m0s"},
		{"public claim", "name: Alice"}, {"right", "subscribe on chat.>, inbox.alice"},
	}, i.Says)

	for broken, want := range map[string]string{
		"hello":                        "1 parts",
		"a.b.c":                        "base64url",
		raw(`{"alg":5,"alg":6}`, "{}"): "appears once",
		token(good("pubsub", []any{map[string]any{"topics": []string{"a"}, "allow": []string{"fly"}}})): `not valid: entry 1 of the rights: "fly" is not a right`,
		token(good("pubsub", nil)): "the claim pubsub is missing",
	} {
		i, err := Inspect(t.Context(), Config{}, broken, now)
		require.NoError(t, err)
		require.Contains(t, fmt.Sprint(i.Says), want)
	}
}

// With the keys of a file or of a JWKS, the inspection says what the daemon says.
func TestAnInspectionVerifies(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jwks" {
			fmt.Fprint(w, jwkOf(edKey().Public(), "kid", "one"))
		}
	}))
	defer server.Close()
	for _, cfg := range []Config{{Keys: []string{file(t, publicPEM(edKey()))}}, {JWKS: server.URL + "/jwks"}} {
		cfg.TokenMaxAge = time.Hour
		i, err := Inspect(t.Context(), cfg, token(good(), "kid", "one"), time.Now())
		require.NoError(t, err)
		require.True(t, i.Checked)
		require.Nil(t, i.Refused)
		i, err = Inspect(t.Context(), cfg, token(good("exp", 5, "iat", 1), "kid", "one"), time.Now())
		require.NoError(t, err)
		require.Equal(t, wire.CodeTokenExpired, i.Refused.Code)
	}
	_, err := Inspect(t.Context(), Config{JWKS: server.URL + "/other"}, token(good()), time.Now())
	require.ErrorContains(t, err, "auth.jwks holds no valid JSON")
	_, err = Inspect(t.Context(), Config{Keys: []string{file(t, "")}}, token(good()), time.Now())
	require.ErrorContains(t, err, "holds no key")
}

func TestRightsAreExplained(t *testing.T) {
	rs := must(ParseRights([]byte(`[{"topics":["chat.>","news"],"allow":["subscribe"]},{"topics":["chat.admin.*","inbox.$sub"],"allow":["publish","presence"]}]`), "alice"))
	for _, tt := range []struct {
		right   Right
		name    string
		allowed bool
		why     string
	}{
		{Subscribe, "chat.1", true, `The entry "subscribe on chat.>, news" allows it, by the name "chat.>".`},
		{Publish, "inbox.alice", true, `by the name "inbox.alice".`},
		{Publish, "chat.1", false, `The entry "subscribe on chat.>, news" comes closest: "chat.>" includes it, but the right publish is missing.`},
		{Publish, "chat.admin.x.y", false, `"chat.>" includes it, but the right publish is missing.`},
		{Publish, "inbox.bob", false, `"inbox.alice" does not include "inbox.bob".`},
		{Publish, "chat.*.x", false, `"chat.>" includes it, but the right publish is missing.`},
		{Subscribe, ">", false, `does not include ">", and one name must cover the whole pattern.`},
		{Delete, "orders", false, `does not include "orders", and the right delete is missing.`},
		{Subscribe, "_presence.chat.admin.x", true, `This topic needs the right presence on "chat.admin.x". The entry "publish, presence on chat.admin.*, inbox.alice" allows it`},
	} {
		allowed, why, err := rs.Explain(tt.right, tt.name)
		require.NoError(t, err)
		require.Equal(t, tt.allowed, allowed, tt.name)
		require.Equal(t, rs.allow(tt.right, tt.name), allowed, "as the daemon decides")
		require.Contains(t, why, tt.why)
	}
	_, why, err := Rights{}.Explain(Publish, "a")
	require.NoError(t, err)
	require.Equal(t, "No entry grants anything.", why)
	_, _, err = rs.Explain("fly", "a")
	require.ErrorContains(t, err, "the rights are")
	_, _, err = rs.Explain(Publish, "a..b")
	require.ErrorContains(t, err, "empty token")

	i, err := Inspect(t.Context(), Config{}, token(good("sub", "alice@example.com")), time.Now())
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(i.Note, "Entries with $sub grant nothing"))
}
