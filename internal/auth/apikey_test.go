package auth

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const mayPublish = `[{"topics":["prices.>"],"allow":["publish"]}]`

// addKey adds a key to a file and returns it.
func addKey(t *testing.T, path, name, rights string, expires time.Time) string {
	t.Helper()
	secret, k, err := NewAPIKey(name, []byte(rights), start, expires)
	require.NoError(t, err)
	require.NoError(t, EditAPIKeys(path, func(keys []APIKey) ([]APIKey, error) { return append(keys, k), nil }))
	return secret
}

// removeKey removes a key from a file.
func removeKey(t *testing.T, path, name string) {
	t.Helper()
	require.NoError(t, EditAPIKeys(path, func(keys []APIKey) ([]APIKey, error) {
		var rest []APIKey
		for _, k := range keys {
			if k.Name != name {
				rest = append(rest, k)
			}
		}
		return rest, nil
	}))
}

// wantRefresh reads the file of k again, and says whether the keys must have changed.
func wantRefresh(t *testing.T, k *apiKeys, changed bool) {
	t.Helper()
	got, err := k.refresh(time.Now())
	require.NoError(t, err)
	require.Equal(t, changed, got)
}

func TestAnAPIKeyHas256RandomBitsAndOnlyItsHashIsStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	seen := map[string]bool{}
	for i := range 50 {
		secret := addKey(t, path, fmt.Sprint("k", i), mayPublish, time.Time{})
		require.False(t, seen[secret])
		seen[secret] = true
		random, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(secret, "psk_"))
		require.NoError(t, err)
		require.Len(t, random, 32)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(text), secret[len("psk_"):])
		sum := sha256.Sum256([]byte(secret))
		require.Contains(t, string(text), hex.EncodeToString(sum[:]))
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestAnAPIKeyGrantsItsRights(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	expires := start.Add(time.Hour)
	billing := addKey(t, path, "billing", mayPublish, time.Time{})
	inbox := addKey(t, path, "mailer", `[{"topics":["inbox.$sub"],"allow":["subscribe","history"]}]`, expires)
	k, err := openAPIKeys(path, start)
	require.NoError(t, err)

	g := k.find(billing)
	require.Equal(t, "billing", g.Subject)
	require.True(t, g.Expires.IsZero())
	require.True(t, g.Issued.IsZero(), "it is no token")
	require.NoError(t, g.Allow(Publish, "prices.a"))
	require.Error(t, g.Allow(Subscribe, "prices.a"))
	require.Same(t, g, k.find(billing), "all calls share it")

	g = k.find(inbox)
	require.True(t, g.Expires.Equal(expires))
	require.NoError(t, g.Allow(History, "inbox.mailer"))
	require.Error(t, g.Allow(History, "inbox.billing"))

	for _, wrong := range []string{"", "psk_", billing[:len(billing)-1], billing + "A", strings.ToUpper(billing), strings.Repeat("x", 1<<20), strings.Repeat("x", maxAPIKeyRefused)} {
		require.Nil(t, k.find(wrong))
	}
	var none *apiKeys
	require.Nil(t, none.find(billing))
}

// A session ends when its key is revoked or grants something else, and goes on otherwise.
func TestAKeyThatIsRevokedOrChangedEndsItsGrant(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	one, two := addKey(t, path, "one", mayPublish, time.Time{}), addKey(t, path, "two", mayPublish, time.Time{})
	k, err := openAPIKeys(path, time.Now())
	require.NoError(t, err)
	first, second := k.find(one), k.find(two)
	wantRefresh(t, k, false)

	addKey(t, path, "three", mayPublish, time.Time{})
	wantRefresh(t, k, true)
	require.False(t, k.revoked(first))
	require.False(t, k.revoked(second))
	require.Same(t, first, k.find(one))

	removeKey(t, path, "two")
	wantRefresh(t, k, true)
	require.True(t, k.revoked(second))
	require.Nil(t, k.find(two))
	require.False(t, k.revoked(first))

	for _, change := range []func(k *APIKey){
		func(k *APIKey) { k.Rights = []byte(`[{"topics":["prices.>"],"allow":["publish","delete"]}]`) },
		func(k *APIKey) { k.Rights = []byte(`[{"topics":["prices.*"],"allow":["publish","delete"]}]`) },
		func(k *APIKey) { k.Expires = start },
		func(k *APIKey) { k.Name = "another" },
	} {
		require.NoError(t, EditAPIKeys(path, func(keys []APIKey) ([]APIKey, error) {
			change(&keys[0])
			return keys, nil
		}))
		wantRefresh(t, k, true)
		require.True(t, k.revoked(first))
		first = k.find(one)
		require.False(t, k.revoked(first))
	}
	var none *apiKeys
	require.True(t, none.revoked(first))
}

