package daemon

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A shown is what a client learns from a TLS handshake.
type shown struct {
	certificate string
	protocol    string
	version     uint16
}

// shake connects and completes the handshake. It does not verify the certificate.
func (d *running) shake(cfg *tls.Config) (shown, error) {
	cfg.InsecureSkipVerify = true // the test compares the certificate itself
	conn, err := tls.Dial("tcp", d.PublicAddr(), cfg)
	if err != nil {
		return shown{}, err
	}
	defer func() { _ = conn.Close() }()
	is := conn.ConnectionState()
	return shown{string(is.PeerCertificates[0].Raw), is.NegotiatedProtocol, is.Version}, nil
}

func startSecure(t *testing.T, pair certtest.Pair) *running {
	return start(t, func(c *config.Config) { c.TLS = config.TLS{Cert: pair.Cert, Key: pair.Key} })
}

func TestTLSNegotiatesTheProtocol(t *testing.T) {
	d := startSecure(t, certtest.New(t))
	for _, tt := range []struct {
		offers []string
		agreed string
	}{
		{nil, ""},
		{[]string{"http/1.1"}, "http/1.1"},
		{[]string{"h2"}, "h2"},
		{[]string{"http/1.1", "h2"}, "h2"},
	} {
		got, err := d.shake(&tls.Config{NextProtos: tt.offers})
		require.NoError(t, err)
		require.Equal(t, tt.agreed, got.protocol)
		require.EqualValues(t, tls.VersionTLS13, got.version)
	}
	_, err := d.shake(&tls.Config{NextProtos: []string{"gopher"}})
	require.ErrorContains(t, err, "no application protocol")
	got, err := d.shake(&tls.Config{MaxVersion: tls.VersionTLS12}) //nolint:gosec // older clients are served
	require.NoError(t, err)
	require.EqualValues(t, tls.VersionTLS12, got.version)
	_, err = d.shake(&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}) //nolint:gosec // it must be refused
	require.ErrorContains(t, err, "protocol version")

	status, text := d.get("http://" + d.PublicAddr() + "/v1/topics")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, text, "HTTPS")
	require.Contains(t, fmt.Sprint(d.logged.FilterMessage("ready").All()[0].ContextMap()), "https://"+d.PublicAddr())
}

// A certificate is renewed while a stream lasts. New connections see the new certificate.
func TestAReloadRenewsTheCertificate(t *testing.T) {
	t.Parallel()
	for _, tongue := range tongues[:2] {
		t.Run(tongue.name, func(t *testing.T) {
			s := startSpeaking(t, tongue, nil)
			stream := s.listen()
			first, err := s.shake(&tls.Config{})
			require.NoError(t, err)
			s.reloadWith(func(*config.Config) {})
			require.Len(t, s.logged.FilterMessage("certificate").All(), 1, "at the start; it is the same")

			s.pair.Write(t)
			unchanged, err := s.shake(&tls.Config{})
			require.NoError(t, err)
			require.Equal(t, first.certificate, unchanged.certificate, "nobody said anything")
			s.reloadWith(func(*config.Config) {})
			renewed, err := s.shake(&tls.Config{})
			require.NoError(t, err)
			require.NotEqual(t, first.certificate, renewed.certificate)
			require.Len(t, s.logged.FilterMessage("certificate").All(), 2)

			s.speaker = &http.Client{Transport: s.transport()} // it trusts only the new certificate
			defer s.speaker.CloseIdleConnections()
			s.publish("a", `"m1"`)
			require.Contains(t, stream.frame(), "m1", "on the connection that it has")
		})
	}
}

