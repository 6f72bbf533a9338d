package checks

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// quarter is how long certificates are valid as a rule.
const quarter = 90 * 24 * time.Hour

// An authority is a Pebble: an ACME authority for tests. It reaches every name at 127.0.0.1.
type authority struct {
	*testing.T
	directory string
	roots     *x509.CertPool
	away      sync.RWMutex // whoever holds it for writing keeps the authority from answering

	open     sync.Once
	ready    chan struct{} // closed when handler is set
	handler  http.Handler
	issuer   *ca.CAImpl
	accounts *db.MemoryStore
}

// newAuthority starts an authority that answers once reach was called. Its certificates are
// valid for the given time. The daemon's processes trust it.
func newAuthority(t *testing.T, validity time.Duration) *authority {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	silent := log.New(io.Discard, "", 0)
	a := &authority{T: t, ready: make(chan struct{}), accounts: db.NewMemoryStore()}
	a.issuer = ca.New(silent, a.accounts, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: uint64(validity / time.Second)}})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-a.ready
		a.away.RLock()
		defer a.away.RUnlock()
		a.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { a.open.Do(func() { a.handler = http.NotFoundHandler(); close(a.ready) }) })
	a.directory = server.URL + wfe.DirectoryPath
	trusted := filepath.Join(t.TempDir(), "trusted.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(trusted, certificate, 0o600))
	t.Setenv("SSL_CERT_FILE", trusted)
	a.roots = x509.NewCertPool()
	require.True(t, a.roots.AppendCertsFromPEM(a.issuer.GetRootCert(0).PEM()))
	return a
}

// reach lets the authority answer. It sends challenges to these ports in place of 80 and 443.
func (a *authority) reach(http01, tlsALPN01 int) {
	silent := log.New(io.Discard, "", 0)
	prover := va.New(silent, http01, tlsALPN01, false, a.resolver(), a.accounts)
	front := wfe.New(silent, a.accounts, prover, a.issuer, []string{"authority.example"}, false, false, 0, 0)
	a.open.Do(func() { a.handler = front.Handler(); close(a.ready) })
}

// resolver returns the address of a DNS server on which every name is 127.0.0.1.
func (a *authority) resolver() string {
	conn, err := net.Listen("tcp", "127.0.0.1:0") // Pebble asks over TCP
	require.NoError(a, err)
	server := &dns.Server{Listener: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)}}
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	a.Cleanup(func() { _ = server.Shutdown() })
	return conn.Addr().String()
}

// certificate waits for the certificate that a daemon shows under a name, and verifies it.
func (a *authority) certificate(d *daemon, name string) (leaf *x509.Certificate) {
	d.Helper()
	require.Eventually(d, func() bool {
		conn, err := tls.Dial("tcp", d.public[len("http://"):], &tls.Config{ServerName: name, RootCAs: a.roots})
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		leaf = conn.ConnectionState().PeerCertificates[0]
		return true
	}, time.Minute, 50*time.Millisecond)
	return leaf
}

func port(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	require.NoError(t, err)
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// closedPort returns a port on which nobody listens.
func closedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return port(t, l.Addr().String())
}

