package auth

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/durable"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// apiKeyPrefix begins every API key, and no token.
const apiKeyPrefix = "psk_"

// Bounds of the file of API keys.
const (
	maxAPIKeys       = 10_000
	maxAPIKeyLine    = 64 << 10
	maxAPIKeysBytes  = 16 << 20
	maxAPIKeyRefused = 64 // longer texts are not hashed: none is a key
)

// An APIKey is one line of the file of API keys, without the key: a JSON object. Only the key's
// SHA-256 is stored. That is enough, because a key has 256 random bits, so nobody can guess it.
type APIKey struct {
	Name    string          `json:"name"`           // of the principal; no two keys have the same
	Hash    string          `json:"hash,omitempty"` // SHA-256 of the key as it is sent, in hexadecimal digits
	Rights  json.RawMessage `json:"rights"`
	Created time.Time       `json:"created"`
	Expires time.Time       `json:"expires,omitzero"` // zero: never
}

// NewAPIKey returns a new key, and the line that stores it. Nothing else has the key. expires
// may be zero.
func NewAPIKey(name string, rights []byte, now, expires time.Time) (secret string, k APIKey, err error) {
	random := make([]byte, 32)
	rand.Read(random) // never fails: crypto/rand
	secret = apiKeyPrefix + base64.RawURLEncoding.EncodeToString(random)
	hash := digestOf(secret)
	var compact bytes.Buffer
	if err := json.Compact(&compact, rights); err != nil {
		return "", k, fmt.Errorf("the rights are not JSON: %w", err)
	}
	k = APIKey{Name: name, Hash: hex.EncodeToString(hash[:]), Rights: compact.Bytes(), Created: now.UTC().Truncate(time.Second), Expires: expires.UTC().Truncate(time.Second)}
	if expires.IsZero() {
		k.Expires = time.Time{}
	}
	_, _, err = k.grant()
	return secret, k, err
}

// grant checks the key, and returns its hash and what it grants.
func (k *APIKey) grant() (d digest, g *Grant, err error) {
	if !isSubject(k.Name) {
		return d, nil, fmt.Errorf("the name %s must have 1 to %d bytes, without control characters", wire.Quote(k.Name), maxSubjectBytes)
	}
	if n, err := hex.Decode(d[:], []byte(k.Hash[:min(len(k.Hash), 2*len(d))])); err != nil || n != len(d) || len(k.Hash) != 2*len(d) {
		return d, nil, fmt.Errorf("the hash of key %s must be %d hexadecimal digits", wire.Quote(k.Name), 2*len(d))
	}
	rights, err := ParseRights(k.Rights, k.Name)
	if err != nil {
		return d, nil, fmt.Errorf("key %s: %w", wire.Quote(k.Name), err)
	}
	return d, &Grant{Subject: k.Name, Key: d, Expires: k.Expires, Rights: rights}, nil
}

// ReadAPIKeys reads the lines of a file.
func ReadAPIKeys(path string) ([]APIKey, error) {
	text, err := readBounded(path, maxAPIKeysBytes)
	if err != nil {
		return nil, err
	}
	return parseAPIKeys(path, text)
}

// parseAPIKeys reads the text of a file. No two keys may have the same name or hash. Errors name
// the line.
func parseAPIKeys(path string, text []byte) ([]APIKey, error) {
	var keys []APIKey
	names, hashes := make(map[string]int), make(map[digest]int) // their lines
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s, line %d: %w", path, n, fmt.Errorf(format, args...))
		}
		if len(keys) == maxAPIKeys {
			return nil, fail("the file has more than %d keys: revoke unused keys", maxAPIKeys)
		}
		if len(line) > maxAPIKeyLine {
			return nil, fail("the line has more than %d bytes: use patterns in its rights", maxAPIKeyLine)
		}
		var k APIKey
		if err := wire.UnmarshalStrict(line, &k); err != nil {
			return nil, fail("want a JSON object, as `pubsubd key new` writes it: %w", err)
		}
		hash, _, err := k.grant()
		if err != nil {
			return nil, fail("%w", err)
		}
		if was := names[k.Name]; was > 0 {
			return nil, fail("key %s is also on line %d: give each key its own name", wire.Quote(k.Name), was)
		}
		if was := hashes[hash]; was > 0 {
			return nil, fail("key %s has the same hash as line %d: give each key its own hash", wire.Quote(k.Name), was)
		}
		names[k.Name], hashes[hash] = n, n
		keys = append(keys, k)
	}
	return keys, nil
}

