package daemon

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A mutual is a daemon whose clients may show certificates of an authority.
type mutual struct {
	*running
	*certtest.Authority
	pair certtest.Pair
}

func startMutual(t *testing.T, change func(*config.Config)) *mutual {
	t.Helper()
	m := &mutual{Authority: certtest.NewAuthority(t), pair: certtest.New(t)}
	m.running = start(t, func(c *config.Config) {
		c.TLS = config.TLS{Cert: m.pair.Cert, Key: m.pair.Key, ClientCA: m.File}
		c.Listen.TCP = "127.0.0.1:0"
		if change != nil {
			change(c)
		}
	})
	return m
}

// client returns the settings of a client with a certificate, or without.
func (m *mutual) client(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: poolOf(m, m.pair), Certificates: certificates}
}

// topics asks for the list of topics on a new connection.
func (m *mutual) topics(client *tls.Config) (status int, err error) {
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: client, DisableKeepAlives: true}}
	resp, err := c.Get("https://" + m.PublicAddr() + "/v1/topics")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// named returns the settings of a client with a valid certificate of that name.
func (m *mutual) named(name string) *tls.Config {
	return m.client(m.Issue(m, name, time.Now().Add(time.Hour)))
}

// A client may show no certificate. One that it shows must name a principal, be valid, and be
// of the authority. That holds on both listeners for clients.
func TestACertificateOfAClientMustBeValid(t *testing.T) {
	m := startMutual(t, nil)
	other := certtest.NewAuthority(t)
	for name, tt := range map[string]struct {
		client *tls.Config
		wrong  string
	}{
		"none":              {m.client(), ""},
		"valid":             {m.named("ann"), ""},
		"longest name":      {m.named(strings.Repeat("a", 128)), ""},
		"no name":           {m.named(""), "bad certificate"},
		"long name":         {m.named(strings.Repeat("a", 129)), "bad certificate"},
		"control character": {m.named("ann\nbob"), "bad certificate"},
		"expired":           {m.client(m.Issue(t, "ann", time.Now().Add(-time.Minute))), "expired certificate"},
		"of another":        {m.client(other.Issue(t, "ann", time.Now().Add(time.Hour))), "unknown certificate authority"},
	} {
		status, err := m.topics(tt.client)
		if tt.wrong == "" {
			require.NoError(t, err, name)
			require.Equal(t, http.StatusOK, status, name)
		} else {
			require.ErrorContains(t, err, tt.wrong, name)
		}
		conn, err := tls.Dial("tcp", m.TCPAddr(), tt.client)
		if err == nil {
			_, _ = conn.Write([]byte{0xa1, 0x66, 't', 'o', 'p', 'i', 'c', 's', 0x81, 0x61, 'a'})
			_, err = conn.Read(make([]byte, 1)) // with TLS 1.3, the refusal comes after the handshake
			_ = conn.Close()
		}
		require.Equal(t, tt.wrong == "", err == nil, "%s: %v", name, err)
	}
}

// A reload replaces the authorities. A session of TLS that an earlier certificate opened
// cannot be resumed.
func TestAReloadReplacesTheAuthoritiesOfClients(t *testing.T) {
	m := startMutual(t, nil)
	client := m.named("ann")
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	client.ServerName = "localhost"
	for range 3 {
		_, err := m.topics(client)
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(m.File, []byte("no certificate"), 0o600))
	m.reloadWith(func(*config.Config) {})
	require.Contains(t, fmt.Sprint(m.logged.FilterMessage("cannot reload").All()), "tls.client_ca")
	_, err := m.topics(client)
	require.NoError(t, err, "nothing was reloaded")

	m.Write(t)
	m.reloadWith(func(*config.Config) {})
	require.Len(t, m.logged.FilterMessage("client certificate authorities").FilterField(zap.Int("authorities", 1)).All(), 2, "at the start, and now")
	_, err = m.topics(client)
	require.ErrorContains(t, err, "unknown certificate authority")
	_, err = m.topics(m.named("ann"))
	require.NoError(t, err)
}

