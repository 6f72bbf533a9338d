package auth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A key verifies tokens of one algorithm. The key fixes the algorithm: a token's header never
// decides how its signature is checked (RFC 8725, section 3.1). Keys are immutable.
type key struct {
	id        string // kid; empty: none
	algorithm jose.SignatureAlgorithm
	material  any    // a public key or a secret, as go-jose takes it
	print     digest // of the secret, or of the SubjectPublicKeyInfo of the public key, as in certificates
	whole     digest // of the id and the algorithm, too
}

// Bounds of keys.
const (
	maxKeys         = 100
	maxKeyFileBytes = 256 << 10
	minRSABits      = 2048
	minSecretBytes  = 32
)

// wantKeys completes an error about a file of keys.
const wantKeys = "want a public key in PEM (-----BEGIN PUBLIC KEY-----), a JWK or a JWK set"

// A keyFile is a file of keys, and the keys that it had when it was last valid.
type keyFile struct {
	watchedFile
	keys []key // the owner puts here what refresh returns
}

// openKeyFiles reads all keys of some files.
func openKeyFiles(paths []string, now time.Time) (files []*keyFile, err error) {
	total := 0
	for _, path := range paths {
		f := &keyFile{watchedFile: watchedFile{path: path, most: maxKeyFileBytes}}
		if f.keys, err = f.refresh(now); err != nil {
			return nil, err
		}
		total += len(f.keys)
		files = append(files, f)
	}
	if total > maxKeys {
		return nil, fmt.Errorf("%d keys are too many: want at most %d", total, maxKeys)
	}
	return files, nil
}

// refresh reads the file again if it has changed. Otherwise, and with an error, keys is nil.
func (f *keyFile) refresh(now time.Time) (keys []key, err error) {
	text, err := f.read(now)
	if text == nil || err != nil {
		return nil, err
	}
	keys, err = parseKeys(text)
	if err == nil && len(keys) > maxKeys {
		err = fmt.Errorf("holds %d keys: want at most %d", len(keys), maxKeys)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w", f.path, err)
	}
	return keys, nil
}

// parseKeys reads the keys of a file: public keys in PEM, a JWK or a JWK set. It refuses
// private keys. The error completes "the file …".
func parseKeys(text []byte) ([]key, error) {
	text = bytes.TrimSpace(text)
	if !bytes.HasPrefix(text, []byte("{")) {
		return parsePEM(text)
	}
	keys, ignored, err := parseJWKs(text, keyOfJWK)
	switch {
	case err != nil || len(keys) > 0:
		return keys, err
	case len(ignored) > 0:
		return nil, ignored[0]
	}
	return nil, errors.New("holds no key: " + wantKeys)
}

// PEMBlocks returns all blocks of a file in PEM. It refuses a file with a block that is not
// whole, which pem.Decode skips: something may be writing the file. The error completes
// "the file …".
func PEMBlocks(text []byte) (blocks []*pem.Block, err error) {
	begun := bytes.Count(append([]byte("\n"), text...), []byte("\n-----BEGIN"))
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	if len(blocks) != begun {
		return nil, fmt.Errorf("holds %d blocks of PEM, but only %d are whole: write a new file, and rename it to this one", begun, len(blocks))
	}
	return blocks, nil
}

func parsePEM(text []byte) (keys []key, err error) {
	blocks, err := PEMBlocks(text)
	if err != nil {
		return nil, err
	}
	for _, block := range blocks {
		switch {
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return nil, errors.New("holds a private key, which the daemon does not need: name the file of its public key, as `openssl pkey -in FILE -pubout` writes it")
		case block.Type != "PUBLIC KEY":
			return nil, fmt.Errorf("holds a block of type %s: %s", wire.Quote(block.Type), wantKeys)
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a public key that cannot be read: %w", err)
		}
		k, err := newKey("", "", public)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("holds no key: " + wantKeys)
	}
	return keys, nil
}

// newKey returns a key. An empty algorithm means the usual one for the type of key.
func newKey(id, algorithm string, material any) (key, error) {
	possible, err := algorithmsOf(material)
	if err != nil {
		return key{}, err
	}
	fixed := possible[0]
	if algorithm != "" {
		fixed = jose.SignatureAlgorithm(algorithm)
	}
	if !slices.Contains(possible, fixed) {
		return key{}, fmt.Errorf("holds a key whose alg does not fit its type: want one of %v", possible)
	}
	text, isSecret := material.([]byte)
	if !isSecret {
		if text, err = x509.MarshalPKIXPublicKey(material); err != nil {
			return key{}, fmt.Errorf("holds a key that cannot be used: %w", err)
		}
	}
	thumb := sha256.Sum256(text) // grants remember it, and not the key, which may be secret
	return key{id, fixed, material, thumb, sha256.Sum256(slices.Concat(thumb[:], []byte(fixed), []byte(" "+id)))}, nil
}