// A file that cannot be read or is wrong leaves the keys in force, and says once what is wrong
// and where.
func TestABrokenFileOfKeysChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	secret := addKey(t, path, "one", mayPublish, time.Time{})
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	k, err := openAPIKeys(path, time.Now())
	require.NoError(t, err)
	line := strings.TrimSpace(string(good))
	var many strings.Builder
	for i := range maxAPIKeys + 1 {
		fmt.Fprintf(&many, `{"name":"%d","hash":"%064x","rights":[],"created":"2026-11-23T04:00:00Z"}`+"\n", i, i)
	}
	for content, says := range map[string]string{
		line + "\nx\n":              "line 2: want a JSON object, as `pubsubd key new` writes it",
		line + line + "\n":          "line 1: want a JSON object, as `pubsubd key new` writes it: invalid character '{' after top-level value",
		line + "\n\n" + line + "\n": `line 3: key "one" is also on line 1`,
		line + "\n" + strings.Replace(line, "one", "two", 1):     `line 2: key "two" has the same hash as line 1`,
		strings.Replace(line, `"name"`, `"title"`, 1):            `unknown field "title"`,
		strings.Replace(line, `"name"`, `"Name"`, 1):             `unknown field "Name"`,
		strings.Replace(line, `{`, `{"name":"two",`, 1):          `an object has the member "name" twice`,
		strings.Replace(line, `{`, `{"expires":null,`, 1):        `"expires" must not be null`,
		strings.Replace(line, `"one"`, `""`, 1):                  "must have 1 to 128 bytes",
		strings.Replace(line, `"hash":"`, `"hash":"0`, 1):        `the hash of key "one" must be 64 hexadecimal digits`,
		strings.Replace(line, `"hash":"`, `"hash":"", "x":"`, 1): `unknown field`,
		strings.Replace(line, "publish", "pubish", 1):            "pubish",
		`{"name":"` + strings.Repeat("x", maxAPIKeyLine):         "line 1: the line has more than 65536 bytes",
		strings.Repeat("\n", maxAPIKeysBytes+1):                  "more than 16777216 bytes",
		many.String():                                            "line 10001: the file has more than 10000 keys",
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		changed, err := k.refresh(time.Now())
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, path)
		require.False(t, changed)
		wantRefresh(t, k, false)
		require.NotNil(t, k.find(secret))
	}
	require.NoError(t, os.Remove(path))
	_, err = k.refresh(time.Now())
	require.ErrorIs(t, err, os.ErrNotExist)
	wantRefresh(t, k, false)
	require.NotNil(t, k.find(secret))

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	wantRefresh(t, k, true)
	require.Nil(t, k.find(secret), "an empty file is valid")
}

// A new deployment starts before its first key is made. A misspelt folder is refused.
func TestTheFileOfKeysMayComeAfterTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	require.True(t, Config{APIKeys: path}.LacksAPIKeys())
	require.NoError(t, Config{APIKeys: path}.CheckAPIKeys())
	k, err := openAPIKeys(path, start)
	require.NoError(t, err)
	require.Zero(t, k.len())
	wantRefresh(t, k, false)

	secret := addKey(t, path, "first", mayPublish, time.Time{})
	wantRefresh(t, k, true)
	require.NotNil(t, k.find(secret))
	require.False(t, Config{APIKeys: path}.LacksAPIKeys())

	_, err = openAPIKeys(filepath.Join(filepath.Dir(path), "none", "keys"), start)
	require.ErrorContains(t, err, "none: no such file or directory: make this folder, or correct the path")
	require.False(t, Config{}.LacksAPIKeys(), "no file is named")
}

