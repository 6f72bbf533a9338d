// Package acme gets the daemon's certificates from an authority and renews them (RFC 8555).
package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// Config says which certificates to get, and where. The zero value gets none.
type Config struct {
	// Domains are the names of the certificates, one certificate each. Clients that name no
	// server get the first.
	Domains []string

	Email     string // where the authority warns the operator; empty: nowhere
	Directory string // URL of the authority; default DefaultDirectory
	Storage   string // folder for keys and certificates, of mode 0700
	Agree     bool   // the operator agrees to the authority's terms; must be true
}

// DefaultDirectory is the default of Config.Directory: Let's Encrypt.
const DefaultDirectory = certmagic.LetsEncryptProductionCA

// On reports whether there are certificates to get.
func (c Config) On() bool { return len(c.Domains) > 0 }

// A Manager has the certificates of one daemon. Call Start once, and Stop once after that.
// The other methods may be called concurrently, also before: until then there are no
// certificates.
type Manager struct {
	cfg      Config // immutable
	log      *zap.Logger
	failures func() // counts a failure to get or renew

	started atomic.Pointer[started] // nil before Start
}

// started is what Start makes. It is immutable.
type started struct {
	magic  *certmagic.Config
	issuer *certmagic.ACMEIssuer
	cache  *certmagic.Cache
	cancel context.CancelFunc
}

// New returns a manager. It makes the folder if there is none. The error says what is wrong
// with the folder.
func New(cfg Config, m *metrics.Metrics, log *zap.Logger) (*Manager, error) {
	if err := os.MkdirAll(cfg.Storage, 0o700); err != nil {
		return nil, fmt.Errorf("tls.acme.storage: %w", err)
	}
	info, err := os.Stat(cfg.Storage)
	if err != nil {
		return nil, fmt.Errorf("tls.acme.storage: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("tls.acme.storage: %s has mode %#o, so that others may read private keys: chmod 700 it", cfg.Storage, mode)
	}
	return &Manager{cfg: cfg, log: log.Named("acme"), failures: m.CertificateFailures.Inc}, nil
}

// Start begins to get and renew certificates in the background. public is the listener with
// TLS, which answers TLS-ALPN-01 (RFC 8737). challenges is the listener that serves ServeHTTP
// for HTTP-01 (RFC 8555, section 8.3), or nil.
func (m *Manager) Start(public, challenges net.Addr) {
	var s started
	s.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.started.Load().magic, nil },
		Logger:           m.log,
	})
	s.magic = certmagic.New(s.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: m.cfg.Storage}, DefaultServerName: m.cfg.Domains[0],
		Logger: m.log, // what happens
		OnEvent: func(_ context.Context, name string, _ map[string]any) error {
			if name == "cert_failed" {
				m.failures()
			}
			return nil
		},
	})
	issuer := certmagic.ACMEIssuer{
		CA: m.cfg.Directory, Email: m.cfg.Email, Agreed: m.cfg.Agree, Logger: m.log,
		DisableHTTPChallenge: challenges == nil,
	}
	// Unless a listener has these addresses, the library makes one of its own.
	issuer.ListenHost, issuer.AltTLSALPNPort = hostPort(public)
	if challenges != nil {
		_, issuer.AltHTTPPort = hostPort(challenges)
	}
	s.issuer = certmagic.NewACMEIssuer(s.magic, issuer)
	s.magic.Issuers = []certmagic.Issuer{s.issuer}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	m.started.Store(&s)
	if err := s.magic.ManageAsync(ctx, m.cfg.Domains); err != nil {
		panic("BUG: what runs in the background failed at once: " + err.Error())
	}
}

// hostPort returns the parts of a listener's address.
func hostPort(a net.Addr) (host string, port int) {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.String(), tcp.Port
	}
	return "", 0
}

// Stop ends what runs in the background.
func (m *Manager) Stop() {
	s := m.started.Load()
	s.cancel()
	s.cache.Stop()
}

// Protocol is the protocol within TLS of the authority's challenges (RFC 8737, section 4).
const Protocol = acmez.ACMETLS1Protocol

var errNotStarted = errors.New("certificates are not managed yet")

// Certificate returns the certificate for a handshake, or the answer to a challenge.
func (m *Manager) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s := m.started.Load()
	if s == nil {
		return nil, errNotStarted
	}
	return s.magic.GetCertificate(hello)
}

// Expires returns when the first of the certificates expires. It is zero if one is still
// missing.
func (m *Manager) Expires() time.Time {
	var first time.Time
	s := m.started.Load()
	if s == nil {
		return first
	}
	for _, domain := range m.cfg.Domains {
		var newest time.Time // certificate of the domain
		for _, c := range s.cache.AllMatchingCertificates(domain) {
			if c.Leaf != nil && c.Leaf.NotAfter.After(newest) {
				newest = c.Leaf.NotAfter
			}
		}
		if newest.IsZero() {
			return newest
		}
		if first.IsZero() || newest.Before(first) {
			first = newest
		}
	}
	return first
}

// ServeHTTP answers the challenges of HTTP-01, and nothing else.
func (m *Manager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s := m.started.Load(); s == nil || !s.issuer.HandleHTTPChallenge(w, r) {
		http.Error(w, "this listener serves only ACME challenges", http.StatusNotFound)
	}
}
