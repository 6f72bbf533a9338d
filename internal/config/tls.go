package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/pubsubd/pubsubd/internal/auth"
)

// TLS names the files, in PEM, of the daemon's certificate. Both are set, or neither
// to serve without TLS.
type TLS struct {
	Cert string // the certificate, followed by the intermediate certificates
	Key  string // the private key of the first certificate

	// ClientCA, if not empty, has the authorities of certificates that clients may show.
	ClientCA string
}

// On reports whether there are files.
func (t TLS) On() bool { return t.Cert != "" }

// ServesTLS reports whether clients are served over TLS, by files or by ACME.
func (c Config) ServesTLS() bool { return c.TLS.On() || c.ACME.On() }

// Load reads the files as they are now, or returns nil if none are named. The error is an
// *Error.
func (t TLS) Load() (*tls.Certificate, error) {
	if !t.On() {
		return nil, nil
	}
	var texts [2][]byte
	for i, file := range []struct{ key, name string }{{"tls.cert", t.Cert}, {"tls.key", t.Key}} {
		text, err := ReadText(file.name)
		if err != nil {
			return nil, &Error{Key: file.key, Reason: fmt.Sprintf("is %q: %s: name a file that the daemon may read", file.name, err)}
		}
		texts[i] = text
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return nil, &Error{Key: "tls.key", with: "tls.cert", Reason: fmt.Sprintf(
			"is %q, which does not match tls.cert (%q): %s: name a certificate and its private key, both in PEM", t.Key, t.Cert, err)}
	}
	return &pair, nil
}

// LoadClientCA reads the authorities of clients' certificates as they are now, or returns nil
// if no file is named. The error is an *Error.
func (t TLS) LoadClientCA() (authorities []*x509.Certificate, _ error) {
	if t.ClientCA == "" {
		return nil, nil
	}
	text, err := ReadText(t.ClientCA)
	if err != nil {
		return nil, &Error{Key: "tls.client_ca", Reason: fmt.Sprintf("is %q: %s: name a file that the daemon may read", t.ClientCA, err)}
	}
	blocks, err := auth.PEMBlocks(text)
	if err != nil {
		return nil, &Error{Key: "tls.client_ca", Reason: fmt.Sprintf("is %q, which %s", t.ClientCA, err)}
	}
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		of, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &Error{Key: "tls.client_ca", Reason: fmt.Sprintf("is %q, whose certificate %d cannot be read: %s: name a file with the certificates of the authorities", t.ClientCA, len(authorities)+1, err)}
		}
		authorities = append(authorities, of)
	}
	if len(authorities) == 0 {
		return nil, &Error{Key: "tls.client_ca", Reason: fmt.Sprintf("is %q, which has no certificate in PEM: name a file with the certificates of the authorities", t.ClientCA)}
	}
	return authorities, nil
}
