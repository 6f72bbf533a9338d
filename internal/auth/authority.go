package auth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// Config says whose credentials are accepted. The zero value accepts none.
type Config struct {
	// Keys are files with the keys that verify tokens: public keys in PEM, JWKs or JWK sets.
	// An HMAC secret is a JWK of type oct. The files are read again when they change.
	Keys []string

	// JWKS is a URL with a JWK set of public keys, which is fetched again every 5 minutes.
	// Empty: none.
	JWKS string

	// Issuer, Audience and Type are what iss, aud and typ of tokens must be. Empty: not
	// checked; without Audience, a token for an audience is refused.
	Issuer, Audience, Type string

	// APIKeys is the file of API keys, which is read again when it changes. A file that does not
	// exist yet has no keys, if its folder exists. Empty: none.
	APIKeys string

	// Revocations is the file of revocations, which one authority has at a time. Empty:
	// tokens cannot be revoked.
	Revocations string

	// TokenMaxAge is how long a token may be valid, from iat to exp. It bounds the list of
	// revocations, which must remember a token until it expires. Default 24 h.
	TokenMaxAge time.Duration

	// CertificateMaxAge is how long a client's certificate may be valid, from notBefore to
	// notAfter. It bounds the list of revocations, too. 0: any time; with Certificates, the
	// revocation of a subject is then kept without end.
	CertificateMaxAge time.Duration

	// PublicClaims are the claims of a token that others may see. Default none.
	PublicClaims []string

	// Anonymous has the rights of callers without credentials, as a token's claim "pubsub"
	// does. Empty: they have none.
	Anonymous string

	// Certificates has the rights of clients with a certificate, in the same form. $sub
	// stands for the common name. Empty: certificates identify nobody.
	Certificates string
}

// DefaultTokenMaxAge is the default of Config.TokenMaxAge.
const DefaultTokenMaxAge = 24 * time.Hour

// On reports whether there is any authorisation. Without it, the authority is Open.
func (c Config) On() bool {
	return c.Tokens() || c.APIKeys != "" || c.Anonymous != "" || c.Certificates != ""
}

// Tokens reports whether tokens are accepted.
func (c Config) Tokens() bool { return len(c.Keys) > 0 || c.JWKS != "" }

// CheckKeys returns an error if the files of keys cannot be used now.
func (c Config) CheckKeys() error {
	_, err := openKeyFiles(c.Keys, time.Now())
	return err
}

// CheckAPIKeys returns an error if the file of API keys cannot be used now.
func (c Config) CheckAPIKeys() error {
	if c.APIKeys == "" {
		return nil
	}
	_, err := openAPIKeys(c.APIKeys, time.Now())
	return err
}

// LacksAPIKeys reports whether the file of API keys does not exist now.
func (c Config) LacksAPIKeys() bool {
	_, err := os.Stat(c.APIKeys)
	return c.APIKeys != "" && errors.Is(err, fs.ErrNotExist)
}

// An Authority verifies credentials and remembers their grants. All methods may be called
// concurrently, but for Refresh. Its owner runs Run, and closes it.
type Authority struct {
	// immutable
	cfg         Config
	anonymous   *Grant
	jwks        *jwks        // nil: none
	apiKeys     *apiKeys     // nil: none
	revocations *Revocations // nil: none
	log         *zap.Logger
	verified    prometheus.Counter
	hits        prometheus.Counter
	refused     *prometheus.CounterVec
	failures    prometheus.Counter

	trust     atomic.Pointer[trust] // in force; see rebuild
	distrust  atomic.Bool           // a key was removed or has changed, and its sessions are not ended yet
	tokens    memory.Cache[digest, *Grant]
	certified memory.Cache[digest, *Grant] // of certificates

	files []*keyFile // immutable; owned by Refresh, but for their keys

	rebuilding  sync.Mutex // guards the keys of the files, and authorities; never held during I/O
	authorities []digest   // of certificates
}

