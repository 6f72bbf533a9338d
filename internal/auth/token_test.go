package auth

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAGrantHasWhatItsTokenSays(t *testing.T) {
	a := newAuthority(t, func(c *Config) {
		c.Issuer, c.Audience, c.Type, c.PublicClaims = "https://login.example", "chat", "at+jwt", []string{"name", "picture", "age"}
	})
	now := time.Now()
	g := wantAccepted(t, a, token(good("jti", "t1", "iss", "https://login.example", "aud", []string{"other", "chat"}, "age", 7, "name", "Älice",
		"nbf", now.Unix()-5, "exp", float64(now.Unix()+600)+0.5, "email", "a@example"), "typ", "application/AT+JWT"))
	require.Equal(t, "alice", g.Subject)
	require.Equal(t, "t1", g.TokenID)
	require.Equal(t, now.Unix(), g.Issued.Unix())
	require.Equal(t, time.Unix(now.Unix()+600, 5e8), g.Expires)
	require.Equal(t, `{"name":"Älice","age":7}`, string(g.Claims))
	require.NoError(t, g.Allow(Subscribe, "chat.42"))
	require.NoError(t, g.Allow(Subscribe, "inbox.alice"))
	require.Error(t, g.Allow(Subscribe, "inbox.bob"))
	require.Error(t, g.Allow(Publish, "chat.42"))

	g = wantAccepted(t, newAuthority(t, nil), token(good("pubsub", nil, "name", "n")))
	require.Nil(t, g.Claims)
	require.Error(t, g.Allow(Subscribe, "chat.42"), "without the claim a token grants nothing")
}

