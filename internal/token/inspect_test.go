package token

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// raw returns a token that nobody has signed.
func raw(header, claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(header)) + "." + encode([]byte(claims)) + ".AAAA"
}

func inspect(t *testing.T, token string, now time.Time) Inspection {
	t.Helper()
	i, err := Inspect(t.Context(), auth.Config{PublicClaims: []string{"name"}}, token, now)
	require.NoError(t, err)
	require.False(t, i.Checked)
	return i
}

func TestAnInspectionSaysWhatATokenSays(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	i := inspect(t, raw(`{"alg":"EdDSA","kid":"k1"}`, `{"sub":"alice","iat":1799999940,"exp":1800000600.5,"nbf":"soon","aud":["a","b"],"name":"Alice",
		"pubsub":[{"topics":["chat.>","inbox.$sub"],"allow":["subscribe"]}]}`), now)
	require.Equal(t, [][2]string{
		{"algorithm", "EdDSA"}, {"key id", "k1"}, {"subject", "alice"}, {"audience", `["a","b"]`},
		{"issued", "2027-01-15 07:59:00 UTC, 1m0s ago"}, {"not before", "soon"}, {"expires", "2027-01-15 08:10:00 UTC, in 10m1s"},
		{"public claim", "name: Alice"}, {"right", "subscribe on chat.>, inbox.alice"},
	}, i.Says)
	require.Empty(t, i.Note)

	for broken, want := range map[string]string{
		"hello":                        "1 parts",
		"a.b.c":                        "base64url",
		raw(`{"alg":5,"alg":6}`, "{}"): "appears once",
		raw("{}", "null"):              "not a JSON object",
		raw("{}", `{"exp":1e300}`):     "expires 1e300",
		raw("{}", `{"pubsub":[{"topics":["a"],"allow":["fly"]}]}`): `not valid: entry 1 of the rights: "fly" is not a right`,
		raw("{}", "{}"): "the claim pubsub is missing",
	} {
		require.Contains(t, fmt.Sprint(inspect(t, broken, now).Says), want)
	}
	for subject, noted := range map[string]bool{"alice@example.com": true, "a.b": true, "": true, "alice": false} {
		i := inspect(t, raw("{}", `{"sub":"`+subject+`","pubsub":[{"topics":["inbox.$sub"],"allow":["subscribe"]}]}`), now)
		require.Equal(t, noted, strings.HasPrefix(i.Note, "Entries with $sub grant nothing"), subject)
	}
}

// With the keys of a file or of a JWKS, the inspection says what the daemon says.
func TestAnInspectionVerifies(t *testing.T) {
	private, public := keyPair(t, "ES256")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jwks" {
			text, err := jose.JSONWebKey{Key: publicKey(t, public), KeyID: "one"}.MarshalJSON()
			require.NoError(t, err)
			_, _ = w.Write(text)
		}
	}))
	defer server.Close()
	issue := func(issued time.Time) string {
		signed, err := Issue(private, Draft{Subject: "alice", Issued: issued, TTL: time.Minute})
		require.NoError(t, err)
		return signed
	}
	for _, cfg := range []auth.Config{{Keys: []string{fileOf(t, public)}}, {JWKS: server.URL + "/jwks"}} {
		cfg.TokenMaxAge = time.Hour
		i, err := Inspect(t.Context(), cfg, issue(time.Now()), time.Now())
		require.NoError(t, err)
		require.True(t, i.Checked)
		require.Nil(t, i.Refused)
		i, err = Inspect(t.Context(), cfg, issue(time.Now().Add(-time.Hour)), time.Now())
		require.NoError(t, err)
		require.Equal(t, wire.CodeTokenExpired, i.Refused.Code)
	}
	_, err := Inspect(t.Context(), auth.Config{JWKS: server.URL + "/other"}, issue(time.Now()), time.Now())
	require.ErrorContains(t, err, "auth.jwks holds no valid JSON")
	_, err = Inspect(t.Context(), auth.Config{Keys: []string{fileOf(t, nil)}}, issue(time.Now()), time.Now())
	require.ErrorContains(t, err, "holds no key")
}

// fileOf writes a file of the test.
func fileOf(t *testing.T, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}
