package auth

import (
	"crypto/tls"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestCarriersOfCredentials(t *testing.T) {
	a := withCertificates(t, func(c *Config) { c.Anonymous = rights("public.>", "subscribe") })
	secret := token(good())
	host := func(name string) *tls.ConnectionState {
		return shown(name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), ca("ours"))
	}
	for _, tt := range []struct {
		given   Credentials
		subject string
		code    wire.Code
	}{
		{Credentials{}, "", ""},
		{Credentials{Token: secret}, "alice", ""},
		{Credentials{Authorization: "Bearer " + secret}, "alice", ""},
		{Credentials{Authorization: "bEARER   " + secret + " "}, "alice", ""},
		{Credentials{Authorization: "Bearer " + secret, Certificate: host("host-1")}, "alice", ""},
		{Credentials{Certificate: host("host-1")}, "host-1", ""},
		{Credentials{Certificate: host("host\n1")}, "", wire.CodeUnauthorized},
		{Credentials{Authorization: "Bearer"}, "", wire.CodeUnauthorized},
		{Credentials{Authorization: "Bearer "}, "", wire.CodeUnauthorized},
		{Credentials{Authorization: secret}, "", wire.CodeUnauthorized},
		{Credentials{Authorization: "Basic YWxpY2U6eA=="}, "", wire.CodeUnauthorized},
		{Credentials{Authorization: "Bearer " + secret + " more"}, "", wire.CodeUnauthorized},
		{Credentials{Token: " "}, "", wire.CodeUnauthorized},
		{Credentials{Authorization: "Bearer " + secret, Token: secret}, "", wire.CodeInvalidRequest},
		{Credentials{Authorization: "Basic YWxpY2U6eA==", Token: secret}, "", wire.CodeInvalidRequest},
	} {
		for range 2 { // the second time remembered
			g, err := a.Identify(tt.given, true)
			if tt.code != "" {
				require.Nil(t, g, tt.given)
				require.ErrorIs(t, err, &wire.Problem{Code: tt.code})
				wantNoPart(t, secret, err.Error())
				continue
			}
			require.NoError(t, err)
			require.Equal(t, tt.subject, g.Subject, tt.given)
		}
	}
	anonymous, _ := a.Identify(Credentials{}, true)
	require.NoError(t, anonymous.Allow(Subscribe, "public.a"))
	require.ErrorIs(t, anonymous.Allow(Subscribe, "chat.a"), &wire.Problem{Code: wire.CodeUnauthorized})
	named, _ := a.Identify(Credentials{Certificate: host("host-1")}, true)
	require.NoError(t, named.Allow(Publish, "hosts.host-1"))
	require.ErrorIs(t, named.Allow(Publish, "hosts.host-2"), &wire.Problem{Code: wire.CodeForbidden})
	require.EqualValues(t, 2, testutil.ToFloat64(a.refused.WithLabelValues(string(several)))/2)
}

func TestWithoutRightsOfCertificatesTheyIdentifyNobody(t *testing.T) {
	g, err := newAuthority(t, nil).Identify(Credentials{Certificate: shown("host", time.Now(), time.Now().Add(time.Hour), ca("ours"))}, true)
	require.NoError(t, err)
	require.Empty(t, g.Subject, "without auth.certificates a certificate identifies nobody")
}

// A remembered token is refused at the moment of its expiry.
func TestARememberedTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, nil)
		now := time.Now().Unix()
		secret := token(good("iat", now, "exp", now+60))
		first := wantAccepted(t, a, secret)
		time.Sleep(time.Minute - time.Nanosecond)
		require.Same(t, first, wantAccepted(t, a, secret))
		require.EqualValues(t, 1, testutil.ToFloat64(a.hits))
		require.EqualValues(t, 1, testutil.ToFloat64(a.verified))
		time.Sleep(time.Nanosecond)
		wantRefused(t, a, secret, wire.CodeTokenExpired, "expired 0s ago")
	})
}

// Fast path: a token that was verified before.
func TestARememberedTokenAllocatesNothing(t *testing.T) {
	a := newAuthority(t, nil)
	for _, c := range []Credentials{{Token: token(good())}, {Authorization: "Bearer " + token(good("jti", "2"))}, {}} {
		_, err := a.Identify(c, true)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = a.Identify(c, true) }))
	}
}

// The cache counts at least the memory that it takes, also for tokens whose rights take much
// more than their text.
func TestTheCacheCountsItsMemory(t *testing.T) {
	names := `"a` + strings.Repeat(`","a`, 200) + `"`
	for name, claim := range map[string]string{
		"usual":      `[{"topics":["chat.42","prices.>","inbox.$sub"],"allow":["subscribe","publish"]}]`,
		"many names": `[{"topics":[` + names + `],"allow":["subscribe"]}]`,
		"many rules": `[` + strings.Repeat(`{"topics":["a"],"allow":["subscribe"]},`, 63) + `{"topics":["a"],"allow":["publish","publish","publish"]}]`,
	} {
		t.Run(name, func(t *testing.T) {
			c := memory.Cache[digest, *Grant]{Most: 1 << 30}
			const tokens = 500
			taken := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			before := taken()
			for i := range tokens {
				rights, err := ParseRights([]byte(claim), fmt.Sprint("user", i))
				require.NoError(t, err)
				g := &Grant{Subject: fmt.Sprint("user", i), Rights: rights}
				c.Put(digestOf(fmt.Sprint(i)), g, g.size())
			}
			grew := taken() - before
			_, bytes := c.Held()
			require.LessOrEqual(t, int(grew), bytes)
			runtime.KeepAlive(&c)
		})
	}
}

func BenchmarkIdentify(b *testing.B) {
	for _, by := range []struct {
		algorithm jose.SignatureAlgorithm
		with      any
		file      string
	}{
		{jose.ES256, p256(), publicPEM(p256())}, {jose.EdDSA, edKey(), publicPEM(edKey())},
		{jose.RS256, rsa2048(), publicPEM(rsa2048())}, {jose.HS256, theSecret, jwkOf(theSecret)},
	} {
		a := newAuthority(b, func(c *Config) { c.Keys = []string{file(b, by.file)} })
		c := Credentials{Authorization: "Bearer " + sign(by.algorithm, by.with, good())}
		b.Run(string(by.algorithm)+"/miss", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a.tokens = memory.Cache[digest, *Grant]{Most: tokensBytes}
				_, _ = a.Identify(c, true)
			}
		})
		b.Run(string(by.algorithm)+"/hit", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = a.Identify(c, true)
			}
		})
	}
}
