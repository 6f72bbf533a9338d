package auth

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"
)

// PrincipalOf returns the principal of a client's certificate: its common name. ok is false if
// the name cannot be a principal.
func PrincipalOf(c *x509.Certificate) (name string, ok bool) {
	return c.Subject.CommonName, isSubject(c.Subject.CommonName)
}

// TrustCertificatesOf replaces the authorities whose certificates identify clients. Grants by
// certificates of other authorities are revoked from then on.
func (a *Authority) TrustCertificatesOf(authorities []*x509.Certificate) {
	prints := make([]digest, len(authorities))
	for i, of := range authorities {
		prints[i] = sha256.Sum256(of.RawSubjectPublicKeyInfo)
	}
	a.rebuilding.Lock()
	a.authorities = prints
	a.rebuilding.Unlock()
	a.rebuild()
}

// byCertificate returns the grant of the certificate that the client of a connection has shown.
func (a *Authority) byCertificate(shown *tls.ConnectionState, now time.Time) (*Grant, error) {
	leaf := shown.PeerCertificates[0]
	d := digest(sha256.Sum256(leaf.Raw))
	g, ok := a.certified.Get(d)
	if !ok || !a.trust.Load().prints[g.Key] {
		var by digest // of the authority: a reload, after which it may not be trusted, does not end connections
		if !slices.ContainsFunc(shown.VerifiedChains, func(chain []*x509.Certificate) bool {
			by = sha256.Sum256(chain[len(chain)-1].RawSubjectPublicKeyInfo)
			return a.trust.Load().prints[by]
		}) {
			return nil, refuse(wrongKey, "connect again with another certificate", "the certificate's authority is no longer in tls.client_ca")
		}
		name, ok := PrincipalOf(leaf)
		if !ok {
			return nil, refuse(badClaims, "issue another certificate", "the certificate's common name must have 1 to %d bytes without control characters", maxSubjectBytes)
		}
		if age := leaf.NotAfter.Sub(leaf.NotBefore); a.cfg.CertificateMaxAge > 0 && age > a.cfg.CertificateMaxAge {
			return nil, refuse(badClaims, "issue certificates that expire earlier, or raise tls.client_max_age",
				"the certificate is valid for %v (notAfter, notBefore), more than tls.client_max_age: %v", age, a.cfg.CertificateMaxAge)
		}
		rights, err := ParseRights([]byte(a.cfg.Certificates), name)
		if err != nil {
			panic("BUG: auth.certificates was valid: " + err.Error())
		}
		g = &Grant{Subject: name, Key: by, Issued: leaf.NotBefore, Expires: leaf.NotAfter, Rights: rights}
		a.certified.Put(d, g, g.size())
	}
	if g.HasExpired(now) {
		return nil, refuse(expired, "connect with a new certificate", "the certificate expired %v ago", now.Sub(g.Expires).Truncate(time.Second))
	}
	return g, nil
}
