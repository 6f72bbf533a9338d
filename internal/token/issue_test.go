package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// keyPair returns new keys of an algorithm.
func keyPair(t *testing.T, algorithm string) (private, public []byte) {
	t.Helper()
	private, public, err := GenerateKey(algorithm)
	require.NoError(t, err)
	return private, public
}

// publicKey returns the key in a PEM.
func publicKey(t *testing.T, text []byte) any {
	t.Helper()
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	require.NoError(t, err)
	return key
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func publicPEM(k crypto.Signer) string {
	return pemOf("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(k.Public())))
}

func jwkOf(k any, id, algorithm string) string {
	return string(must(jose.JSONWebKey{Key: k, KeyID: id, Algorithm: algorithm}.MarshalJSON()))
}

func rights(topic, allow string) []byte {
	return []byte(`[{"topics":["` + topic + `"],"allow":["` + allow + `"]}]`)
}

// Each kind of key signs tokens that a daemon with its public part accepts.
func TestIssuedTokensAreAccepted(t *testing.T) {
	ofRSA := must(rsa.GenerateKey(rand.Reader, 2048))
	p256, p384 := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	pairs := map[string][2]string{
		"PKCS 1":         {pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(ofRSA)), publicPEM(ofRSA)},
		"SEC 1":          {pemOf("EC PARAMETERS", []byte{6}) + pemOf("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(p384))), publicPEM(p384)},
		"JWK":            {jwkOf(p256, "k", ""), jwkOf(p256.Public(), "k", "")},
		"JWK with more":  {strings.Replace(jwkOf(p256, "k", ""), "{", `{"x5c":["no certificate"],"use":5,`, 1), jwkOf(p256.Public(), "k", "")},
		"JWK of PS384":   {jwkOf(ofRSA, "", "PS384"), jwkOf(ofRSA.Public(), "", "PS384")},
		"without the id": {jwkOf(p256, "", ""), jwkOf(p256.Public(), "", "")},
	}
	for _, algorithm := range []string{"EdDSA", "ES256", "ES384", "RS256", "HS256"} {
		private, public := keyPair(t, algorithm)
		pairs[algorithm] = [2]string{string(private), string(public)}
	}
	for name, keys := range pairs {
		a, err := auth.New(auth.Config{
			Keys: []string{fileOf(t, []byte(keys[1]))}, Issuer: "i", Audience: "a", Type: "at+jwt", PublicClaims: []string{"name"}, TokenMaxAge: time.Hour,
		}, metrics.New("test"), zap.NewNop())
		require.NoError(t, err, name)
		issued, err := Issue([]byte(keys[0]), Draft{
			Subject: "alice", ID: "1", Issuer: "i", Audience: "a", Type: "at+jwt", Issued: time.Now(), TTL: time.Hour,
			Rights: rights("inbox.$sub", "subscribe"), Claims: map[string]jsontext.Value{"name": jsontext.Value(`"Alice"`)},
		})
		require.NoError(t, err, name)
		g, err := a.Identify(auth.Credentials{Token: issued}, true)
		require.NoError(t, err, name)
		require.NoError(t, g.Allow(auth.Subscribe, "inbox.alice"), name)
		require.Equal(t, `{"name":"Alice"}`, string(g.Claims))
		require.Equal(t, "1", g.TokenID)
	}
}

func TestTokensThatAreNotIssued(t *testing.T) {
	private, public := keyPair(t, "EdDSA")
	key := string(private)
	valid := Draft{Subject: "alice", Issued: time.Now(), TTL: time.Hour}
	for _, tt := range []struct {
		key    string
		change func(*Draft)
		want   string
	}{
		{"", nil, "holds no private key: want"},
		{string(public), nil, "holds no private key: want"},
		{jwkOf(publicKey(t, public), "", ""), nil, "not a JWK that can sign"},
		{`{"kty":5}`, nil, "not a JWK that can sign"},
		{`{"kty":"oct","k":"AAAA","k":"AAAA"}`, nil, "not one JWK"},
		{`{"keys":[]}`, nil, "not one JWK"},
		{jwkOf(make([]byte, 16), "", ""), nil, "a secret of 128 bits"},
		{pemOf("PRIVATE KEY", []byte{1}), nil, "the key"},
		{key, func(d *Draft) { d.Subject = "a\nb" }, "sub in the token"},
		{key, func(d *Draft) { d.TTL = 0 }, "expires before"},
		{key, func(d *Draft) { d.Rights = rights("a..b", "publish") }, "empty segment"},
		{key, func(d *Draft) { d.Claims = map[string]jsontext.Value{"sub": jsontext.Value(`"bob"`)} }, "the claim sub is given twice"},
		{key, func(d *Draft) {
			d.Claims = map[string]jsontext.Value{"x": jsontext.Value(`"` + strings.Repeat("x", 7000) + `"`)}
		}, "at most 8192"},
	} {
		d := valid
		if tt.change != nil {
			tt.change(&d)
		}
		_, err := Issue([]byte(tt.key), d)
		require.ErrorContains(t, err, tt.want)
	}
	_, _, err := GenerateKey("none")
	require.EqualError(t, err, "use one of ES256, ES384, EdDSA, RS256, HS256")
}
