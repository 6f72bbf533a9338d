// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Pair is a certificate for 127.0.0.1 and localhost and its private key, in files.
// The certificate signs itself: a client that trusts Cert accepts it.
type Pair struct {
	Cert, Key string // names of files
}

// New writes a pair into a folder of the test.
func New(t testing.TB) Pair {
	t.Helper()
	p := newPair(t)
	p.Write(t)
	return p
}

// newPair names files in a folder of the test.
func newPair(t testing.TB) Pair {
	dir := t.TempDir()
	return Pair{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
}

// Write makes a new pair and overwrites the files.
func (p Pair) Write(t testing.TB) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	p.write(t, signed, private)
}

func (p Pair) write(t testing.TB, signed []byte, private any) {
	t.Helper()
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	for file, block := range map[string]pem.Block{p.Cert: {Type: "CERTIFICATE", Bytes: signed}, p.Key: {Type: "PRIVATE KEY", Bytes: raw}} {
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&block), 0o600))
	}
}

// An Authority signs certificates of clients.
type Authority struct {
	File string // its own certificate, in PEM

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority writes an authority's certificate into a folder of the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{File: filepath.Join(t.TempDir(), "ca.pem")}
	a.Write(t)
	return a
}

// Write makes a new authority and overwrites the file.
func (a *Authority) Write(t testing.TB) {
	t.Helper()
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(a.File, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), 0o600))
}

// Issue returns a client's certificate with this common name, which expires at a time.
func (a *Authority) Issue(t testing.TB, commonName string, expires time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: commonName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: expires,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}
}

// IssueFiles is Issue, into files in a folder of the test.
func (a *Authority) IssueFiles(t testing.TB, commonName string, expires time.Time) Pair {
	t.Helper()
	p := newPair(t)
	issued := a.Issue(t, commonName, expires)
	p.write(t, issued.Certificate[0], issued.PrivateKey)
	return p
}
