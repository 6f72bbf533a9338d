package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestAKeyFixesItsAlgorithm(t *testing.T) {
	for text, want := range map[string][]jose.SignatureAlgorithm{
		publicPEM(edKey()):   {jose.EdDSA},
		publicPEM(p256()):    {jose.ES256},
		publicPEM(p384()):    {jose.ES384},
		publicPEM(rsa2048()): {jose.RS256},
		"comment\n" + publicPEM(p256()) + "\n" + publicPEM(rsa2048()): {jose.ES256, jose.RS256},
		jwkOf(rsa2048().Public()):                                     {jose.RS256},
		jwkOf(rsa2048().Public(), "alg", "PS256", "use", "sig"):       {jose.PS256},
		jwkOf(theSecret): {jose.HS256},
		jwkOf(append(theSecret, theSecret...), "alg", "HS512"):                                                                                       {jose.HS512},
		jwkOf(edKey().Public(), "x5c", []string{"not read"}, "kid", "one"):                                                                           {jose.EdDSA},
		`{"keys":[` + jwkOf(p256().Public()) + `,` + jwkOf(p384().Public(), "use", "enc") + `,{"kty":"new"},{"kty":"OKP","crv":"X25519","x":"AA"}]}`: {jose.ES256},
		jwkOf(p256().Public(), "key_ops", []string{"verify"}):                                                                                        {jose.ES256},
	} {
		keys, err := parseKeys([]byte(text))
		require.NoError(t, err, text)
		var got []jose.SignatureAlgorithm
		for _, k := range keys {
			got = append(got, k.algorithm)
		}
		require.Equal(t, want, got, text)
	}
}

