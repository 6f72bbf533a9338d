// Package token has the tools of those who issue tokens: it signs them, makes keys, and explains a
// token that somebody has.
package token

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/internal/auth"
)

// A Draft is what Issue puts into a token. Empty members are left out.
type Draft struct {
	Subject                    string // required
	ID, Issuer, Audience, Type string
	Issued                     time.Time
	TTL                        time.Duration // until the token expires
	Rights                     []byte        // JSON, as auth.ParseRights reads it
	Claims                     map[string]jsontext.Value
}

// Issue returns a token that the key signs: a private key in PEM or as a JWK, or a secret as a
// JWK. It fails if a daemon with the public part of the key would refuse the token.
func Issue(signingKey []byte, t Draft) (string, error) {
	private, id, public, err := parseSigningKey(signingKey)
	if err != nil {
		return "", fmt.Errorf("the key %w", err)
	}
	payload, err := t.payload()
	if err != nil {
		return "", err
	}
	options := (&jose.SignerOptions{}).WithType("JWT")
	if t.Type != "" {
		options.WithType(jose.ContentType(t.Type))
	}
	if id != "" {
		options.WithHeader("kid", id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: public.Algorithm(), Key: private}, options)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	issued, err := signed.CompactSerialize()
	if err != nil {
		return "", err
	}
	if _, refused := public.Verify(auth.Config{Audience: t.Audience, TokenMaxAge: max(t.TTL, 0)}, issued, t.Issued); refused != nil {
		return "", errors.New(refused.Detail)
	}
	return issued, nil
}

// payload returns the claims of the token.
func (t Draft) payload() ([]byte, error) {
	claims := map[string]any{"sub": t.Subject, "iat": t.Issued.Unix(), "exp": t.Issued.Add(t.TTL).Unix()}
	for name, value := range map[string]string{"jti": t.ID, "iss": t.Issuer, "aud": t.Audience} {
		if value != "" {
			claims[name] = value
		}
	}
	if t.Rights != nil {
		if _, err := auth.ParseRights(t.Rights, t.Subject); err != nil {
			return nil, err
		}
		claims["pubsub"] = jsontext.Value(t.Rights)
	}
	for name, value := range t.Claims {
		if _, double := claims[name]; double {
			return nil, fmt.Errorf("the claim %s is given twice", name)
		}
		claims[name] = value
	}
	return json.Marshal(claims, json.Deterministic(true))
}

// parseSigningKey reads a key that signs, and returns it as go-jose takes it, with its id, and the
// key that verifies what it signs.
func parseSigningKey(text []byte) (private any, id string, public auth.Keys, err error) {
	algorithm := ""
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte("{")) {
		private, id, algorithm, err = parseSigningJWK(text)
	} else {
		private, err = parseSigningPEM(text)
	}
	if err != nil {
		return nil, "", nil, err
	}
	material := private
	if pair, ok := private.(crypto.Signer); ok {
		material = pair.Public()
	}
	public, err = auth.NewKey(id, algorithm, material)
	return private, id, public, err
}

// wantSigningKey completes an error about a key that signs.
const wantSigningKey = "want a private key in PEM (-----BEGIN PRIVATE KEY-----), or a JWK with its private members, as `pubsubd token keygen` makes them"

func parseSigningPEM(text []byte) (any, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "PRIVATE KEY":
			return x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			return x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			return x509.ParsePKCS1PrivateKey(block.Bytes)
		}
	}
	return nil, errors.New("holds no private key: " + wantSigningKey)
}

func parseSigningJWK(text []byte) (private any, id, algorithm string, err error) {
	var m members
	if json.Unmarshal(text, &m) != nil || m["keys"] != nil {
		return nil, "", "", errors.New("is not one JWK: " + wantSigningKey)
	}
	var parsed jose.JSONWebKey
	maps.DeleteFunc(m, func(name string, _ jsontext.Value) bool { return !slices.Contains(ofKeys, name) })
	bare, err := json.Marshal(m)
	if err != nil {
		return nil, "", "", err
	}
	if parsed.UnmarshalJSON(bare) != nil || parsed.IsPublic() {
		return nil, "", "", errors.New("is not a JWK that can sign: " + wantSigningKey)
	}
	return parsed.Key, parsed.KeyID, parsed.Algorithm, nil
}

// ofKeys are the members of a JWK that are read. Others, as certificates, are not.
var ofKeys = []string{"kid", "alg", "kty", "crv", "x", "y", "n", "e", "k", "d", "p", "q", "dp", "dq", "qi"}

// keyMakers make keys by their algorithms.
var keyMakers = map[string]func() (crypto.Signer, error){
	"EdDSA": func() (crypto.Signer, error) { _, k, err := ed25519.GenerateKey(rand.Reader); return k, err },
	"ES256": func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) },
	"ES384": func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) },
	"RS256": func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 3072) },
}

// GenerateKey returns a new key for an algorithm: the file of the private key and that of the
// public key, both in PEM. For HS256 they are the same JWK, which is secret.
func GenerateKey(algorithm string) (private, public []byte, err error) {
	if algorithm == string(jose.HS256) {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // it never fails
		text, err := jose.JSONWebKey{Key: secret, Algorithm: algorithm}.MarshalJSON()
		return append(text, '\n'), append(text, '\n'), err
	}
	generate, ok := keyMakers[algorithm]
	if !ok {
		known := append(slices.Sorted(maps.Keys(keyMakers)), string(jose.HS256))
		return nil, nil, fmt.Errorf("use one of %s", strings.Join(known, ", "))
	}
	k, err := generate()
	if err != nil {
		return nil, nil, err
	}
	privateDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	publicDER, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: privateDER}), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER}), nil
}
