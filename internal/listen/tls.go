package listen

import (
	"bytes"
	"crypto/tls"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// A Certificate is the daemon's certificate. A reload may replace it. It may be used
// concurrently.
type Certificate struct {
	current atomic.Pointer[tls.Certificate]
	log     *zap.Logger
}

// NewCertificate returns a Certificate with c, or nil if c is nil, which means no TLS.
func NewCertificate(c *tls.Certificate, log *zap.Logger) *Certificate {
	if c == nil {
		return nil
	}
	certificate := &Certificate{log: log}
	certificate.Replace(c)
	return certificate
}

// Replace makes new handshakes use c, and logs c if it is another certificate.
// Established connections keep theirs.
func (h *Certificate) Replace(c *tls.Certificate) {
	was := h.current.Swap(c)
	if was != nil && bytes.Equal(was.Leaf.Raw, c.Leaf.Raw) {
		return
	}
	h.log.Info("certificate", zap.Strings("names", c.Leaf.DNSNames), zap.Time("expires", c.Leaf.NotAfter))
	if time.Now().After(c.Leaf.NotAfter) {
		h.log.Warn("the certificate has expired: clients will refuse it; renew it and reload", zap.Time("expired", c.Leaf.NotAfter))
	}
}

// Expires returns when the certificate expires.
func (h *Certificate) Expires() time.Time { return h.current.Load().Leaf.NotAfter }

// config returns the settings of handshakes, with these protocols for ALPN, if any.
func (h *Certificate) config(protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12, // Go's default for servers, which GODEBUG may lower
		NextProtos:     protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return h.current.Load(), nil },
	}
}
