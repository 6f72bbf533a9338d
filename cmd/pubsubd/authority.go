package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/internal/config"
)

// Where all commands that speak to a daemon learn whose certificates to trust, and which
// certificate to show.
const (
	authorityFlag = "ca"
	authorityEnv  = "PUBSUBD_CA"
	certFlag      = "cert"
	certEnv       = "PUBSUBD_CERT"
	certKeyFlag   = "cert-key" // publish has another --key
	certKeyEnv    = "PUBSUBD_CERT_KEY"
)

// An authority is whose certificates a command trusts, without a file the system's, and the
// certificate that the command shows, if any.
type authority struct {
	ca, cert, key *namedFile
}

func bindAuthority(f *pflag.FlagSet) *authority {
	return &authority{
		ca:   bindFile(f, authorityFlag, authorityEnv, "trust only the certificate authorities in this PEM `FILE`"),
		cert: bindFile(f, certFlag, certEnv, "send the client certificate in this PEM `FILE` to the daemon"),
		key:  bindFile(f, certKeyFlag, certKeyEnv, "PEM `FILE` with the private key of --"+certFlag),
	}
}

// tls returns the configuration of a client. The error is a usage error.
func (a *authority) tls() (*tls.Config, error) {
	roots, err := a.roots()
	if err != nil {
		return nil, usageError{err}
	}
	config := &tls.Config{RootCAs: roots}
	switch shown, err := a.certificate(); {
	case err != nil:
		return nil, usageError{err}
	case shown != nil:
		config.GetClientCertificate = a.show
	}
	return config, nil
}

// show reads the certificate again for each connection, because a long command may outlast it.
// Like crypto/tls, it shows none to a daemon that trusts other authorities.
func (a *authority) show(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	shown, err := a.certificate()
	if err == nil && asked.SupportsCertificate(shown) != nil {
		shown = new(tls.Certificate)
	}
	return shown, err
}

// roots returns the authorities that the command trusts, or nil for the system's.
func (a *authority) roots() (*x509.CertPool, error) {
	file, where := a.ca.said()
	if file == "" && !a.ca.flag.Changed {
		return nil, nil
	}
	text, err := config.ReadText(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %s holds no certificate in PEM", where, file)
	}
	return roots, nil
}

// certificate reads the certificate that the command shows. It returns nil if there is none.
func (a *authority) certificate() (*tls.Certificate, error) {
	cert, certBy := a.cert.said()
	key, keyBy := a.key.said()
	switch {
	case cert == "" && key == "":
		return nil, nil
	case key == "":
		return nil, fmt.Errorf("%s %s: also name its private key, with --%s or %s", certBy, cert, certKeyFlag, certKeyEnv)
	case cert == "":
		return nil, fmt.Errorf("%s %s: also name its certificate, with --%s or %s", keyBy, key, certFlag, certEnv)
	}
	text, err := config.ReadText(cert)
	secret, err2 := config.ReadText(key)
	var pair tls.Certificate
	if err = cmp.Or(err, err2); err == nil {
		pair, err = tls.X509KeyPair(text, secret)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s and %s %s: %w: name a certificate and its private key, both in PEM", certBy, cert, keyBy, key, err)
	}
	return &pair, nil
}

// A namedFile is a file that a flag names, else the environment.
type namedFile struct {
	text string
	env  string
	flag *pflag.Flag
}

func bindFile(f *pflag.FlagSet, name, env, usage string) *namedFile {
	n := &namedFile{env: env}
	f.StringVar(&n.text, name, "", usage+"; default: $"+env)
	n.flag = f.Lookup(name)
	return n
}

// said returns the file's name, and what said it.
func (n *namedFile) said() (file, where string) {
	if n.flag.Changed {
		return n.text, "--" + n.flag.Name
	}
	return variable(n.env)
}