// What a token says is refused, one claim or header after the other.
func TestEveryRefusal(t *testing.T) {
	now := time.Now().Unix()
	part := base64.RawURLEncoding.EncodeToString
	for _, tt := range []struct {
		name  string
		token string
		code  wire.Code
		words string
	}{
		{"not a token", "hello", wire.CodeUnauthorized, "1 parts"},
		{"four parts", "a.b.c.d", wire.CodeUnauthorized, "4 parts"},
		{"encrypted", "a.b.c.d.e", wire.CodeUnauthorized, "encrypted"},
		{"too long", token(good("x", longText(6200))), wire.CodeUnauthorized, "at most 8192"},
		{"padding", token(good()) + "=", wire.CodeUnauthorized, "base64url"},
		{"a line break", strings.Replace(token(good()), ".", ".\n", 1), wire.CodeUnauthorized, "base64url"},
		{"spare bits", token(good())[:len(token(good()))-1] + "_", wire.CodeUnauthorized, "base64url"},
		{"header is not JSON", raw("hello-header", claimsText(good())), wire.CodeUnauthorized, "header is not a JSON object"},
		{"header has a member twice", raw(`{"alg":"EdDSA","alg":"EdDSA"}`, claimsText(good())), wire.CodeUnauthorized, "appears once"},
		{"header has a member twice in depth", raw(`{"alg":"EdDSA","x":{"a1":1,"a1":2}}`, claimsText(good())), wire.CodeUnauthorized, "appears once"},
		{"header with half a character", raw("{\"alg\":\"EdDSA\",\"x\":\"\xff\"}", claimsText(good())), wire.CodeUnauthorized, "UTF-8"},
		{"header has something after it", raw(`{"alg":"EdDSA"}{}`, claimsText(good())), wire.CodeUnauthorized, "header is not a JSON object"},
		{"header is null", raw(`null`, claimsText(good())), wire.CodeUnauthorized, "header is not a JSON object"},
		{"alg is a number", raw(`{"alg":5}`, claimsText(good())), wire.CodeUnauthorized, "not a string"},
		{"no alg", raw(`{"typ":"JWT"}`, claimsText(good())), wire.CodeUnauthorized, "not signed"},
		{"alg none", part([]byte(`{"alg":"none"}`)) + "." + part([]byte(claimsText(good()))) + ".", wire.CodeUnauthorized, "not signed"},
		{"alg None", raw(`{"alg":"None"}`, claimsText(good())), wire.CodeUnauthorized, "not signed"},
		{"alg of no key", sign(jose.ES256, p256(), good(), "typ", "at+jwt"), wire.CodeUnauthorized, "algorithm"},
		{"crit", raw(`{"alg":"EdDSA","crit":["exp"],"exp":1}`, claimsText(good())), wire.CodeUnauthorized, "crit"},
		{"b64", raw(`{"alg":"EdDSA","b64":false}`, claimsText(good())), wire.CodeUnauthorized, "b64"},
		{"nested", raw(`{"alg":"EdDSA","cty":"JWT"}`, token(good())), wire.CodeUnauthorized, "nested"},
		{"type", token(good(), "typ", "id+jwt"), wire.CodeUnauthorized, "auth.type"},
		{"other key", sign(jose.EdDSA, otherEd(), good(), "typ", "at+jwt"), wire.CodeUnauthorized, "signature"},
		{"changed", token(good(), "typ", "at+jwt")[:40] + "A" + token(good(), "typ", "at+jwt")[41:], wire.CodeUnauthorized, ""},
		{"no signature", strings.TrimRight(token(good(), "typ", "at+jwt"), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"), wire.CodeUnauthorized, "signature"},
		{"claims are a list", at(`[]`), wire.CodeUnauthorized, "claims are not a JSON object"},
		{"a claim twice", at(strings.Replace(claimsText(good()), "{", `{"sub":"someone",`, 1)), wire.CodeUnauthorized, "appears once"},
		{"a claim twice in depth", at(strings.Replace(claimsText(good()), "{", `{"x":[{"first":1,"first":2}],`, 1)), wire.CodeUnauthorized, "appears once"},
		{"issuer", at(ours("iss", "https://other.example")), wire.CodeUnauthorized, "issuer"},
		{"no issuer", at(ours("iss", nil)), wire.CodeUnauthorized, "issuer"},
		{"issuer is a list", at(ours("iss", []string{"https://login.example"})), wire.CodeUnauthorized, "issuer"},
		{"audience", at(ours("aud", "other-service")), wire.CodeUnauthorized, "audience"},
		{"audiences", at(ours("aud", []string{"other-service", "chats"})), wire.CodeUnauthorized, "audience"},
		{"no audience", at(ours("aud", nil)), wire.CodeUnauthorized, "audience"},
		{"audience is a number", at(ours("aud", 5)), wire.CodeUnauthorized, "aud in the token"},
		{"no subject", at(ours("sub", nil)), wire.CodeUnauthorized, "sub in the token"},
		{"empty subject", at(ours("sub", "")), wire.CodeUnauthorized, "sub in the token"},
		{"subject is a number", at(ours("sub", 5)), wire.CodeUnauthorized, "sub in the token"},
		{"long subject", at(ours("sub", longText(129))), wire.CodeUnauthorized, "1 to 128 bytes"},
		{"subject with a line break", at(ours("sub", "alice\nroot")), wire.CodeUnauthorized, "control characters"},
		{"jti is a number", at(ours("jti", 5)), wire.CodeUnauthorized, "jti"},
		{"long jti", at(ours("jti", longText(129))), wire.CodeUnauthorized, "jti"},
		{"no exp", at(ours("exp", nil)), wire.CodeUnauthorized, "exp is missing"},
		{"no iat", at(ours("iat", nil)), wire.CodeUnauthorized, "iat is missing"},
		{"exp is text", at(ours("exp", "tomorrow")), wire.CodeUnauthorized, "exp in the token is not a number"},
		{"exp is null", at(strings.Replace(claimsText(ours("exp", nil)), "{", `{"exp":null,`, 1)), wire.CodeUnauthorized, "exp in the token is not a number"},
		{"exp is huge", at(strings.Replace(claimsText(ours("exp", nil)), "{", `{"exp":1e300,`, 1)), wire.CodeUnauthorized, "exp in the token is not a number"},
		{"iat is negative", at(ours("iat", -1)), wire.CodeUnauthorized, "iat in the token is not a number"},
		{"valid for too long", at(ours("iat", now, "exp", now+24*3600+1)), wire.CodeUnauthorized, "token_max_age"},
		{"expires before it was issued", at(ours("iat", now, "exp", now)), wire.CodeUnauthorized, "expires before"},
		{"issued in the future", at(ours("iat", now+15)), wire.CodeUnauthorized, "in the future"},
		{"not yet valid", at(ours("nbf", now+15)), wire.CodeUnauthorized, "nbf"},
		{"nbf is text", at(ours("nbf", "soon")), wire.CodeUnauthorized, "nbf in the token"},
		{"rights", at(ours("pubsub", "all-of-them")), wire.CodeUnauthorized, "pubsub"},
		{"unknown right", at(ours("pubsub", []any{map[string]any{"topics": []string{"chat.1"}, "allow": []string{"everything"}}})), wire.CodeUnauthorized, "pubsub"},
		{"public claims", at(ours("name", longText(256-len(`{"name":""}`)+1))), wire.CodeUnauthorized, "got 257"},
		{"expired", at(ours("iat", now-700, "exp", now-100)), wire.CodeTokenExpired, "expired 1m4"},
		{"expired now", at(ours("iat", now-700, "exp", now)), wire.CodeTokenExpired, "expired"},
		{"expired, and another issuer", at(ours("iat", now-700, "exp", now-100, "iss", "other-issuer")), wire.CodeUnauthorized, "issuer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAuthority(t, func(c *Config) {
				c.Issuer, c.Audience, c.Type, c.PublicClaims = "https://login.example", "chat", "at+jwt", []string{"name"}
			})
			wantRefused(t, a, tt.token, tt.code, tt.words)
			remembered, _ := a.tokens.Held()
			require.Zero(t, remembered, "a refusal is not remembered")
		})
	}
}

// ours are claims that the authority of TestEveryRefusal accepts, but for the changes.
func ours(change ...any) map[string]any {
	return good(append([]any{"iss", "https://login.example", "aud", "chat"}, change...)...)
}