// A trust is what verifies tokens and certificates until the next rebuild. But for refused, it
// is immutable.
type trust struct {
	keys    []key                             // of tokens
	current map[digest]bool                   // by key.whole
	refused memory.Cache[digest, pastRefusal] // tokens that the keys did not verify

	// prints identify the keys and the authorities of certificates. Stale keys of the JWKS are
	// among them: they verify no token, but sessions go on.
	prints map[digest]bool
}

// New returns an authority. It reads its files. cfg must be valid.
func New(cfg Config, m *metrics.Metrics, log *zap.Logger) (*Authority, error) {
	files, err := openKeyFiles(cfg.Keys, time.Now())
	if err != nil {
		return nil, fmt.Errorf("auth.keys: %w", err)
	}
	a := &Authority{
		cfg:       cfg,
		anonymous: &Grant{},
		log:       log.Named("auth"),
		verified:  m.TokensVerified,
		hits:      m.TokenCacheHits,
		refused:   m.CredentialsRefused,
		failures:  m.KeyReadsFailed.WithLabelValues("file"),
		tokens:    memory.Cache[digest, *Grant]{Most: tokensBytes},
		certified: memory.Cache[digest, *Grant]{Most: certificatesBytes},
		files:     files,
	}
	if cfg.Anonymous != "" {
		if a.anonymous.Rights, err = ParseRights([]byte(cfg.Anonymous), ""); err != nil {
			return nil, fmt.Errorf("auth.anonymous: %w", err)
		}
	}
	now := time.Now()
	if cfg.APIKeys != "" {
		if a.apiKeys, err = openAPIKeys(cfg.APIKeys, now); err != nil {
			return nil, fmt.Errorf("auth.api_keys: %w", err)
		}
	}
	if cfg.Revocations != "" { // the last step that can fail
		subjects := cfg.TokenMaxAge
		if cfg.Certificates != "" {
			subjects = cfg.CertificateMaxAge
		}
		if a.revocations, err = OpenRevocations(cfg.Revocations, cfg.TokenMaxAge, subjects, a.log, now); err != nil {
			return nil, err
		}
	}
	for _, why := range reasons() {
		a.refused.WithLabelValues(string(why)) // from zero
	}
	if failures := m.KeyReadsFailed.WithLabelValues("jwks"); cfg.JWKS != "" {
		a.jwks = newJWKS(cfg.JWKS, a.log, failures, a.rebuild)
	}
	a.rebuild()
	return a, nil
}

// refreshEvery is how late a change of a file may be noticed.
const refreshEvery = time.Second

// Run refreshes the authority, and fetches the keys of the JWKS, if there is one, until ctx
// ends. It calls revoked when keys were removed or have changed: then sessions may have grants
// that are revoked. If a file system hangs, only goroutines that read files wait for it; at its end,
// Run waits for these for at most refreshEvery.
func (a *Authority) Run(ctx context.Context, revoked func()) {
	var fetching sync.WaitGroup
	defer fetching.Wait()
	fetching.Go(func() { a.jwks.run(ctx) })
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	refreshed := make(chan bool, 1)
	for refreshing := false; ; {
		select {
		case now := <-tick.C:
			a.expire(now, revoked)
			go a.revocations.Check() // one at a time has the file; Close waits for it
			if !refreshing {
				refreshing = true
				go func() { refreshed <- a.Refresh(now) }()
			}
		case removed := <-refreshed:
			refreshing = false
			if removed {
				revoked()
			}
		case <-ctx.Done():
			if !refreshing {
				return
			}
			select {
			case <-refreshed:
			case <-time.After(refreshEvery):
			}
			return
		}
	}
}

// Close releases the file of revocations, for another authority. After it, none can be added.
// It may be called on nil, like Revocations.
func (a *Authority) Close() { a.Revocations().Close() }

// Revocations returns the tokens that are refused, or nil if there is no file for them.
func (a *Authority) Revocations() *Revocations {
	if a == nil {
		return nil
	}
	return a.revocations
}