// After a reload without an authority, its certificates are refused also on connections that
// are open, and what they keep open ends.
func TestARemovedAuthorityEndsSessions(t *testing.T) {
	t.Parallel()
	m := startMutual(t, func(c *config.Config) { c.Auth.Certificates = `[{"topics":["a"],"allow":["subscribe"]}]` })
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: m.named("ann")}}
	defer c.CloseIdleConnections()
	ask := func() int {
		resp, err := c.Post("https://"+m.PublicAddr()+"/v1/sessions", "application/json", strings.NewReader(`{"topics":["a"]}`))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusCreated, ask())
	conn, err := tls.Dial("tcp", m.TCPAddr(), m.named("ann"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte{0xa1, 0x66, 't', 'o', 'p', 'i', 'c', 's', 0x81, 0x61, 'a'})
	require.NoError(t, err)
	m.wantMetric("pubsubd_subscriptions", 2)
	m.reloadWith(func(*config.Config) {})
	require.Equal(t, http.StatusCreated, ask(), "the same authorities")
	m.wantMetric("pubsubd_subscriptions", 3)

	m.Write(t)
	m.reloadWith(func(*config.Config) {})
	require.Equal(t, http.StatusUnauthorized, ask(), "on the same connection")
	m.wantMetric("pubsubd_subscriptions", 0)
	wantSays(t, bufio.NewReader(conn), "a TCP connection", "unauthorized")
}

// A connection ends when the client's certificate expires, whatever waits on it. A session has
// expired then, also for others who know the id, until a new certificate renews it.
func TestAConnectionEndsWhenItsCertificateExpires(t *testing.T) {
	t.Parallel()
	for _, rights := range []string{"", `[{"topics":["a"],"allow":["subscribe"]}]`} {
		m := startMutual(t, func(c *config.Config) { c.Auth.Certificates = rights })
		expires := time.Now().Add(2 * time.Second).Truncate(time.Second) // certificates count seconds
		client := m.client(m.Issue(t, "ann", expires))
		session := m.open(client)
		var open []net.Conn
		for _, address := range []string{m.PublicAddr(), m.TCPAddr()} {
			conn, err := tls.Dial("tcp", address, client)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(surely)))
			if address == m.PublicAddr() {
				_, err = conn.Write([]byte("GET /v1/poll?topic=a&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n"))
			} else {
				_, err = conn.Write([]byte{0xa1, 0x66, 't', 'o', 'p', 'i', 'c', 's', 0x81, 0x61, 'a'})
			}
			require.NoError(t, err)
			open = append(open, conn)
		}
		for _, conn := range open {
			_, err := io.Copy(io.Discard, conn)
			var slow net.Error
			require.False(t, errors.As(err, &slow) && slow.Timeout(), "%v", err)
			require.False(t, time.Now().Before(expires))
		}
		m.wantMetric("pubsubd_subscriptions", 1) // the session stays for a while
		if rights != "" {
			ask := func(client *tls.Config, method, path, body string) string {
				c := &http.Client{Transport: &http.Transport{TLSClientConfig: client, DisableKeepAlives: true}}
				r, err := http.NewRequestWithContext(t.Context(), method, "https://"+m.PublicAddr()+"/v1/sessions/"+session+path, strings.NewReader(body))
				require.NoError(t, err)
				r.Header.Set("Content-Type", "application/json")
				resp, err := c.Do(r)
				require.NoError(t, err)
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return string(text)
			}
			require.Contains(t, ask(m.client(), http.MethodGet, "/poll?ack=0", ""), "token_expired")
			require.Contains(t, ask(m.named("ann"), http.MethodPatch, "", "{}"), `"expires_ms":3`)
		}
	}
}