// EditAPIKeys lets edit change the keys in a file, which it makes if there is none. It waits for
// other processes that edit the file. The file changes whole or not at all, and outlasts a
// crash.
func EditAPIKeys(path string, edit func([]APIKey) ([]APIKey, error)) error {
	lock, err := durable.Lock(path, true)
	if err != nil {
		return err
	}
	defer lock.Close() // nothing is written to it
	keys, err := ReadAPIKeys(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if keys, err = edit(keys); err != nil {
		return err
	}
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	lines.SetEscapeHTML(false) // prices.> stays readable
	for _, k := range keys {
		if err := lines.Encode(k); err != nil {
			return err
		}
	}
	if text.Len() > maxAPIKeysBytes {
		return fmt.Errorf("%s would have more than %d bytes: revoke unused keys", path, maxAPIKeysBytes)
	}
	if _, err := parseAPIKeys(path, text.Bytes()); err != nil { // the daemon must be able to read it
		return err
	}
	return durable.Write(path, func(w io.Writer) error {
		_, err := w.Write(text.Bytes())
		return err
	})
}

// apiKeys are the keys of one file, which is read again when it changes. All methods may be
// called concurrently, but for refresh, and those that only read also on nil, which has no keys.
type apiKeys struct {
	current atomic.Pointer[map[digest]*Grant] // immutable maps
	file    watchedFile                       // owned by refresh
}

// openAPIKeys reads a file for the first time. A file that does not exist has no keys, because a
// new deployment makes the first key after its first start. The folder must exist: otherwise a
// misspelt path would go unnoticed.
func openAPIKeys(path string, now time.Time) (*apiKeys, error) {
	k := &apiKeys{file: watchedFile{path: path, most: maxAPIKeysBytes}}
	k.current.Store(new(map[digest]*Grant))
	_, err := k.refresh(now)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Stat(filepath.Dir(path)); err != nil {
			err = fmt.Errorf("%w: make this folder, or correct the path", err)
		}
	}
	return k, err
}

// refresh reads the file if it has changed, and reports whether it has. After an error the keys
// stay in force as they were; the same error is returned once.
func (k *apiKeys) refresh(now time.Time) (changed bool, err error) {
	text, err := k.file.read(now)
	if text == nil || err != nil {
		return false, err
	}
	keys, err := parseAPIKeys(k.file.path, text)
	if err != nil {
		return false, err
	}
	was, is := *k.current.Load(), make(map[digest]*Grant, len(keys))
	for i := range keys {
		d, g, _ := keys[i].grant() // parseAPIKeys has checked it
		if old := was[d]; old != nil && old.same(g) {
			g = old // sessions that have it go on
		}
		is[d] = g
	}
	k.current.Store(&is)
	return true, nil
}

// same reports whether two grants of one API key permit the same.
func (g *Grant) same(as *Grant) bool {
	return g.Subject == as.Subject && g.Expires.Equal(as.Expires) && slices.EqualFunc(g.Rights.entries, as.Rights.entries, func(a, b entry) bool {
		return slices.Equal(a.topics, b.topics) && slices.Equal(a.allow, b.allow)
	})
}

// find returns the grant of a key, or nil. The grant may have expired. The time that it takes
// tells nothing about other keys: it looks for the hash of the key, which nobody can choose. It
// does not allocate.
func (k *apiKeys) find(secret string) *Grant {
	if k == nil || len(secret) > maxAPIKeyRefused {
		return nil
	}
	return (*k.current.Load())[digestOf(secret)]
}

// revoked reports whether the grant of an API key was made by one that is not in the file any
// more, or that grants something else now.
func (k *apiKeys) revoked(g *Grant) bool {
	return k == nil || (*k.current.Load())[g.Key] != g
}

func (k *apiKeys) len() int { return len(*k.current.Load()) }