// Revoked reports whether the credentials of a grant were revoked, or what verified them is not
// trusted any more, or the rights of the API key have changed since. It neither waits nor
// allocates.
func (a *Authority) Revoked(g *Grant) bool {
	switch {
	case g.Key == digest{}: // anonymous
		return false
	case g.Issued.IsZero():
		return a.apiKeys.revoked(g)
	}
	return a.revocations.Revoked(g) || !a.trust.Load().prints[g.Key]
}

// expire drops keys of the JWKS that are too old, and calls revoked if a key was removed. It does
// not wait for files.
func (a *Authority) expire(now time.Time, revoked func()) {
	if a.jwks != nil && a.jwks.expire(now) {
		a.rebuild()
		a.log.Error("the keys of auth.jwks are refused: they were last fetched too long ago", zap.Duration("age", a.jwks.age(now)))
	}
	if a.distrust.Swap(false) {
		revoked()
	}
}

// Refresh reads files again that have changed. It costs a stat for each file. It reports whether
// keys were removed or have changed: then sessions may have grants that are revoked. Run calls it,
// in one goroutine at a time.
func (a *Authority) Refresh(now time.Time) (revoked bool) {
	for _, f := range a.files {
		keys, err := f.refresh(now)
		switch {
		case err != nil:
			a.failures.Inc()
			a.log.Error("cannot read a file of auth.keys: its keys stay as they were", zap.Error(err))
		case keys != nil: // in force at once: the next file may hang
			a.rebuilding.Lock()
			f.keys = keys
			a.rebuilding.Unlock()
			a.rebuild()
			a.log.Info("a file of auth.keys has changed", zap.String("file", f.path), zap.Int("keys", len(keys)))
		}
	}
	if a.apiKeys != nil {
		changed, err := a.apiKeys.refresh(now)
		switch {
		case err != nil:
			a.failures.Inc()
			a.log.Error("cannot read auth.api_keys: the keys stay as they were", zap.Error(err))
		case changed:
			a.log.Info("auth.api_keys has changed", zap.String("file", a.apiKeys.file.path), zap.Int("keys", a.apiKeys.len()))
			a.distrust.Store(true)
		}
	}
	return a.distrust.Swap(false) // last, because Run may take the flag while a file hangs
}

// rebuild puts all keys in force. Tokens that a removed key verified are not valid any more. It notes
// whether a key is gone.
func (a *Authority) rebuild() {
	a.rebuilding.Lock()
	defer a.rebuilding.Unlock()
	is := &trust{prints: make(map[digest]bool), current: make(map[digest]bool), refused: memory.Cache[digest, pastRefusal]{Most: refusalsBytes}}
	add := func(keys []key, stale bool) {
		for _, k := range keys {
			is.prints[k.print] = true
			if !stale {
				is.keys, is.current[k.whole] = append(is.keys, k), true
			}
		}
	}
	for _, f := range a.files {
		add(f.keys, false)
	}
	if a.jwks != nil {
		add(a.jwks.current())
	}
	for _, of := range a.authorities {
		is.prints[of] = true
	}
	was := a.trust.Swap(is)
	if was == nil {
		return
	}
	for of := range was.prints {
		if !is.prints[of] {
			a.distrust.Store(true)
		}
	}
}

// Gauges adds the authority's state.
func (a *Authority) Gauges(g *metrics.Gauges) {
	g.TokenKeys = len(a.trust.Load().keys)
	g.CachedTokens, g.TokenCacheBytes = a.tokens.Held()
	_, ofCertificates := a.certified.Held()
	g.TokenCacheBytes += ofCertificates
	if a.jwks != nil {
		g.JWKSAge = a.jwks.age(time.Now())
	}
	if a.apiKeys != nil {
		g.Limits = append(g.Limits, metrics.Limit{Name: "api_keys", Most: maxAPIKeys, InUse: a.apiKeys.len()})
	}
	a.revocations.Gauges(g, time.Now())
}

// ErrUnverified says that the signature of a token must be checked.
var ErrUnverified = errors.New("the signature of the token must be checked")