func TestFilesOfKeysThatCannotBeUsed(t *testing.T) {
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	for text, want := range map[string]string{
		"":      "holds no key: want",
		"words": "holds no key: want",
		pemOf("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(edKey()))):   "a private key, which the daemon does not need: name the file of its public key, as `openssl pkey",
		pemOf("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(p256()))):    "a private key",
		pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsa2048())):   "a private key",
		publicPEM(p256()) + pemOf("ENCRYPTED PRIVATE KEY", []byte{1}):      "a private key",
		pemOf("CERTIFICATE", []byte{1}):                                    `a block of type "CERTIFICATE": want a public key`,
		pemOf("PUBLIC KEY", []byte{1}):                                     "cannot be read",
		publicPEM(weak):                                                    "RSA key of 1024 bits: want at least 2048",
		publicPEM(p224):                                                    "not supported: want RSA",
		jwkOf(p256()):                                                      "a private key, which the daemon does not need: remove its private members",
		jwkOf(rsa2048()):                                                   "a private key",
		`{"keys":[` + jwkOf(p256().Public()) + `,` + jwkOf(edKey()) + `]}`: "a private key",
		jwkOf(p256().Public(), "alg", "ES384"):                             "alg does not fit",
		jwkOf(p256().Public(), "alg", "HS256"):                             "alg does not fit",
		jwkOf(theSecret, "alg", "HS512"):                                   "alg does not fit",
		jwkOf(theSecret, "alg", "none"):                                    "alg does not fit",
		jwkOf(theSecret[:31]):                                              "a secret of 248 bits: want at least 256",
		jwkOf(p256().Public(), "use", "enc"):                               "does not verify tokens",
		jwkOf(p256().Public(), "key_ops", []string{"encrypt"}):             "does not verify tokens",
		jwkOf(p256().Public(), "kid", 5):                                   "is not a string",
		strings.Replace(jwkOf(p256().Public()), `"x":"`, `"x":"AAAA`, 1):   "not valid",
		strings.Replace(jwkOf(p256().Public()), `"x":"`, `"x":"\n`, 1):     "x is not base64url",
		strings.Replace(jwkOf(theSecret), `{`, `{"k":"AAAA",`, 1):          "a member twice",
		`{"keys":[]}`:   "holds no key",
		`{"keys":[5]}`:  "not a list of objects",
		`{"kty":"new"}`: "does not verify tokens",
	} {
		_, err := parseKeys([]byte(text))
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "MDEyMzQ1Njc4", "the secret")
	}
}

func TestTheNumberOfKeysIsBounded(t *testing.T) {
	many := make([]string, maxKeys+1)
	for i := range many {
		many[i] = publicPEM(edKey())
	}
	require.ErrorContains(t, Config{Keys: []string{file(t, strings.Join(many, ""))}}.CheckKeys(), "want at most 100")
	half := file(t, strings.Join(many[:60], ""))
	require.ErrorContains(t, Config{Keys: []string{half, half}}.CheckKeys(), "120 keys are too many")
	require.NoError(t, Config{Keys: []string{half}}.CheckKeys())
	require.ErrorContains(t, Config{Keys: []string{file(t, longText(maxKeyFileBytes+1))}}.CheckKeys(), "more than 262144 bytes")
	require.ErrorIs(t, Config{Keys: []string{filepath.Join(t.TempDir(), "gone")}}.CheckKeys(), os.ErrNotExist)
}

// Something writes a file of keys in place. Half of a key is an error: without it, the daemon would
// refuse the tokens of that key.
func TestHalfOfAKeyIsAnError(t *testing.T) {
	first, second := publicPEM(edKey()), publicPEM(p256())
	for _, torn := range []string{first + second[:60], first + second[:len(second)-10], first[:60] + "\n" + second, first[:60]} {
		_, err := parseKeys([]byte(torn))
		require.ErrorContains(t, err, "are whole: write a new file, and rename it", torn)
	}
	a, path, log := watched(t, first+second)
	require.NoError(t, os.WriteFile(path, []byte(first+second[:60]), 0o600))
	require.False(t, a.Refresh(time.Now()))
	require.Len(t, log.FilterLevelExact(zap.ErrorLevel).All(), 1)
	wantAccepted(t, a, sign(jose.ES256, p256(), good()))
	wantAccepted(t, a, token(good()))
}

// An editor may begin a file with a byte order mark. The first key is read nevertheless.
func TestFilesOfKeysMayBeginWithAByteOrderMark(t *testing.T) {
	for _, keys := range []string{publicPEM(edKey()) + publicPEM(p256()), "{\"keys\":[" + jwkOf(edKey().Public()) + "," + jwkOf(p256().Public()) + "]}\r\n"} {
		a, _, _ := watched(t, "\ufeff"+keys)
		wantAccepted(t, a, token(good()))
		wantAccepted(t, a, sign(jose.ES256, p256(), good()))
	}
	path := filepath.Join(t.TempDir(), "keys")
	secret := addKey(t, path, "billing", mayPublish, time.Time{})
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	k, err := openAPIKeys(file(t, "\ufeff"+string(text)), start)
	require.NoError(t, err)
	require.NotNil(t, k.find(secret))
}

// A watched authority is one whose log is read.
func watched(t *testing.T, text string) (a *Authority, path string, log *observer.ObservedLogs) {
	core, log := observer.New(zap.DebugLevel)
	path = file(t, text)
	a, err := New(Config{Keys: []string{path}, TokenMaxAge: DefaultTokenMaxAge}, metrics.New("test"), zap.New(core))
	require.NoError(t, err)
	return a, path, log
}

// A key is replaced without a signal. Tokens that the old key verified are refused, although
// they were remembered.
func TestAFileOfKeysIsReadAgain(t *testing.T) {
	a, path, log := watched(t, publicPEM(edKey()))
	old, next := token(good()), sign(jose.EdDSA, otherEd(), good())
	info, err := os.Stat(path)
	require.NoError(t, err)
	wantAccepted(t, a, old)
	wantRefused(t, a, next, wire.CodeUnauthorized, "signature")
	now := time.Now()
	a.Refresh(now)
	wantAccepted(t, a, old)

	// The contents have the same size and the same time.
	require.NoError(t, os.WriteFile(path, []byte(publicPEM(otherEd())), 0o600))
	require.NoError(t, os.Chtimes(path, now, info.ModTime()))
	a.Refresh(now)
	wantAccepted(t, a, next)
	wantRefused(t, a, old, wire.CodeUnauthorized, "signature")

	a.Refresh(now.Add(time.Hour)) // settles it
	require.NoError(t, os.Chtimes(path, now, now.Add(-time.Minute)))
	require.NoError(t, os.WriteFile(path+".new", []byte(publicPEM(edKey())), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
	a.Refresh(now.Add(time.Hour))
	wantAccepted(t, a, old)
	require.Len(t, log.FilterMessage("a file of auth.keys has changed").All(), 2)
}

// A wrong or missing file changes nothing. The log has each cause once.
func TestKeysStayWhileTheirFileIsWrong(t *testing.T) {
	a, path, log := watched(t, publicPEM(edKey()))
	valid, now := token(good()), time.Now()
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	wantErrors := func(want int) {
		t.Helper()
		for range 3 {
			a.Refresh(now)
		}
		wantAccepted(t, a, valid)
		require.Len(t, log.FilterMessage("cannot read a file of auth.keys: its keys stay as they were").All(), want)
	}
	write("half a k")
	wantErrors(1)
	require.NoError(t, os.Remove(path))
	wantErrors(2)
	write(publicPEM(otherEd()))
	a.Refresh(now)
	wantRefused(t, a, valid, wire.CodeUnauthorized, "signature")
	require.NoError(t, os.Remove(path))
	a.Refresh(now)
	require.Len(t, log.FilterMessage("cannot read a file of auth.keys: its keys stay as they were").All(), 3, "again")
}

// A private key has leaked, so its public key is removed. What tokens of that key opened is
// revoked, and nothing else.
func TestARemovedKeyRevokesItsTokens(t *testing.T) {
	path := file(t, publicPEM(edKey())+publicPEM(p256())+publicPEM(rsa2048()))
	secrets := file(t, jwkOf(theSecret))
	a := newAuthority(t, func(c *Config) { c.Keys = []string{path, secrets} })
	stays := []*Grant{wantAccepted(t, a, sign(jose.ES256, p256(), good())), wantAccepted(t, a, sign(jose.RS256, rsa2048(), good()))}
	goes := wantAccepted(t, a, token(good()))
	ofSecret := wantAccepted(t, a, sign(jose.HS256, theSecret, good()))
	require.NotContains(t, string(ofSecret.Key[:]), string(theSecret[:8]), "it is not the secret itself")

	require.NoError(t, os.WriteFile(path, []byte("no key"), 0o600))
	require.False(t, a.Refresh(time.Now()), "a broken file changes nothing")
	require.NoError(t, os.WriteFile(path, []byte(publicPEM(rsa2048())+"moved\n"+publicPEM(p256())), 0o600))
	require.True(t, a.Refresh(time.Now()))
	require.False(t, a.Refresh(time.Now()))
	require.True(t, a.Revoked(goes))
	for _, g := range append(stays, ofSecret) {
		require.False(t, a.Revoked(g))
	}
	require.NoError(t, os.WriteFile(secrets, []byte(jwkOf([]byte("another secret of at least 256 bits."))), 0o600))
	require.True(t, a.Refresh(time.Now()))
	require.True(t, a.Revoked(ofSecret))
	require.False(t, a.Revoked(&Grant{}), "anonymous")
}

// A key is added. What the others verified is not verified again, so that a change of keys costs
// nothing for clients that stay.
func TestAChangeOfKeysForgetsNoToken(t *testing.T) {
	path := file(t, publicPEM(edKey()))
	a := newAuthority(t, func(c *Config) { c.Keys = []string{path} })
	known := func(token string) bool {
		_, err := a.Identify(Credentials{Token: token}, false)
		if !errors.Is(err, ErrUnverified) {
			require.NoError(t, err)
		}
		return err == nil
	}
	mine, others := token(good()), sign(jose.EdDSA, otherEd(), good())
	require.False(t, known(mine))
	g := wantAccepted(t, a, mine)
	require.True(t, known(mine))

	require.NoError(t, os.WriteFile(path, []byte(publicPEM(edKey())+publicPEM(otherEd())), 0o600))
	require.False(t, a.Refresh(time.Now()))
	require.True(t, known(mine))
	require.Same(t, g, wantAccepted(t, a, mine))
	wantAccepted(t, a, others)

	require.NoError(t, os.WriteFile(path, []byte(publicPEM(otherEd())), 0o600))
	require.True(t, a.Refresh(time.Now()))
	require.False(t, known(mine), "its key is gone")
	require.True(t, known(others))
	wantRefused(t, a, mine, wire.CodeUnauthorized, "signature")
}

// A key gets another id, or another algorithm. Tokens that name the old one are refused, also if
// they are remembered. That ends no session: nobody has removed the key.
func TestAKeyThatChangesItsNameRefusesItsTokens(t *testing.T) {
	for name, change := range map[string][]any{"alg": {"alg", "PS256", "kid", "one"}, "kid": {"alg", "RS256", "kid", "two"}} {
		path := file(t, jwkOf(rsa2048().Public(), "alg", "RS256", "kid", "one"))
		a := newAuthority(t, func(c *Config) { c.Keys = []string{path} })
		named := sign(jose.RS256, rsa2048(), good(), "kid", "one")
		g := wantAccepted(t, a, named)
		require.NoError(t, os.WriteFile(path, []byte(jwkOf(rsa2048().Public(), change...)), 0o600))
		require.False(t, a.Refresh(time.Now()), name)
		wantRefused(t, a, named, wire.CodeUnauthorized, "")
		require.False(t, a.Revoked(g), name)
	}
}

// A token that was refused is known for some seconds, and until the keys change. Then it may be
// accepted.
func TestARefusedTokenIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := file(t, publicPEM(edKey()))
		a := newAuthority(t, func(c *Config) { c.Keys = []string{path} })
		bad := sign(jose.EdDSA, otherEd(), good())
		known := func(token string) bool {
			g, err := a.Identify(Credentials{Token: token}, false)
			require.Nil(t, g)
			require.Error(t, err)
			return !errors.Is(err, ErrUnverified)
		}
		require.False(t, known(bad))
		for range 3 {
			wantRefused(t, a, bad, wire.CodeUnauthorized, "signature")
			require.True(t, known(bad))
			time.Sleep(refusedFor / 2)
		}
		time.Sleep(2 * refusedFor)
		require.False(t, known(bad))
		early := token(good("nbf", time.Now().Unix()+15))
		wantRefused(t, a, early, wire.CodeUnauthorized, "nbf")
		require.False(t, known(early), "time heals it")

		wantRefused(t, a, bad, wire.CodeUnauthorized, "signature")
		require.NoError(t, os.WriteFile(path, []byte(publicPEM(edKey())+publicPEM(otherEd())), 0o600))
		require.False(t, a.Refresh(time.Now()))
		require.False(t, known(bad))
		wantAccepted(t, a, bad)
	})
}

// A text that is not a token at all is refused at once: there is no signature to check. That is
// remembered nowhere.
func TestATextThatIsNoTokenWaitsForNoCheck(t *testing.T) {
	a := newAuthority(t, nil)
	for _, text := range []string{"x", "a.b", "a.b.c.d", "a.b.c.d.e", "a.b.c=", "e30.e30.\n", strings.Repeat("a", maxTokenBytes+1)} {
		_, err := a.Identify(Credentials{Authorization: "Bearer " + text}, false)
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeUnauthorized}, text)
	}
	kept, _ := a.trust.Load().refused.Held()
	require.Zero(t, kept)
	_, err := a.Identify(Credentials{Token: sign(jose.EdDSA, otherEd(), good())}, false)
	require.ErrorIs(t, err, ErrUnverified)
}

// Refused tokens that are all different are forgotten, the oldest first.
func TestRefusalsAreBounded(t *testing.T) {
	r := &newAuthority(t, nil).trust.Load().refused
	name := func(i int) digest { return digestOf(fmt.Sprint(i)) }
	has := func(i int) bool { _, ok := r.Get(name(i)); return ok }
	const most = refusalsBytes / refusalBytes
	for i := range 10 * most {
		r.Put(name(i), pastRefusal{}, refusalBytes)
		kept, _ := r.Held()
		require.LessOrEqual(t, kept, 2*most)
	}
	require.False(t, has(0))
	require.True(t, has(10*most-1))
	require.True(t, has(9*most))
}

// The file system of a file of keys hangs. Other keys come into force meanwhile: a reload and a
// fetch of the JWKS do not wait.
func TestAFileOfKeysThatHangsHoldsUpNoOtherKeys(t *testing.T) {
	path := file(t, publicPEM(edKey()))
	a := newAuthority(t, func(c *Config) { c.Keys = []string{path} })
	refreshed := make(chan bool, 1)
	hung := hang(t, path, func() { refreshed <- a.Refresh(time.Now()) })
	a.TrustCertificatesOf(nil)
	require.Empty(t, refreshed)
	require.NoError(t, hung.Close())
	require.False(t, <-refreshed, "its keys stay as they were")
	wantAccepted(t, a, token(good()))
}

// Nor do keys of the JWKS live longer meanwhile, and the sessions of a removed one end.
func TestAFileOfKeysThatHangsKeepsNoStaleKeys(t *testing.T) {
	path := file(t, publicPEM(edKey()))
	a := newAuthority(t, func(c *Config) { c.Keys, c.JWKS = []string{path}, "http://127.0.0.1:1/" })
	keys, err := parseKeys([]byte(publicPEM(otherEd())))
	require.NoError(t, err)
	a.jwks.note(keys, digest{}, nil, false)
	a.rebuild()
	valid := sign(jose.EdDSA, otherEd(), good())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	revoked := make(chan struct{}, 1)
	hung := hang(t, path, func() {
		defer close(ended)
		a.Run(ctx, func() { revoked <- struct{}{} })
	})
	wantAccepted(t, a, valid)
	a.jwks.mu.Lock()
	a.jwks.fetched = time.Now().Add(-jwksStale)
	a.jwks.mu.Unlock()
	require.Eventually(t, func() bool { _, err := a.identify(valid); return err != nil }, time.Minute, 10*time.Millisecond)
	a.jwks.note(nil, digest{}, nil, false)
	a.rebuild()
	<-revoked
	cancel()
	require.NoError(t, hung.Close())
	<-ended
}

// A key is removed, and then another file of keys hangs, or that of API keys. The sessions of the
// removed key end meanwhile.
func TestAnotherFileThatHangsKeepsNoSessions(t *testing.T) {
	for name, asAPIKeys := range map[string]bool{"keys": false, "API keys": true} {
		t.Run(name, func(t *testing.T) {
			path, other := file(t, publicPEM(edKey())), file(t, "")
			a := newAuthority(t, func(c *Config) {
				c.Keys, c.APIKeys = []string{path}, other
				if !asAPIKeys {
					require.NoError(t, os.WriteFile(other, []byte(publicPEM(p256())), 0o600))
					c.Keys, c.APIKeys = append(c.Keys, other), ""
				}
			})
			g := wantAccepted(t, a, token(good()))
			require.NoError(t, os.WriteFile(path, []byte(publicPEM(otherEd())), 0o600))
			ctx, cancel := context.WithCancel(t.Context())
			ended, revoked := make(chan struct{}), make(chan struct{}, 1)
			hung := hang(t, other, func() {
				defer close(ended)
				a.Run(ctx, func() { revoked <- struct{}{} })
			})
			<-revoked
			require.True(t, a.Revoked(g))
			cancel()
			require.NoError(t, hung.Close())
			<-ended
		})
	}
}

// Nor do the keys wait for the file of revocations. That cannot hang here, so the log does.
func TestRevocationsThatHangHoldUpNoKeys(t *testing.T) {
	path, revocations := file(t, publicPEM(edKey())), filepath.Join(t.TempDir(), "revocations")
	hung, ends := make(chan struct{}), make(chan struct{})
	core, _ := observer.New(zap.WarnLevel)
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if strings.HasPrefix(e.Message, "another process has changed") {
			close(hung)
			<-ends
		}
		return nil
	}))
	a, err := New(Config{Keys: []string{path}, Revocations: revocations, TokenMaxAge: DefaultTokenMaxAge}, metrics.New("test"), log)
	require.NoError(t, err)
	defer a.Close()
	defer close(ends)
	ctx, cancel := context.WithCancel(t.Context())
	revoked := make(chan struct{}, 1)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	require.NoError(t, os.Remove(revocations))
	running.Go(func() { a.Run(ctx, func() { revoked <- struct{}{} }) })
	<-hung
	require.NoError(t, os.WriteFile(path, []byte(publicPEM(otherEd())), 0o600))
	<-revoked
}

// Nor does a file of keys that hangs hold up the end of the daemon.
func TestAFileOfKeysThatHangsDoesNotHoldUpTheEnd(t *testing.T) {
	path := file(t, publicPEM(edKey()))
	a := newAuthority(t, func(c *Config) { c.Keys = []string{path} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	hung := hang(t, path, func() {
		defer close(ended)
		a.Run(ctx, func() {})
	})
	cancel()
	<-ended
	require.NoError(t, hung.Close())
}

// hang makes a file hang, and returns it once read, which runs in a goroutine, reads it. Close
// ends that.
func hang(t *testing.T, path string, read func()) *os.File {
	t.Helper()
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	go read()
	hung, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	return hung
}
