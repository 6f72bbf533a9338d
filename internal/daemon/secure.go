package daemon

import (
	"bytes"
	"crypto/tls"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
)

// secure has clients of l speak TLS, if there is a certificate; else it returns l.
// protocols are what they may choose from (ALPN), the one that is liked best first;
// without any they choose none. Handshakes that begin after a reload get the
// certificate that it read; connections that there are go on as they are.
func (d *Daemon) secure(l net.Listener, protocols ...string) net.Listener {
	if d.certificate.Load() == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:     tls.VersionTLS12, // for servers it is Go's default, which GODEBUG may lower
		NextProtos:     protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return d.certificate.Load(), nil },
	})
}

// loadCertificate returns the certificate in the files, or nil if none are named.
func loadCertificate(files config.TLS) (*tls.Certificate, error) {
	if !files.On() {
		return nil, nil
	}
	return files.Load()
}

// renewedCertificate returns the certificate to use after a reload: what the files hold
// now. If others are named than at the start, that needs a restart, and it stays the
// one that it is.
func (d *Daemon) renewedCertificate(said config.TLS) (*tls.Certificate, error) {
	if said != d.cfg.TLS {
		return d.certificate.Load(), nil
	}
	return loadCertificate(said)
}

// useCertificate has handshakes get c from now on, and says so if it is another.
func (d *Daemon) useCertificate(c *tls.Certificate) {
	was := d.certificate.Swap(c)
	if c == nil || was != nil && bytes.Equal(was.Leaf.Raw, c.Leaf.Raw) {
		return
	}
	d.log.Info("certificate", zap.Strings("names", c.Leaf.DNSNames), zap.Time("expires", c.Leaf.NotAfter))
	if time.Now().After(c.Leaf.NotAfter) {
		d.log.Warn("the certificate has expired: clients will refuse it; renew it and reload", zap.Time("expired", c.Leaf.NotAfter))
	}
}
