package pubsub

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// A daemon whose certificate is of a private authority.
func TestAClientTrustsAPrivateAuthority(t *testing.T) {
	protocol := make(chan string, 2)
	daemon := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol <- r.Proto
		_, _ = w.Write([]byte(`{"position":"a@k3:1","time":1}`))
	}))
	daemon.EnableHTTP2 = true
	daemon.StartTLS()
	defer daemon.Close()
	roots := x509.NewCertPool()
	roots.AddCert(daemon.Certificate())
	trusting := &tls.Config{RootCAs: roots}

	c, err := New(daemon.URL, WithTLSConfig(trusting))
	require.NoError(t, err)
	defer c.Close()
	published, err := c.Publish(t.Context(), "a", "text/plain", []byte("x"))
	require.NoError(t, err)
	require.EqualValues(t, 1, published.Position.Offset)
	require.Equal(t, "HTTP/1.1", <-protocol, "a poll that is given up takes its connection with it")

	doubting, err := New(daemon.URL, WithPublishRetry(0))
	require.NoError(t, err)
	defer doubting.Close()
	_, err = doubting.Publish(t.Context(), "a", "text/plain", []byte("x"))
	unknown := (*tls.CertificateVerificationError)(nil)
	require.ErrorAs(t, err, &unknown)
	require.NotErrorIs(t, err, ErrOutcomeUnknown)

	_, err = New(daemon.URL, WithTLSConfig(trusting), WithHTTPClient(daemon.Client()))
	require.ErrorContains(t, err, "Transport")
}
