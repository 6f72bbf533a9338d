package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// ca returns an authority of certificates.
func ca(name string) *x509.Certificate {
	return &x509.Certificate{RawSubjectPublicKeyInfo: []byte(name)}
}

// shown returns a connection on which a client has shown a certificate with this common name.
// TLS has found a chain to each of the authorities.
func shown(name string, from, to time.Time, authorities ...*x509.Certificate) *tls.ConnectionState {
	leaf := &x509.Certificate{Raw: fmt.Append(nil, name, from, to), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to}
	s := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	for _, by := range authorities {
		s.VerifiedChains = append(s.VerifiedChains, []*x509.Certificate{leaf, by})
	}
	return s
}

// withCertificates returns an authority that trusts certificates of "ours".
func withCertificates(t *testing.T, change func(*Config)) *Authority {
	t.Helper()
	a := newAuthority(t, func(c *Config) {
		c.Certificates = rights("hosts.$sub", "publish")
		if change != nil {
			change(c)
		}
	})
	a.TrustCertificatesOf([]*x509.Certificate{ca("ours")})
	return a
}

// wantCertificate checks what the authority says of a certificate: code "" accepts it.
func wantCertificate(t *testing.T, a *Authority, s *tls.ConnectionState, code wire.Code, words string) *Grant {
	t.Helper()
	g, err := a.Identify(Credentials{Certificate: s}, true)
	if code == "" {
		require.NoError(t, err)
		return g
	}
	var p *wire.Problem
	require.ErrorAs(t, err, &p)
	require.Equal(t, code, p.Code, p.Detail)
	require.Contains(t, p.Detail, words)
	return nil
}

// A grant lasts as long as its certificate: later requests on a connection are refused, and
// sessions expire.
func TestACertificateExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withCertificates(t, nil)
		until := time.Now().Add(time.Minute)
		s := shown("host", time.Now().Add(-time.Hour), until, ca("ours"))
		g := wantCertificate(t, a, s, "", "")
		require.Equal(t, until, g.Expires)
		require.EqualValues(t, 60_000, g.ExpiresMS(time.Now()))
		time.Sleep(time.Minute - time.Nanosecond)
		require.Same(t, g, wantCertificate(t, a, s, "", ""))
		time.Sleep(time.Nanosecond)
		wantCertificate(t, a, s, wire.CodeTokenExpired, "the certificate expired 0s ago")
		require.True(t, g.HasExpired(time.Now()))
	})
}

// A revocation of a subject reaches certificates: those that were valid before it are refused,
// and a newer one is accepted.
func TestARevocationRefusesTheCertificatesOfASubject(t *testing.T) {
	a := withCertificates(t, func(c *Config) { c.Revocations = filepath.Join(t.TempDir(), "revocations") })
	t.Cleanup(a.Close)
	now := time.Now()
	old, other := shown("host", now.Add(-time.Hour), now.Add(time.Hour), ca("ours")), shown("other", now.Add(-time.Hour), now.Add(time.Hour), ca("ours"))
	g := wantCertificate(t, a, old, "", "")
	require.False(t, a.Revoked(g))
	require.NoError(t, a.Revocations().Add("host", "", now))
	require.True(t, a.Revoked(g), "its sessions end")
	wantCertificate(t, a, old, wire.CodeUnauthorized, "the certificates of this subject were revoked")
	wantCertificate(t, a, other, "", "")
	next := wantCertificate(t, a, shown("host", now.Add(time.Second), now.Add(2*time.Hour), ca("ours")), "", "")
	require.False(t, a.Revoked(next))
	require.True(t, next.Renews(g))
	require.False(t, g.Renews(next))
}

// A reload removes an authority. Its certificates are refused on connections that are open, and
// their sessions end. A certificate that another authority signed, too, goes on.
func TestCertificatesOfARemovedAuthorityAreRefused(t *testing.T) {
	a := withCertificates(t, nil)
	now := time.Now()
	from, to := now.Add(-time.Hour), now.Add(time.Hour)
	a.TrustCertificatesOf([]*x509.Certificate{ca("ours"), ca("theirs")})
	require.False(t, a.Refresh(now), "nothing was removed")
	ours, theirs := shown("host", from, to, ca("ours")), shown("other", from, to, ca("theirs"))
	both := shown("third", from, to, ca("ours"), ca("theirs"))
	g, g2 := wantCertificate(t, a, ours, "", ""), wantCertificate(t, a, theirs, "", "")
	wantCertificate(t, a, both, "", "")

	a.TrustCertificatesOf([]*x509.Certificate{ca("theirs")})
	require.True(t, a.Refresh(now), "sessions must be looked at")
	require.False(t, a.Refresh(now), "once")
	require.True(t, a.Revoked(g))
	require.False(t, a.Revoked(g2))
	for range 2 {
		wantCertificate(t, a, ours, wire.CodeUnauthorized, "authority is no longer in tls.client_ca")
		wantCertificate(t, a, theirs, "", "")
		wantCertificate(t, a, both, "", "")
	}
}