// algorithmsOf returns the algorithms that a type of key allows, the usual one first.
func algorithmsOf(material any) ([]jose.SignatureAlgorithm, error) {
	switch k := material.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits {
			return nil, fmt.Errorf("holds an RSA key of %d bits: want at least %d", bits, minRSABits)
		}
		return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512}, nil
	case *ecdsa.PublicKey:
		if a, ok := curves[k.Curve]; ok {
			return []jose.SignatureAlgorithm{a}, nil
		}
	case ed25519.PublicKey:
		return []jose.SignatureAlgorithm{jose.EdDSA}, nil
	case []byte:
		if len(k) < minSecretBytes {
			return nil, fmt.Errorf("holds a secret of %d bits: want at least %d, as `pubsubd token keygen --type HS256` makes it", 8*len(k), 8*minSecretBytes)
		}
		// RFC 7518, section 3.2: no hash may be longer than the secret.
		possible := []jose.SignatureAlgorithm{jose.HS256}
		if len(k) >= 48 {
			possible = append(possible, jose.HS384)
		}
		if len(k) >= 64 {
			possible = append(possible, jose.HS512)
		}
		return possible, nil
	}
	return nil, errors.New("holds a key of a type that is not supported: want RSA, EC (P-256, P-384 or P-521) or Ed25519")
}

var curves = map[elliptic.Curve]jose.SignatureAlgorithm{
	elliptic.P256(): jose.ES256,
	elliptic.P384(): jose.ES384,
	elliptic.P521(): jose.ES512,
}

// members are the members of a JSON object by name.
type members map[string]jsontext.Value

// parseMembers reads one JSON object. It refuses invalid UTF-8 and members that appear twice,
// at any depth. Its error never quotes text, which may be secret.
func parseMembers(text []byte) (m members, ok bool) {
	return m, json.Unmarshal(text, &m) == nil && m != nil
}

// text returns a member that is a string. It is empty if there is none.
func (m members) text(name string) (s string, ok bool) {
	value, given := m[name]
	return s, !given || value.Kind() == '"' && json.Unmarshal(value, &s) == nil
}

// parseJWKs reads a JWK or a JWK set with a function that reads one key. A key that cannot be
// used is an error, unless it is one of a set and errIgnored: RFC 7517, section 5, says to
// ignore keys of unknown types. ignored has the reasons.
func parseJWKs(text []byte, read func(members) (key, error)) (keys []key, ignored []error, err error) {
	whole, ok := parseMembers(text)
	if !ok {
		return nil, nil, errors.New("holds no valid JSON, or a member twice: " + wantKeys)
	}
	list := []members{whole}
	if set, isSet := whole["keys"]; isSet {
		if json.Unmarshal(set, &list) != nil {
			return nil, nil, errors.New("holds a JWK set whose keys are not a list of objects")
		}
	}
	for _, m := range list {
		k, err := read(m)
		switch {
		case err == nil:
			keys = append(keys, k)
		case errors.Is(err, errIgnored):
			ignored = append(ignored, err)
		default:
			return nil, nil, err
		}
	}
	return keys, ignored, nil
}

// errIgnored is the error of a key that a set may have besides others.
var errIgnored = errors.New("holds a JWK that does not verify tokens: its use is not sig, its key_ops lack verify, or its type is not RSA, EC, OKP or oct")

// keyParts are the members of a JWK that make its key. Others, as certificates, are not read.
var keyParts = map[string][]string{
	"RSA": {"kty", "n", "e"},
	"EC":  {"kty", "crv", "x", "y"},
	"OKP": {"kty", "crv", "x"},
	"oct": {"kty", "k"},
}

// privateParts are members that only private keys have.
var privateParts = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "priv"}