// at returns a token of the type that the authority of TestEveryRefusal accepts.
func at(claims any) string { return token(claims, "typ", "at+jwt") }

// Values at their bounds are accepted.
func TestBoundsOfTokens(t *testing.T) {
	a := newAuthority(t, func(c *Config) { c.PublicClaims = []string{"name"} })
	now := time.Now().Unix()
	for _, claims := range []map[string]any{
		good("sub", longText(128)), good("sub", "ä.> *"), good("jti", longText(128)), good("exp", now+24*3600),
		good("iat", now+9), good("nbf", now+9), good("iss", 5), good("exp", now+60),
		good("name", longText(256-len(`{"name":""}`))),
	} {
		wantAccepted(t, a, token(claims))
	}
	wantRefused(t, a, token(good("aud", "chat")), wire.CodeUnauthorized, "auth.audience is not set")
	long := good()
	long["x"] = longText(6000 - len(claimsText(good())))
	require.Less(t, len(token(long)), maxTokenBytes)
	wantAccepted(t, a, token(long))
}

// Each way to choose how, or with which key, a token is verified.
func TestATokenDoesNotChooseItsKeyOrAlgorithm(t *testing.T) {
	rsaPEM := publicPEM(rsa2048())
	block, _ := pem.Decode([]byte(rsaPEM))
	a := newAuthority(t, func(c *Config) {
		c.Keys = append(c.Keys, file(t, rsaPEM), file(t, jwkOf(p256().Public(), "kid", "ec")), file(t, jwkOf(theSecret, "kid", "hmac")))
	})
	der := must(x509.MarshalPKIXPublicKey(rsa2048().Public()))
	for name, secret := range map[string][]byte{
		"the file": []byte(rsaPEM), "the file without the last line break": []byte(strings.TrimSpace(rsaPEM)), "DER": der, "the block": block.Bytes,
		"PKCS 1": x509.MarshalPKCS1PublicKey(&rsa2048().PublicKey), "Ed25519": edKey().Public().(ed25519.PublicKey),
	} {
		wantRefused(t, a, sign(jose.HS256, secret, good()), wire.CodeUnauthorized, "signature")
		wantRefused(t, a, sign(jose.HS256, secret, good(), "kid", "ec"), wire.CodeUnauthorized, "algorithm")
		require.NotEmpty(t, name)
	}
	wantRefused(t, a, sign(jose.PS256, rsa2048(), good()), wire.CodeUnauthorized, "algorithm")
	wantRefused(t, a, sign(jose.RS512, rsa2048(), good()), wire.CodeUnauthorized, "algorithm")
	wantRefused(t, a, sign(jose.ES384, p384(), good(), "kid", "ec"), wire.CodeUnauthorized, "algorithm")
	wantRefused(t, a, sign(jose.HS256, theSecret, good(), "kid", "ec"), wire.CodeUnauthorized, "algorithm")
	wantRefused(t, a, sign(jose.HS256, theSecret, good(), "kid", "other"), wire.CodeUnauthorized, "key id")

	other := jose.JSONWebKey{Key: otherEd().Public()}
	wantRefused(t, a, sign(jose.EdDSA, otherEd(), good(), "jwk", other), wire.CodeUnauthorized, "signature")
	wantRefused(t, a, sign(jose.EdDSA, otherEd(), good(), "jku", "http://127.0.0.1:1/", "x5u", "http://127.0.0.1:1/"), wire.CodeUnauthorized, "signature")
	wantAccepted(t, a, token(good(), "jwk", other, "jku", "http://127.0.0.1:1/", "x5u", "http://127.0.0.1:1/"))

	wantAccepted(t, a, sign(jose.RS256, rsa2048(), good()))
	wantAccepted(t, a, sign(jose.RS256, rsa2048(), good(), "kid", "any, since the file of the key has none"))
	wantAccepted(t, a, sign(jose.ES256, p256(), good(), "kid", "ec"))
	wantAccepted(t, a, sign(jose.ES256, p256(), good()))
	wantAccepted(t, a, sign(jose.HS256, theSecret, good(), "kid", "hmac"))
	wantRefused(t, a, sign(jose.ES256, p256(), good(), "kid", "another"), wire.CodeUnauthorized, "key id")
}

// A token without a key id is tried with a few keys only.
func TestAnInvalidTokenCostsAFewVerifications(t *testing.T) {
	keys := make([]string, maxTries)
	a := newAuthority(t, func(c *Config) {
		for i := range keys {
			keys[i] = publicPEM(edKey())
		}
		c.Keys = []string{file(t, strings.Join(keys, ""))}
	})
	wantAccepted(t, a, token(good()))
	a = newAuthority(t, func(c *Config) { c.Keys = []string{file(t, strings.Join(append(keys, publicPEM(edKey())), ""))} })
	wantRefused(t, a, token(good()), wire.CodeUnauthorized, "more than 4 keys")
}