// Identify returns the grant of the credentials, or the anonymous grant if there are none. A
// token takes precedence over a certificate, which belongs to the connection. Identify does not
// wait. It checks a signature only with verify: that may take a millisecond. Without, the error
// is ErrUnverified where it would. Other errors are *wire.Problems: unauthorized, token_expired,
// invalid_request for two credentials, or overloaded while keys are fetched.
func (a *Authority) Identify(c Credentials, verify bool) (*Grant, error) {
	g, err := a.judge(c, verify)
	refused, ok := errors.AsType[*refusal](err)
	if !ok {
		return g, err
	}
	a.refused.WithLabelValues(string(refused.reason)).Inc()
	return nil, refused.Problem
}

// judge is Identify. The error is a *refusal or ErrUnverified.
func (a *Authority) judge(c Credentials, verify bool) (*Grant, error) {
	secret, err := secretOf(c)
	g := a.anonymous
	switch {
	case err != nil:
	case strings.HasPrefix(secret, apiKeyPrefix):
		switch g = a.apiKeys.find(secret); {
		case g == nil:
			err = refuse(unknownKey, "make a new key with `pubsubd key new`", "the API key is unknown: it is wrong, or was revoked")
		case g.HasExpired(time.Now()):
			err = refuse(expired, "make a new key with `pubsubd key new`", "the API key expired %v ago", time.Since(g.Expires).Truncate(time.Second))
		}
	case secret != "":
		g, err = a.byToken(secret, time.Now(), verify)
	case c.Certificate != nil && a.cfg.Certificates != "":
		g, err = a.byCertificate(c.Certificate, time.Now())
	}
	if err == nil && a.revocations.Revoked(g) { // on every call: the cache does not know
		err = refuse(revoked, newTokenRemedy, "the token was revoked")
		if secret == "" {
			err = refuse(revoked, "get a new certificate", "the certificates of this subject were revoked")
		}
	}
	return g, err
}

// secretOf returns the token among credentials. It is empty if there is none.
func secretOf(c Credentials) (string, error) {
	const asHeader = "send Authorization: Bearer TOKEN"
	if c.Authorization == "" {
		return c.Token, nil
	}
	scheme, secret, _ := strings.Cut(c.Authorization, " ")
	secret = strings.Trim(secret, " ")
	switch {
	case c.Token != "":
		return "", refuse(several, "send only one of them", "the request has a token and an Authorization header")
	case !strings.EqualFold(scheme, "Bearer"): // case does not matter (RFC 9110, section 11.1)
		return "", refuse(wrongScheme, asHeader, "the scheme of the Authorization header is not Bearer")
	case secret == "":
		return "", refuse(malformed, asHeader, "the Authorization header has no token")
	}
	return secret, nil
}

// byToken returns the grant of a token.
func (a *Authority) byToken(token string, now time.Time, verify bool) (*Grant, error) {
	d, trust := digestOf(token), a.trust.Load()
	if g, ok := a.tokens.Get(d); ok && trust.current[g.by] { // Fast path: verified before
		a.hits.Inc()
		return g, checkExpiry(g, now)
	}
	if was, ok := trust.refused.Get(d); ok && now.Sub(was.at) < refusedFor {
		return nil, a.orLater(was.refusal, now)
	}
	if !verify {
		if _, err := partsOf(token); err != nil { // no signature to wait for
			return nil, err
		}
		return nil, ErrUnverified
	}
	g, err := a.cfg.verify(token, trust.keys, now)
	if err != nil {
		if why, _ := errors.AsType[*refusal](err); why.reason != notYetValid {
			trust.refused.Put(d, pastRefusal{why, now}, refusalBytes)
		}
		return nil, a.orLater(err, now)
	}
	a.verified.Inc()
	a.tokens.Put(d, g, g.size())
	return g, nil
}

// orLater returns the refusal of a token, or another one if keys that are being fetched may
// verify it.
func (a *Authority) orLater(err error, now time.Time) error {
	if refused, _ := errors.AsType[*refusal](err); refused.reason == wrongKey && a.jwks != nil && a.jwks.missing(now) {
		later := refuse(unavailable, "retry after retry_after_ms", "the daemon has no key for the token now, and fetches the keys of auth.jwks")
		later.Problem = later.Retry(time.Second)
		return later
	}
	return err
}
