package listen

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
)

// A Certificate is the daemon's certificate, with the authorities whose certificates its
// clients may show. A reload may replace both. It may be used concurrently.
type Certificate struct {
	current atomic.Pointer[tls.Certificate]
	clients atomic.Pointer[x509.CertPool] // nil: clients are not asked for a certificate
	managed Managed                       // nil: current is the certificate; immutable, like the next two
	proves  string                        // the protocol within TLS of challenges; empty: none
	log     *zap.Logger
}

// Managed are certificates that something else gets and renews. They may be used
// concurrently.
type Managed interface {
	Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Expires() time.Time // when the first of them expires; zero: one is missing
}

// NewCertificate returns a Certificate, of which Replace sets the rest. managed is nil if the
// certificate is one of files. proves is the protocol within TLS by which an authority challenges
// managed.
func NewCertificate(managed Managed, proves string, log *zap.Logger) *Certificate {
	return &Certificate{managed: managed, proves: proves, log: log}
}

// Replace makes new handshakes use c and clients, and logs those that have changed.
// Established connections keep theirs. c is nil if the certificates are managed. It may be called
// on nil, which means no TLS.
func (h *Certificate) Replace(c *tls.Certificate, clients []*x509.Certificate) {
	if h == nil {
		return
	}
	var pool *x509.CertPool // nil: there are none
	if len(clients) > 0 {
		pool = x509.NewCertPool()
		for _, of := range clients {
			pool.AddCert(of)
		}
	}
	if was := h.clients.Swap(pool); !was.Equal(pool) {
		h.log.Info("client certificate authorities", zap.Int("authorities", len(clients)))
	}
	if c == nil {
		return
	}
	was := h.current.Swap(c)
	if was != nil && bytes.Equal(was.Leaf.Raw, c.Leaf.Raw) {
		return
	}
	h.log.Info("certificate", zap.Strings("names", c.Leaf.DNSNames), zap.Time("expires", c.Leaf.NotAfter))
	if time.Now().After(c.Leaf.NotAfter) {
		h.log.Warn("the certificate has expired: clients will refuse it; renew it and reload", zap.Time("expired", c.Leaf.NotAfter))
	}
}

// Expires returns when the certificate expires. It is zero if a managed one is missing.
func (h *Certificate) Expires() time.Time {
	if h.managed != nil {
		return h.managed.Expires()
	}
	return h.current.Load().Leaf.NotAfter
}

func (h *Certificate) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if h.managed != nil {
		return h.managed.Certificate(hello)
	}
	return h.current.Load(), nil
}

// config returns the settings of handshakes, with these protocols for ALPN, if any.
func (h *Certificate) config(protocols []string) *tls.Config {
	if h.proves != "" && len(protocols) > 0 {
		protocols = append(slices.Clone(protocols), h.proves)
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12, // Go's default for servers, which GODEBUG may lower
		NextProtos:     protocols,
		GetCertificate: h.get,
	}
	base := c.Clone()
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		clients := h.clients.Load()
		if clients == nil {
			return nil, nil // c itself
		}
		asking := base.Clone()
		asking.ClientAuth, asking.ClientCAs = tls.VerifyClientCertIfGiven, clients
		asking.VerifyConnection = func(s tls.ConnectionState) error { return admitClient(s, Of(hello.Conn)) }
		return asking, nil
	}
	return c
}

var errNoName = errors.New("the client's certificate has no common name that can be a principal")

// admitClient refuses a client whose certificate names nobody. A connection ends when the
// client's certificate expires. TLS has verified the rest, also for a session that is
// resumed. The certificate of a trusted proxy identifies nobody, so it may have any name, and
// the connections of the proxy's clients outlast it.
func admitClient(s tls.ConnectionState, c *Conn) error {
	if len(s.PeerCertificates) == 0 || Counted(c).IsProxy() {
		return nil
	}
	leaf := s.PeerCertificates[0]
	if _, ok := auth.PrincipalOf(leaf); !ok {
		return errNoName
	}
	c.endAt(leaf.NotAfter)
	return nil
}

// Shown returns s, the state of TLS on nc, if the client has shown a certificate. Otherwise it
// returns nil, also if s is nil. A trusted proxy's certificate does not count: it says nothing
// about the clients for which the proxy asks.
func Shown(nc net.Conn, s *tls.ConnectionState) *tls.ConnectionState {
	if s == nil || len(s.VerifiedChains) == 0 || Counted(nc).IsProxy() {
		return nil
	}
	return s
}