// The daemon gets a certificate for each name by TLS-ALPN-01 on the listener for clients,
// and shows it from then on. After a restart it shows the same ones without a new order.
func TestTheDaemonGetsCertificatesByTLS(t *testing.T) {
	a := newAuthority(t, quarter)
	storage := filepath.Join(t.TempDir(), "acme")
	arguments := []string{"--tls-acme-domains=app.example,live.example", "--tls-acme-directory=" + a.directory, "--tls-acme-storage=" + storage,
		"--tls-acme-agree", "--tls-acme-email=ops@app.example"}
	var first *x509.Certificate
	t.Run("get", func(t *testing.T) {
		d := serve(t, arguments...)
		require.Contains(t, d.do("GET", d.admin+"/metrics", ""), "\npubsubd_certificate_expires_timestamp_seconds 0\n", "there is none yet")
		a.reach(closedPort(t), port(t, d.public[len("http://"):]))
		first = a.certificate(d, "app.example")
		require.Equal(t, []string{"live.example"}, a.certificate(d, "live.example").DNSNames)
		require.Contains(t, d.do("GET", d.admin+"/metrics", ""), "\npubsubd_certificate_failures_total 0\n")
		require.NotContains(t, d.do("GET", d.admin+"/metrics", ""), "\npubsubd_certificate_expires_timestamp_seconds 0\n")

		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{ServerName: "app.example", RootCAs: a.roots}}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("https://" + d.public[len("http://"):] + "/v1/topics")
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, "HTTP/2.0", resp.Proto)
		require.Equal(t, http.StatusOK, resp.StatusCode)
	})
	require.NoError(t, filepath.WalkDir(storage, func(path string, _ os.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s is for the daemon's user only", path)
		return nil
	}))
	t.Run("keep", func(t *testing.T) {
		require.Equal(t, first.SerialNumber, a.certificate(serve(t, arguments...), "app.example").SerialNumber)
	})
}

// A certificate that expires soon is renewed when the daemon starts. Until the authority has
// answered, clients get the old one. The daemon renews what would expire before its next five
// checks, one each ten minutes, so a certificate for half an hour is due at once.
func TestTheDaemonRenewsACertificateThatExpiresSoon(t *testing.T) {
	a := newAuthority(t, 30*time.Minute)
	challenges := closedPort(t)
	arguments := []string{"--tls-acme-domains=app.example", "--tls-acme-directory=" + a.directory, "--tls-acme-storage=" + filepath.Join(t.TempDir(), "acme"),
		"--tls-acme-agree", "--listen-acme=127.0.0.1:" + strconv.Itoa(challenges)}
	a.reach(challenges, closedPort(t))
	var old *x509.Certificate
	t.Run("get", func(t *testing.T) { old = a.certificate(serve(t, arguments...), "app.example") })
	t.Run("renew", func(t *testing.T) {
		a.away.Lock()
		back := sync.OnceFunc(a.away.Unlock)
		defer back()
		d := serve(t, arguments...)
		require.Equal(t, old.SerialNumber, a.certificate(d, "app.example").SerialNumber)
		back()
		require.Eventually(t, func() bool { return a.certificate(d, "app.example").SerialNumber.Cmp(old.SerialNumber) != 0 }, time.Minute, 50*time.Millisecond)
		require.Contains(t, d.do("GET", d.admin+"/metrics", ""), "\npubsubd_certificate_failures_total 0\n")
	})
}

// With a listener for them, challenges over HTTP are answered, too.
func TestTheDaemonGetsCertificatesByHTTP(t *testing.T) {
	a := newAuthority(t, quarter)
	challenges := closedPort(t)
	d := serve(t, "--tls-acme-domains=app.example", "--tls-acme-directory="+a.directory, "--tls-acme-storage="+filepath.Join(t.TempDir(), "acme"),
		"--tls-acme-agree", "--listen-acme=127.0.0.1:"+strconv.Itoa(challenges))
	a.reach(challenges, closedPort(t))
	a.certificate(d, "app.example")
	require.Contains(t, d.do("GET", "http://127.0.0.1:"+strconv.Itoa(challenges)+"/v1/topics", ""), "only ACME challenges")
}

// An authority that cannot reach the daemon gives it no certificate. Operators can tell.
func TestAFailureToGetACertificateCounts(t *testing.T) {
	a := newAuthority(t, quarter)
	d := serve(t, "--tls-acme-domains=app.example", "--tls-acme-directory="+a.directory, "--tls-acme-storage="+filepath.Join(t.TempDir(), "acme"), "--tls-acme-agree")
	a.reach(closedPort(t), closedPort(t))
	require.Eventually(t, func() bool {
		return !strings.Contains(d.do("GET", d.admin+"/metrics", ""), "\npubsubd_certificate_failures_total 0\n")
	}, time.Minute, 50*time.Millisecond)
	require.Contains(t, d.do("GET", d.admin+"/readyz", ""), "ok")
}
