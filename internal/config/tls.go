package config

import (
	"crypto/tls"
	"fmt"
	"os"
)

// TLS names the files, in PEM, of the daemon's certificate. Both are set, or neither
// to serve without TLS.
type TLS struct {
	Cert string // the certificate, followed by the intermediate certificates
	Key  string // the private key of the first certificate
}

// On reports whether clients are served over TLS.
func (t TLS) On() bool { return t.Cert != "" }

// Load reads the files as they are now. The error is an *Error.
func (t TLS) Load() (*tls.Certificate, error) {
	cert, err := readPEM("tls.cert", t.Cert)
	if err != nil {
		return nil, err
	}
	key, err := readPEM("tls.key", t.Key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &Error{Key: "tls.key", with: "tls.cert", Reason: fmt.Sprintf(
			"is %q, which is not a pair with tls.cert (%q): %s: name a certificate and its own private key, both in PEM", t.Key, t.Cert, err)}
	}
	return &pair, nil
}

func readPEM(key, file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, &Error{Key: key, Reason: fmt.Sprintf("is %q: %s: name a file that the daemon may read", file, err)}
	}
	return text, nil
}
