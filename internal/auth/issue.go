package auth

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
)

// A NewToken is what Issue puts into a token. Empty members are left out.
type NewToken struct {
	Subject                    string // required
	ID, Issuer, Audience, Type string
	Issued                     time.Time
	TTL                        time.Duration // until the token expires
	Rights                     []byte        // JSON, as ParseRights reads it
	Claims                     map[string]jsontext.Value
}

// Issue returns a token that the key signs: a private key in PEM or as a JWK, or a secret as a
// JWK. It fails if a daemon with the public part of the key would refuse the token.
func Issue(signingKey []byte, t NewToken) (string, error) {
	private, public, err := parseSigningKey(signingKey)
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
	if public.id != "" {
		options.WithHeader("kid", public.id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: public.algorithm, Key: private}, options)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		return "", err
	}
	checked := verifier{audience: t.Audience, maxAge: max(t.TTL, 0)}
	if _, err := checked.verify(token, []key{public}, t.Issued); err != nil {
		return "", errors.New(problemOf(err).Detail)
	}
	return token, nil
}

// payload returns the claims of the token.
func (t NewToken) payload() ([]byte, error) {
	claims := map[string]any{"sub": t.Subject, "iat": t.Issued.Unix(), "exp": t.Issued.Add(t.TTL).Unix()}
	for name, value := range map[string]string{"jti": t.ID, "iss": t.Issuer, "aud": t.Audience} {
		if value != "" {
			claims[name] = value
		}
	}
	if t.Rights != nil {
		if _, err := ParseRights(t.Rights, t.Subject); err != nil {
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

// parseSigningKey reads a key that signs, and returns it as go-jose takes it, with the key that
// verifies what it signs.
func parseSigningKey(text []byte) (private any, public key, err error) {
	id, algorithm := "", ""
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte("{")) {
		private, id, algorithm, err = parseSigningJWK(text)
	} else {
		private, err = parseSigningPEM(text)
	}
	if err != nil {
		return nil, key{}, err
	}
	material := private
	if pair, ok := private.(crypto.Signer); ok {
		material = pair.Public()
	}
	public, err = newKey(id, algorithm, material)
	return private, public, err
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
	m, ok := parseMembers(text)
	if !ok || m["keys"] != nil {
		return nil, "", "", errors.New("is not one JWK: " + wantSigningKey)
	}
	id, isText := m.text("kid")
	algorithm, isText2 := m.text("alg")
	kind, _ := m.text("kty")
	parts := make(members)
	for _, name := range append(slices.Clone(privateParts), keyParts[kind]...) {
		if m[name] != nil {
			parts[name] = m[name]
		}
	}
	bare, err := json.Marshal(parts)
	if err != nil {
		return nil, "", "", err
	}
	var parsed jose.JSONWebKey
	if !isText || !isText2 || parsed.UnmarshalJSON(bare) != nil || parsed.IsPublic() {
		return nil, "", "", errors.New("is not a JWK that can sign: " + wantSigningKey)
	}
	return parsed.Key, id, algorithm, nil
}

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
		secret := make([]byte, minSecretBytes)
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