// A Go client without a token goes on after its certificate expired, if its settings of TLS
// then have another one. If they have none, the subscription ends with a refusal.
func TestTheGoClientGoesOnAfterItsCertificateExpired(t *testing.T) {
	t.Parallel()
	m := startMutual(t, func(c *config.Config) { c.Auth.Certificates = `[{"topics":["a"],"allow":["subscribe","publish"]}]` })
	expires := time.Now().Add(4 * time.Second).Truncate(time.Second) // certificates count seconds
	old, fresh := m.Issue(t, "ann", expires), m.Issue(t, "ann", time.Now().Add(time.Hour))
	dial := func(later *tls.Certificate) *pubsub.Client {
		cfg := m.client()
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if time.Now().Before(expires) {
				return &old, nil
			}
			return later, nil
		}
		c, err := pubsub.New("https://"+m.PublicAddr(), pubsub.WithTLSConfig(cfg), pubsub.WithTCPAddr(m.TCPAddr(), cfg), pubsub.WithMaxBackoff(50*time.Millisecond))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	renews, ends := dial(&fresh), dial(&tls.Certificate{})
	type subscription struct {
		way string
		*pubsub.Subscription
	}
	subscribe := func(c *pubsub.Client) (all []subscription) {
		for way, options := range ways {
			notify := pubsub.WithRetryNotify(func(err error, _ time.Duration) {
				if errors.Is(err, &wire.Problem{Code: wire.CodeInvalidRequest}) {
					t.Errorf("%s: %v", way, err)
				}
			})
			s, err := c.Subscribe(t.Context(), []wire.Start{pubsub.FromNow("a")}, append(slices.Clone(options), notify)...)
			require.NoError(t, err, way)
			t.Cleanup(s.Close)
			all = append(all, subscription{way, s})
		}
		return all
	}
	renewing, ending := subscribe(renews), subscribe(ends)
	require.Eventually(t, func() bool { return time.Now().After(expires.Add(time.Second)) }, surely, 10*time.Millisecond)
	for _, s := range ending {
		_, err := s.Next(t.Context())
		refused := (*wire.Problem)(nil)
		require.ErrorAs(t, err, &refused, s.way)
		require.Equal(t, http.StatusUnauthorized, refused.Status, "%s: %v", s.way, err)
	}
	_, err := renews.PublishJSON(t.Context(), "a", 1)
	require.NoError(t, err)
	for _, s := range renewing {
		item, err := s.Next(t.Context())
		require.NoError(t, err, s.way)
		require.Nil(t, item.Gap, s.way)
	}
}

// open opens a session of the topic a, and returns its id.
func (m *mutual) open(client *tls.Config) string {
	m.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: client, DisableKeepAlives: true}}
	resp, err := c.Post("https://"+m.PublicAddr()+"/v1/sessions", "application/json", strings.NewReader(`{"topics":["a"]}`))
	require.NoError(m, err)
	defer resp.Body.Close()
	var opened wire.SessionOpened
	require.NoError(m, json.NewDecoder(resp.Body).Decode(&opened))
	return opened.Session
}

// A client has the rights of its certificate's name, on every way: over HTTP/1.1, HTTP/2,
// WebSocket and TCP. Without a certificate it has none.
func TestTheNameOfACertificateIsThePrincipal(t *testing.T) {
	m := startMutual(t, func(c *config.Config) {
		c.Auth.Certificates = `[{"topics":["to.$sub.>"],"allow":["subscribe","publish","history"]}]`
	})
	require.Equal(t, m.Config().WhoMay(), m.logged.All()[0].Message, "the first entry says who may do what")
	require.Contains(t, m.Config().WhoMay(), "certificates of "+m.File)
	publish := func(client *tls.Config, topic string, h2 bool) int {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: client, DisableKeepAlives: true, ForceAttemptHTTP2: h2}}
		resp, err := c.Post("https://"+m.PublicAddr()+"/v1/topics/"+topic+"/messages", "application/json", strings.NewReader("1"))
		require.NoError(t, err)
		require.Equal(t, h2, resp.ProtoMajor == 2)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	for _, h2 := range []bool{false, true} {
		require.Equal(t, http.StatusOK, publish(m.named("ann"), "to.ann.1", h2))
		require.Equal(t, http.StatusForbidden, publish(m.named("ann"), "to.bob.1", h2))
		require.Equal(t, http.StatusForbidden, publish(m.named("a.b"), "to.a.b", h2), "the name is no token of a topic")
		require.Equal(t, http.StatusUnauthorized, publish(m.client(), "to.ann.1", h2))
	}
	say := func(address string, client *tls.Config, words []byte) string {
		conn, err := tls.Dial("tcp", address, client)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.SetDeadline(time.Now().Add(surely)))
		_, err = conn.Write(words)
		require.NoError(t, err)
		answer := make([]byte, 4096)
		n, err := conn.Read(answer)
		require.NoError(t, err)
		return string(answer[:n])
	}
	item := append([]byte{0xa1, 0x66, 't', 'o', 'p', 'i', 'c', 's', 0x81, 0x68}, "to.ann.1"...)
	require.Contains(t, say(m.TCPAddr(), m.named("ann"), item), "to.ann.1@", "hello has a position")
	require.Contains(t, say(m.TCPAddr(), m.named("bob"), item), "forbidden")
	require.Contains(t, say(m.TCPAddr(), m.client(), item), "unauthorized")
	socket := []byte(from(noPage, "GET /v1/ws?topic=to.ann.1", "", upgradeLines))
	require.Contains(t, say(m.PublicAddr(), m.named("ann"), socket), "101 Switching Protocols")
	require.Contains(t, say(m.PublicAddr(), m.named("bob"), socket), "403 Forbidden")
	require.Contains(t, say(m.PublicAddr(), m.client(), socket), "401 Unauthorized")
}