// If the new key does not match, or a file is missing, nothing is reloaded. The
// certificate and every other setting stay.
func TestAReloadKeepsTheCertificateIfTheNewOneIsBroken(t *testing.T) {
	pair, other := certtest.New(t), certtest.New(t)
	d := startSecure(t, pair)
	was, err := d.shake(&tls.Config{})
	require.NoError(t, err)
	foreign, err := os.ReadFile(other.Key)
	require.NoError(t, err)
	for _, breaks := range []func() error{
		func() error { return os.WriteFile(pair.Key, foreign, 0o600) },
		func() error { return os.WriteFile(pair.Cert, []byte("half a fi"), 0o600) },
		func() error { return os.Remove(pair.Cert) },
	} {
		require.NoError(t, breaks())
		d.logged.TakeAll()
		d.reloadWith(func(c *config.Config) { c.MessageBytes = 5 })
		require.Contains(t, fmt.Sprint(d.logged.FilterMessage("cannot reload").All()), "tls.")
		require.Len(t, d.logged.FilterMessageSnippet("nothing was reloaded").All(), 1)
		is, err := d.shake(&tls.Config{})
		require.NoError(t, err)
		require.Equal(t, was.certificate, is.certificate)
		require.Equal(t, 64<<10, d.Config().MessageBytes)
	}
	pair.Write(t)
	d.reloadWith(func(*config.Config) {})
	is, err := d.shake(&tls.Config{})
	require.NoError(t, err)
	require.NotEqual(t, was.certificate, is.certificate)
}

// Other certificate files need a restart. So does turning TLS on or off.
func TestOtherFilesForTheCertificateNeedARestart(t *testing.T) {
	pair, other := certtest.New(t), certtest.New(t)
	d := startSecure(t, pair)
	was, err := d.shake(&tls.Config{})
	require.NoError(t, err)
	for _, said := range []config.TLS{{Cert: other.Cert, Key: other.Key}, {}} {
		d.logged.TakeAll()
		d.reloadWith(func(c *config.Config) { c.TLS, c.MessageBytes = said, 5 })
		require.Len(t, d.said("setting needs a restart and stays as it was", "is", "said"), 2)
		is, err := d.shake(&tls.Config{})
		require.NoError(t, err)
		require.Equal(t, was, is)
		require.Equal(t, 5, d.Config().MessageBytes)
	}
	clear := start(t, nil)
	clear.reloadWith(func(c *config.Config) { c.TLS = config.TLS{Cert: pair.Cert, Key: pair.Key} })
	require.Len(t, clear.said("setting needs a restart and stays as it was", "is", "said"), 2)
	clear.post("/v1/topics/a/messages", "1")
}

func TestADaemonDoesNotStartWithoutItsCertificate(t *testing.T) {
	cfg := config.Default()
	pair := certtest.New(t)
	cfg.TLS = config.TLS{Cert: pair.Cert, Key: pair.Key}
	require.NoError(t, os.Remove(pair.Key))
	_, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.ErrorContains(t, err, "tls.key")
}

// A failed handshake is logged at level debug, because clients cause it, and without
// secrets.
func TestAFailedHandshakeLogsNoSecrets(t *testing.T) {
	pair := certtest.New(t)
	d := start(t, func(c *config.Config) { c.TLS, c.Log.Level = config.TLS{Cert: pair.Cert, Key: pair.Key}, "debug" })
	d.sendRaw("GET /v1/sessions/" + secretToken + "/poll HTTP/1.1\r\nHost: h\r\n\r\n")
	d.sendRaw(strings.Repeat(secretPayload, 100))
	require.NoError(t, d.wait())
	failures := d.logged.FilterMessageSnippet("TLS handshake error").All()
	require.NotEmpty(t, failures)
	for _, e := range failures {
		require.Equal(t, zap.DebugLevel, e.Level, "or whoever connects fills the log")
	}
	d.wantNone([]string{secretToken, secretPayload})
}

// The metrics tell when the certificate expires, and how often it could not be read.
func TestMetricsTellWhenTheCertificateExpires(t *testing.T) {
	pair := certtest.New(t)
	d := startSecure(t, pair)
	own, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	require.EqualValues(t, own.Leaf.NotAfter.Unix(), d.metric("pubsubd_certificate_expires_timestamp_seconds"))
	require.Zero(t, d.metric("pubsubd_certificate_failures_total"))
	require.NoError(t, os.Remove(pair.Key))
	d.reloadWith(func(*config.Config) {})
	require.EqualValues(t, 1, d.metric("pubsubd_certificate_failures_total"))
	require.Zero(t, start(t, nil).metric("pubsubd_certificate_expires_timestamp_seconds"), "without TLS")
}
