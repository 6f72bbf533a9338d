package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/leaktest"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The keys of all tests. Making an RSA key takes long.
var (
	edKey     = sync.OnceValue(func() ed25519.PrivateKey { return must(onlySecond(ed25519.GenerateKey(rand.Reader))) })
	otherEd   = sync.OnceValue(func() ed25519.PrivateKey { return must(onlySecond(ed25519.GenerateKey(rand.Reader))) })
	p256      = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	p384      = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)) })
	rsa2048   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	theSecret = []byte("0123456789abcdef0123456789ABCDEF") // 256 bits
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func onlySecond[A, B any](_ A, b B, err error) (B, error) { return b, err }

// publicPEM returns the public part of a key as a file has it.
func publicPEM(private crypto.Signer) string {
	der := must(x509.MarshalPKIXPublicKey(private.Public()))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// jwkOf returns a key as a JWK, with other members besides.
func jwkOf(material any, members ...any) string {
	m := map[string]any{}
	must(0, json.Unmarshal(must(jose.JSONWebKey{Key: material}.MarshalJSON()), &m))
	for i := 0; i < len(members); i += 2 {
		m[members[i].(string)] = members[i+1]
	}
	return string(must(json.Marshal(m)))
}

// file writes a file of keys and returns its path.
func file(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// good are claims of a valid token.
func good(change ...any) map[string]any {
	now := time.Now().Unix()
	m := map[string]any{
		"sub": "alice", "iat": now, "exp": now + 600,
		"pubsub": []any{map[string]any{"topics": []string{"chat.>", "inbox.$sub"}, "allow": []string{"subscribe"}}},
	}
	for i := 0; i < len(change); i += 2 {
		name := change[i].(string)
		if m[name] = change[i+1]; m[name] == nil {
			delete(m, name)
		}
	}
	return m
}

// sign returns a token with these claims, which are a map, or JSON as text.
func sign(alg jose.SignatureAlgorithm, with any, claims any, headers ...any) string {
	options := &jose.SignerOptions{}
	for i := 0; i < len(headers); i += 2 {
		options.WithHeader(jose.HeaderKey(headers[i].(string)), headers[i+1])
	}
	payload, isText := claims.(string)
	if !isText {
		payload = string(must(json.Marshal(claims)))
	}
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: with}, options))
	return must(must(signer.Sign([]byte(payload))).CompactSerialize())
}

// token returns a token of the usual key.
func token(claims any, headers ...any) string { return sign(jose.EdDSA, edKey(), claims, headers...) }

// raw returns a token of the usual key with this text as its header.
func raw(header, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(edKey(), []byte(text)))
}

func claimsText(m map[string]any) string { return string(must(json.Marshal(m))) }

// newAuthority returns an authority that has the usual key.
func newAuthority(t testing.TB, change func(*Config)) *Authority {
	t.Helper()
	cfg := Config{Keys: []string{file(t, publicPEM(edKey()))}, TokenMaxAge: DefaultTokenMaxAge}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg, metrics.New("test"), zap.NewNop())
	require.NoError(t, err)
	return a
}

// identify returns what the authority says of a token.
func (a *Authority) identify(token string) (*Grant, error) {
	return a.Identify(Credentials{Token: token}, true)
}

func wantAccepted(t *testing.T, a *Authority, token string) *Grant {
	t.Helper()
	g, err := a.identify(token)
	require.NoError(t, err)
	return g
}

// wantRefused checks that a token is refused with this code and a detail that contains words,
// and that the problem has no part of the token. It returns retry_after_ms.
func wantRefused(t *testing.T, a *Authority, token string, code wire.Code, words string) int64 {
	t.Helper()
	g, err := a.identify(token)
	require.Nil(t, g)
	var p *wire.Problem
	require.ErrorAs(t, err, &p)
	require.Equal(t, code, p.Code, p.Detail)
	require.Contains(t, p.Detail, words)
	require.NotEmpty(t, p.Remedy)
	wantNoPart(t, token, p.Error())
	return p.RetryAfterMS
}

// wantNoPart checks that a text has no eight bytes of the token, nor of what it says.
func wantNoPart(t *testing.T, token, text string) {
	t.Helper()
	secrets := []string{token}
	for part := range strings.SplitSeq(token, ".") {
		if plain, err := base64.RawURLEncoding.DecodeString(part); err == nil {
			secrets = append(secrets, string(plain))
		}
	}
	for _, secret := range secrets {
		for at := 0; at+8 <= len(secret); at++ {
			require.NotContains(t, text, secret[at:at+8])
		}
	}
}

func longText(n int) string { return strings.Repeat("x", n) }

func rights(topics, allow string) string {
	return fmt.Sprintf(`[{"topics":[%q],"allow":[%q]}]`, topics, allow)
}

// allow reports whether a grant with these rights allows r on a topic or pattern.
func (rs Rights) allow(r Right, name string) bool {
	return (&Grant{Rights: rs}).Allow(r, name) == nil
}
