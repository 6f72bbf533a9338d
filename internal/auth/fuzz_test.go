package auth

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Whatever is sent as a token: a refusal has a reason and no part of the token, and only the
// daemon's keys make a grant.
func FuzzToken(f *testing.F) {
	a := newAuthority(f, nil)
	valid := token(good())
	for _, seed := range []string{
		"", ".", "..", "a.b.c", valid, valid + ".", "." + valid, strings.Replace(valid, ".", "..", 1), valid[:len(valid)-1],
		sign(jose.EdDSA, otherEd(), good()), sign(jose.HS256, theSecret, good()), raw(`{"alg":"none"}`, `{}`),
		raw(`{"alg":"EdDSA","crit":[]}`, claimsText(good())), "e30.e30.e30", strings.Repeat("A", maxTokenBytes+1),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		g, err := a.byToken(secret, time.Now(), true)
		if g != nil {
			require.NoError(t, err)
			require.Equal(t, valid, secret)
			return
		}
		var refused *refusal
		require.ErrorAs(t, err, &refused)
		require.NotEmpty(t, refused.Detail)
		require.NotEmpty(t, refused.Remedy)
		require.Less(t, len(refused.Problem.Error()), 300)
	})
}

// Whatever a token's header and claims are, if they are signed: a grant keeps all bounds.
func FuzzClaims(f *testing.F) {
	a := newAuthority(f, func(c *Config) { c.PublicClaims = []string{"name", "sub"} })
	const header = `{"alg":"EdDSA"}`
	f.Add(header, claimsText(good("name", "Alice", "jti", "1", "nbf", 5)))
	f.Add(`{"alg":"EdDSA","kid":"x","typ":"JWT","jwk":{"kty":"OKP"}}`, claimsText(good()))
	f.Add(header, `{"sub":"a","iat":1e9,"exp":1000000000.5,"name":[[[["\ud800"]]]]}`)
	f.Add(header, `{"sub":"a","sub":"b"}`)
	f.Add(header, strings.Replace(claimsText(good("exp", nil)), "{", `{"exp":1e400,`, 1))
	f.Add(`{"alg":"EdDSA","alg":"none"}`, "null")
	f.Fuzz(func(t *testing.T, header, claims string) {
		now := time.Now()
		g, err := a.cfg.verify(raw(header, claims), a.trust.Load().keys, now)
		if err != nil {
			var refused *refusal
			require.ErrorAs(t, err, &refused)
			return
		}
		require.True(t, isSubject(g.Subject))
		require.True(t, g.Expires.After(now) && g.Expires.After(g.Issued) && g.Expires.Sub(g.Issued) <= DefaultTokenMaxAge)
		require.False(t, g.Issued.After(now.Add(maxSkew)))
		require.LessOrEqual(t, len(g.TokenID), maxIDBytes)
		require.LessOrEqual(t, len(g.Claims), maxPublicBytes)
		if g.Claims != nil {
			compact, err := wire.CompactJSON(g.Claims)
			require.NoError(t, err)
			require.Equal(t, string(g.Claims), string(compact))
		}
		var read map[string]any // as another reader understands the claims
		require.NoError(t, json.Unmarshal([]byte(claims), &read))
		require.Equal(t, g.Subject, read["sub"])
	})
}

// Whatever a file of keys or a JWKS has: each key has an algorithm that fits it.
func FuzzKeys(f *testing.F) {
	for _, seed := range []string{
		publicPEM(edKey()), publicPEM(p256()), publicPEM(rsa2048()), jwkOf(theSecret), jwkOf(p384().Public(), "kid", "a", "use", "sig"), jwkOf(p256()),
		`{"keys":[` + jwkOf(edKey().Public()) + `,{"kty":"EC"}]}`, `{"kty":"RSA","n":"","e":"AQAB"}`, `{"keys":{}}`, `{"keys":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		local, err := parseKeys(text)
		if err == nil {
			require.NotEmpty(t, local)
		}
		remote, _, _ := parseJWKs(text, publicKeyOfJWK)
		for _, k := range append(local, remote...) {
			possible, err := algorithmsOf(k.material)
			require.NoError(t, err)
			require.Contains(t, possible, k.algorithm)
		}
		for _, k := range remote {
			require.NotContains(t, []jose.SignatureAlgorithm{jose.HS256, jose.HS384, jose.HS512}, k.algorithm)
		}
	})
}
