package config

import (
	"crypto/tls"
	"fmt"
	"os"
)

// TLS has the files, in PEM, by which the daemon proves to clients who it is: both,
// or none to serve without TLS.
type TLS struct {
	Cert string // its certificate, and then those between it and its authority
	Key  string // the private key of the first
}

// On reports whether clients are served over TLS.
func (t TLS) On() bool { return t.Cert != "" }

// Load reads the files as they are now.
func (t TLS) Load() (*tls.Certificate, error) {
	pair, wrong := t.load()
	if wrong != nil {
		return nil, wrong
	}
	return pair, nil
}

func (t TLS) load() (*tls.Certificate, *Error) {
	cert, wrong := readPEM("tls.cert", t.Cert)
	if wrong != nil {
		return nil, wrong
	}
	key, wrong := readPEM("tls.key", t.Key)
	if wrong != nil {
		return nil, wrong
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &Error{Key: "tls.key", with: "tls.cert", Reason: fmt.Sprintf(
			"is %q, which with tls.cert (%q) is no pair: %s: name a certificate and its own private key, both in PEM", t.Key, t.Cert, err)}
	}
	return &pair, nil
}

func readPEM(key, file string) ([]byte, *Error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, &Error{Key: key, Reason: fmt.Sprintf("is %q: %s: name a file that the daemon may read", file, err)}
	}
	return text, nil
}

// wrongTLS looks for half of a pair, and then at the files of a whole one.
func wrongTLS(c *Config) []*Error {
	const orNone = "or leave both out to serve without TLS"
	switch {
	case c.TLS.Cert == "" && c.TLS.Key == "":
		return nil
	case c.TLS.Key == "":
		return []*Error{{Key: "tls.cert", Reason: fmt.Sprintf("is %q, but tls.key is missing: name the file of its private key, %s", c.TLS.Cert, orNone)}}
	case c.TLS.Cert == "":
		return []*Error{{Key: "tls.key", Reason: fmt.Sprintf("is %q, but tls.cert is missing: name the file of its certificate, %s", c.TLS.Key, orNone)}}
	}
	if _, wrong := c.TLS.load(); wrong != nil {
		return []*Error{wrong}
	}
	return nil
}
