package auth

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
)

// Each kind of key signs tokens that a daemon with its public part accepts.
func TestIssuedTokensAreAccepted(t *testing.T) {
	type pair struct{ private, public string }
	pairs := map[string]pair{
		"PKCS 1":       {pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsa2048())), publicPEM(rsa2048())},
		"SEC 1":        {pemOf("EC PARAMETERS", []byte{6}) + pemOf("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(p384()))), publicPEM(p384())},
		"JWK":          {jwkOf(p256(), "kid", "k"), jwkOf(p256().Public(), "kid", "k")},
		"JWK of PS384": {jwkOf(rsa2048(), "alg", "PS384"), jwkOf(rsa2048().Public(), "alg", "PS384")},
	}
	for _, algorithm := range []string{"EdDSA", "ES256", "ES384", "RS256", "HS256"} {
		private, public, err := GenerateKey(algorithm)
		require.NoError(t, err)
		pairs[algorithm] = pair{string(private), string(public)}
	}
	for name, keys := range pairs {
		a := newAuthority(t, func(c *Config) {
			c.Keys = []string{file(t, keys.public)}
			c.Issuer, c.Audience, c.Type, c.PublicClaims = "i", "a", "at+jwt", []string{"name"}
		})
		issued, err := Issue([]byte(keys.private), NewToken{
			Subject: "alice", ID: "1", Issuer: "i", Audience: "a", Type: "at+jwt", Issued: time.Now(), TTL: time.Hour,
			Rights: []byte(rights("inbox.$sub", "subscribe")), Claims: map[string]jsontext.Value{"name": jsontext.Value(`"Alice"`)},
		})
		require.NoError(t, err, name)
		g := wantAccepted(t, a, issued)
		require.NoError(t, g.Allow(Subscribe, "inbox.alice"), name)
		require.Equal(t, `{"name":"Alice"}`, string(g.Claims))
		require.Equal(t, "1", g.TokenID)
	}
}

func TestTokensThatAreNotIssued(t *testing.T) {
	key := pemOf("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(edKey())))
	valid := NewToken{Subject: "alice", Issued: time.Now(), TTL: time.Hour}
	for _, tt := range []struct {
		key    string
		change func(*NewToken)
		want   string
	}{
		{"", nil, "holds no private key: want"},
		{publicPEM(edKey()), nil, "holds no private key: want"},
		{jwkOf(edKey().Public()), nil, "not a JWK that can sign"},
		{`{"keys":[]}`, nil, "not one JWK"},
		{jwkOf(theSecret[:16]), nil, "a secret of 128 bits"},
		{pemOf("PRIVATE KEY", []byte{1}), nil, "the key"},
		{key, func(n *NewToken) { n.Subject = "a\nb" }, "sub in the token"},
		{key, func(n *NewToken) { n.TTL = 0 }, "expires before"},
		{key, func(n *NewToken) { n.Rights = []byte(rights("a..b", "publish")) }, "empty token"},
		{key, func(n *NewToken) { n.Claims = map[string]jsontext.Value{"sub": jsontext.Value(`"bob"`)} }, "the claim sub is given twice"},
		{key, func(n *NewToken) {
			n.Claims = map[string]jsontext.Value{"x": jsontext.Value(`"` + longText(7000) + `"`)}
		}, "at most 8192"},
	} {
		n := valid
		if tt.change != nil {
			tt.change(&n)
		}
		_, err := Issue([]byte(tt.key), n)
		require.ErrorContains(t, err, tt.want)
	}
	_, _, err := GenerateKey("none")
	require.EqualError(t, err, "use one of ES256, ES384, EdDSA, RS256, HS256")
}