// The longest name that a token may have is also the longest of a certificate.
func TestTheNameOfACertificateIsBounded(t *testing.T) {
	for name, want := range map[string]bool{
		"": false, "host": true, "host\n": false, "\xff": false,
		strings.Repeat("a", maxSubjectBytes): true, strings.Repeat("a", maxSubjectBytes+1): false,
	} {
		_, ok := PrincipalOf(&x509.Certificate{Subject: pkix.Name{CommonName: name}})
		require.Equal(t, want, ok, "%q", name)
	}
}

// Fast path: a certificate that was seen before.
func TestACertificateAllocatesNothing(t *testing.T) {
	a := withCertificates(t, nil)
	c := Credentials{Certificate: shown("host", time.Now(), time.Now().Add(time.Hour), ca("ours"))}
	g, err := a.Identify(c, true)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = a.Identify(c, true); a.Revoked(g) }))
}

// A revocation of a subject outlives each of its certificates: without end, or for
// tls.client_max_age, if no certificate may be valid for longer.
func TestTheRevocationOfASubjectOutlivesItsCertificates(t *testing.T) {
	for name, c := range map[string]struct {
		certificates bool
		maxAge       time.Duration
		kept         time.Duration // 0: without end
	}{
		"no certificates":         {false, 0, day},
		"certificates":            {true, 0, 0},
		"certificates of a year":  {true, 365 * day, 365 * day},
		"certificates of an hour": {true, time.Hour, day}, // of tokens
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := withCertificates(t, func(set *Config) {
					set.Revocations, set.CertificateMaxAge = filepath.Join(t.TempDir(), "revocations"), c.maxAge
					if !c.certificates {
						set.Certificates = ""
					}
				})
				defer a.Close()
				require.NoError(t, a.Revocations().Add("host", "", time.Now()))
				require.NoError(t, a.Revocations().Add("", "t-1", time.Now()))
				time.Sleep(day + revocationSlack + time.Second)
				list := a.Revocations().List(10, time.Now())
				if c.kept == day {
					require.Empty(t, list.Revocations)
					return
				}
				require.Len(t, list.Revocations, 1, "that of the token has ended")
				require.Equal(t, "host", list.Revocations[0].Subject)
				if c.kept == 0 {
					require.Zero(t, list.Revocations[0].Until)
					time.Sleep(100 * 365 * day)
					require.Equal(t, 1, a.Revocations().List(10, time.Now()).Held)
					return
				}
				require.Equal(t, c.kept+revocationSlack, time.Duration(list.Revocations[0].Until-list.Revocations[0].Time)*time.Millisecond)
				time.Sleep(c.kept)
				require.Zero(t, a.Revocations().List(10, time.Now()).Held)
			})
		})
	}
}

func TestCertificatesThatAreValidForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withCertificates(t, func(c *Config) { c.CertificateMaxAge = 30 * day })
		now := time.Now()
		wantCertificate(t, a, shown("host", now, now.Add(30*day), ca("ours")), "", "")
		wantCertificate(t, a, shown("host", now, now.Add(30*day+time.Second), ca("ours")), wire.CodeUnauthorized, "more than tls.client_max_age")
	})
}

// A full list that has no end says so.
func TestAFullListOfRevocationsWithoutEnd(t *testing.T) {
	r, err := OpenRevocations(filepath.Join(t.TempDir(), "revocations"), day, 0, zap.NewNop(), start)
	require.NoError(t, err)
	defer r.Close()
	r.most = 2
	require.NoError(t, r.Add("ann", "", start))
	require.NoError(t, r.Add("", "t-1", start))
	var p *wire.Problem
	require.ErrorAs(t, r.Add("bob", "", start), &p)
	require.Contains(t, p.Detail, "the next one expires at", "a token's")
	later := start.Add(day + revocationSlack + time.Second)
	require.NoError(t, r.Add("bob", "", later))
	require.ErrorAs(t, r.Add("cid", "", later), &p)
	require.Equal(t, wire.CodeOverloaded, p.Code)
	require.Contains(t, p.Detail, "none expires")
	require.Contains(t, p.Remedy, "tls.client_max_age")
	require.NoError(t, r.Add("ann", "", later.Add(time.Second)), "again")
}