// keyOfJWK reads one JWK of a file (RFC 7517).
func keyOfJWK(m members) (key, error) {
	if slices.ContainsFunc(privateParts, func(part string) bool { return m[part] != nil }) {
		return key{}, errors.New("holds a private key, which the daemon does not need: remove its private members (d, p, q, dp, dq, qi, oth)")
	}
	kind, isText := m.text("kty")
	id, isText2 := m.text("kid")
	algorithm, isText3 := m.text("alg")
	if !isText || !isText2 || !isText3 {
		return key{}, errors.New("holds a JWK whose kty, kid or alg is not a string")
	}
	parts := make(members)
	for _, name := range keyParts[kind] {
		if bytes.Contains(m[name], []byte(`\`)) { // as in \n, which the decoder of base64 would skip
			return key{}, errors.New("holds a JWK that is not valid: " + name + " is not base64url")
		}
		if m[name] != nil {
			parts[name] = m[name]
		}
	}
	if len(parts) == 0 || !m.verifies() {
		return key{}, errIgnored
	}
	var parsed jose.JSONWebKey
	text, err := json.Marshal(parts)
	if err == nil {
		err = parsed.UnmarshalJSON(text)
	}
	switch {
	case errors.Is(err, jose.ErrUnsupportedKeyType):
		return key{}, errIgnored
	case err != nil:
		return key{}, errors.New("holds a JWK that is not valid: its members do not make a key of its type")
	}
	return newKey(id, algorithm, parsed.Key)
}

// verifies reports whether a JWK may verify signatures, by its use and key_ops (RFC 7517,
// sections 4.2 and 4.3).
func (m members) verifies() bool {
	use, isText := m.text("use")
	if !isText || use != "" && use != "sig" {
		return false
	}
	var operations []string
	given := m["key_ops"]
	return given == nil || json.Unmarshal(given, &operations) == nil && slices.Contains(operations, "verify")
}

// publicKeyOfJWK reads one JWK that came over the network. It ignores every key that is wrong
// or secret.
func publicKeyOfJWK(m members) (key, error) {
	if kind, _ := m.text("kty"); kind == "oct" {
		return key{}, fmt.Errorf("%w: a secret (oct) must come from a file", errIgnored)
	}
	k, err := keyOfJWK(m)
	if err != nil && !errors.Is(err, errIgnored) {
		err = fmt.Errorf("%w: it %w", errIgnored, err)
	}
	return k, err
}

// Keys verify tokens without an authority, as tools do.
type Keys []key

// NewKey returns the key of a public key or a secret. An empty algorithm means the usual one for its
// type. The error completes "the key …".
func NewKey(id, algorithm string, material any) (Keys, error) {
	k, err := newKey(id, algorithm, material)
	return Keys{k}, err
}

// LoadKeys returns all keys that verify tokens now. It reads the files, and fetches the keys of the
// JWKS.
func (c Config) LoadKeys(ctx context.Context, now time.Time) (keys Keys, _ error) {
	files, err := openKeyFiles(c.Keys, now)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		keys = append(keys, f.keys...)
	}
	if c.JWKS == "" {
		return keys, nil
	}
	text, err := newJWKS(c.JWKS, nil, nil, nil).get(ctx)
	if err != nil {
		return nil, fmt.Errorf("auth.jwks: %w", err)
	}
	fetched, _, err := parseJWKs(text, publicKeyOfJWK)
	if err != nil {
		return nil, fmt.Errorf("auth.jwks %w", err)
	}
	return append(keys, fetched...), nil
}

// Algorithm returns the algorithm of the first key.
func (ks Keys) Algorithm() jose.SignatureAlgorithm { return ks[0].algorithm }

// Verify returns the grant of a token, or why an authority with these keys would refuse it.
func (ks Keys) Verify(c Config, token string, now time.Time) (*Grant, *wire.Problem) {
	g, err := c.verify(token, ks, now)
	if refused, ok := errors.AsType[*refusal](err); ok {
		return nil, refused.Problem
	}
	return g, nil
}

// candidates returns the keys that may have signed a token whose header names this algorithm
// and this key. known is false if the daemon has no key with that id. A key without an id may
// have signed any token.
func candidates(keys []key, algorithm, id string) (found []key, known bool) {
	var named, unnamed []key
	for _, k := range keys {
		if known = known || k.id == id; string(k.algorithm) != algorithm {
			continue
		}
		if k.id == id {
			named = append(named, k)
		} else if k.id == "" || id == "" {
			unnamed = append(unnamed, k)
		}
	}
	if id == "" {
		return append(named, unnamed...), true
	}
	if len(named) > 0 {
		return named, true
	}
	return unnamed, known
}