// A proxy that ends TLS shows its own certificate with the requests of all of its clients. That
// of a trusted proxy gives them no rights, on any way. Their own tokens count.
func TestTheCertificateOfATrustedProxyIsNobodys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "keys")
	token := keysOf(t, key, "ann")["ann"]
	m := startMutual(t, func(c *config.Config) {
		c.Auth.APIKeys, c.Auth.Certificates = key, `[{"topics":[">"],"allow":["subscribe","publish"]}]`
		c.Limit.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	for _, h2 := range []bool{false, true} {
		for authorization, want := range map[string]int{"": http.StatusUnauthorized, "Bearer " + token: http.StatusOK} {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: m.named("proxy"), DisableKeepAlives: true, ForceAttemptHTTP2: h2}}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+m.PublicAddr()+"/v1/topics/a/messages", strings.NewReader("1"))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/json")
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			resp, err := c.Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, want, resp.StatusCode)
		}
	}
	conn, err := tls.Dial("tcp", m.TCPAddr(), m.named("proxy"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte{0xa1, 0x66, 't', 'o', 'p', 'i', 'c', 's', 0x81, 0x61, 'a'})
	require.NoError(t, err)
	wantSays(t, bufio.NewReader(conn), "a TCP connection", "unauthorized")
}

// A trusted proxy's certificate needs no common name, and it may expire while clients' streams
// are open.
func TestTheCertificateOfATrustedProxyEndsNoStreams(t *testing.T) {
	t.Parallel()
	m := startMutual(t, func(c *config.Config) {
		c.Limit.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
		c.Transport.Heartbeat = 500 * time.Millisecond
	})
	expires := time.Now().Add(2 * time.Second).Truncate(time.Second) // certificates count seconds
	conn, err := tls.Dial("tcp", m.TCPAddr(), m.client(m.Issue(t, "", expires)))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(surely)))
	_, err = conn.Write([]byte{0xa1, 0x66, 't', 'o', 'p', 'i', 'c', 's', 0x81, 0x61, 'a'})
	require.NoError(t, err)
	for answer := make([]byte, 4096); time.Now().Before(expires.Add(time.Second)); {
		_, err = conn.Read(answer)
		require.NoError(t, err)
	}
}

// A browser shows a certificate by itself, and sends its token in a subprotocol. The token takes
// precedence.
func TestATokenInASubprotocolGoesWithACertificate(t *testing.T) {
	key := filepath.Join(t.TempDir(), "keys")
	token := keysOf(t, key, "ann")["ann"]
	m := startMutual(t, func(c *config.Config) { c.Auth.APIKeys = key })
	conn, err := tls.Dial("tcp", m.PublicAddr(), m.named("browser"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(surely)))
	_, err = conn.Write([]byte(from(noPage, "GET /v1/ws?topic=a", "", upgradeLines, "Sec-WebSocket-Protocol: pubsubd.v1, bearer."+token)))
	require.NoError(t, err)
	wantSays(t, bufio.NewReader(conn), "a WebSocket", "101 Switching Protocols")
}