// Many commands add keys to one file at the same time. None is lost.
func TestKeysAreEditedByOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { addKey(t, path, fmt.Sprint("k", i), mayPublish, time.Time{}) })
	}
	all.Wait()
	keys, err := ReadAPIKeys(path)
	require.NoError(t, err)
	require.Len(t, keys, 20)

	refused := errors.New("refused")
	require.ErrorIs(t, EditAPIKeys(path, func([]APIKey) ([]APIKey, error) { return nil, refused }), refused)
	require.ErrorContains(t, EditAPIKeys(path, func([]APIKey) ([]APIKey, error) { return append(keys, keys[0]), nil }), "is also on line 1")
	again, err := ReadAPIKeys(path)
	require.NoError(t, err)
	require.Equal(t, keys, again)
}

func TestKeysThatCannotBeMade(t *testing.T) {
	for name, rights := range map[string]string{"": mayPublish, "one\n": mayPublish, "two": "[", "three": `[{"topics":["a"],"allow":["all"]}]`} {
		_, _, err := NewAPIKey(name, []byte(rights), start, time.Time{})
		require.Error(t, err, name)
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	secret := addKey(t, path, "one", mayPublish, time.Time{})
	k, err := openAPIKeys(path, start)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() { k.revoked(k.find(secret)) }))
}

// What the authority says of API keys, and of tokens beside them.
func TestTheAuthorityKnowsAPIKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	billing := addKey(t, path, "billing", mayPublish, time.Now().Add(time.Hour))
	old := addKey(t, path, "old", mayPublish, time.Now().Add(-time.Hour))
	a := newAuthority(t, func(c *Config) { c.APIKeys = path })
	g := wantAccepted(t, a, billing)
	require.Equal(t, "billing", g.Subject)
	byHeader, err := a.Identify(Credentials{Authorization: "Bearer " + billing}, true)
	require.NoError(t, err)
	require.Same(t, g, byHeader)
	wantAccepted(t, a, token(good()))
	wantRefused(t, a, old, wire.CodeTokenExpired, "the API key expired 1h")
	wantRefused(t, a, "psk_"+longText(43), wire.CodeUnauthorized, "the API key is unknown")
	wantRefused(t, newAuthority(t, nil), billing, wire.CodeUnauthorized, "the API key is unknown")
	require.False(t, a.Refresh(time.Now()))
	require.False(t, a.Revoked(g))
	removeKey(t, path, "billing")
	require.True(t, a.Refresh(time.Now()))
	require.True(t, a.Revoked(g))
	wantRefused(t, a, billing, wire.CodeUnauthorized, "it is wrong, or was revoked")

	require.NoError(t, os.WriteFile(path, []byte("broken"), 0o600))
	require.False(t, a.Refresh(time.Now()))
	require.InDelta(t, 1, testutil.ToFloat64(a.failures), 0)
	var gauges metrics.Gauges
	a.Gauges(&gauges)
	require.Contains(t, gauges.Limits, metrics.Limit{Name: "api_keys", Most: maxAPIKeys, InUse: 1})
	require.True(t, Config{APIKeys: path}.On(), "without keys of tokens")
}

func FuzzAPIKeys(f *testing.F) {
	f.Add([]byte(`{"name":"one","hash":"` + strings.Repeat("0f", 32) + `","rights":` + mayPublish + `,"created":"2026-11-23T04:00:00Z"}` + "\n"))
	f.Add([]byte("{}\n\n[]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseAPIKeys("keys", text)
		if err != nil {
			return
		}
		for i := range keys {
			_, g, err := keys[i].grant()
			require.NoError(t, err)
			require.NotEmpty(t, g.Subject)
		}
	})
}
