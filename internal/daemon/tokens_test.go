package daemon

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	tools "github.com/pubsubd/pubsubd/internal/token"
)

// An issuer signs tokens with its own key, whose public part it writes to a file.
type issuer struct {
	*testing.T
	private, public []byte
	file            string
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	private, public, err := tools.GenerateKey("ES256")
	require.NoError(t, err)
	i := &issuer{t, private, public, filepath.Join(t.TempDir(), "key.pub")}
	require.NoError(t, os.WriteFile(i.file, public, 0o600))
	return i
}

// token returns a token that was issued at a time and may publish and subscribe to chat.>.
func (i *issuer) token(issued time.Time) string {
	i.Helper()
	signed, err := tools.Issue(i.private, tools.Draft{
		Subject: "alice", Issued: issued, TTL: time.Hour, Rights: []byte(`[{"topics":["chat.>"],"allow":["publish","subscribe"]}]`),
	})
	require.NoError(i, err)
	return signed
}

// named turns the issuer's key into a JWK with this id, and returns the public part.
func (i *issuer) named(id string) (public string) {
	i.Helper()
	block, _ := pem.Decode(i.private)
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(i, err)
	key := jose.JSONWebKey{Key: private, KeyID: id}
	i.private, err = key.MarshalJSON()
	require.NoError(i, err)
	text, err := key.Public().MarshalJSON()
	require.NoError(i, err)
	return string(text)
}

// publishAs publishes to topic chat.1 with a token and returns the status.
func (d *running) publishAs(token string) int {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), http.MethodPost, "http://"+d.PublicAddr()+"/v1/topics/chat.1/messages", strings.NewReader("1"))
	require.NoError(d, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := d.client.Do(req)
	require.NoError(d, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// The daemon takes another key from its file within about a second, without a signal. What
// tokens of a removed key keep open ends.
func TestAKeyIsReplacedWhileTheDaemonServes(t *testing.T) {
	t.Parallel()
	old, next := newIssuer(t), newIssuer(t)
	d := start(t, func(c *config.Config) { c.Auth.Keys = []string{old.file} })
	require.Equal(t, http.StatusUnauthorized, d.publishAs(""))
	require.Equal(t, http.StatusUnauthorized, d.publishAs(next.token(time.Now())))
	require.Equal(t, http.StatusUnauthorized, d.publishAs(old.token(time.Now().Add(-2*time.Hour))))
	require.Equal(t, http.StatusOK, d.publishAs(old.token(time.Now())))
	require.EqualValues(t, 1, d.metric("pubsubd_token_keys"))

	ended := bufio.NewReader(d.say("GET /v1/sse?topic=chat.1&token=" + old.token(time.Now()) + " HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	require.NoError(t, os.WriteFile(old.file, append(old.public, next.public...), 0o600))
	wantStatus := func(token string, status int) {
		t.Helper()
		require.Eventually(t, func() bool { return d.publishAs(token) == status }, surely, 50*time.Millisecond)
	}
	wantStatus(next.token(time.Now()), http.StatusOK)
	require.Equal(t, http.StatusOK, d.publishAs(old.token(time.Now())))
	stays := d.say("GET /v1/sse?topic=chat.1&token=" + next.token(time.Now()) + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
	defer stays.Close()
	d.wantMetric("pubsubd_subscriptions", 2)
	require.NoError(t, os.WriteFile(old.file, next.public, 0o600))
	wantStatus(old.token(time.Now()), http.StatusUnauthorized)
	require.Equal(t, http.StatusOK, d.publishAs(next.token(time.Now())))
	require.EqualValues(t, 1, d.metric(`pubsubd_credentials_refused_total{reason="expired"}`))
	wantSays(t, ended, "a stream with a token of the old key", "unauthorized")
	d.wantMetric("pubsubd_subscriptions", 1)
}

// The daemon fetches the keys of a JWKS, and ends although the server of the JWKS hangs.
func TestTheDaemonFetchesAJWKS(t *testing.T) {
	i, other := newIssuer(t), newIssuer(t)
	key := i.named("one")
	other.named("two")
	hang := make(chan struct{})
	var served atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Swap(true) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return
		}
		fmt.Fprint(w, `{"keys":[`+key+`]}`)
	}))
	defer provider.Close()
	defer close(hang)
	d := start(t, func(c *config.Config) { c.Auth.JWKS = provider.URL })
	// A token that comes before the keys would count as the one unknown token for which the daemon looks.
	require.Eventually(t, func() bool { return d.metric("pubsubd_jwks_age_seconds") > 0 }, surely, 50*time.Millisecond)
	require.Equal(t, http.StatusOK, d.publishAs(i.token(time.Now())))
	require.Equal(t, http.StatusServiceUnavailable, d.publishAs(other.token(time.Now())), "its key may be new: the daemon looks")
	require.NoError(t, d.wait())
}

// Tokens, valid or not, are secret. No log entry, refusal or metric has eight bytes of one.
func TestNoTokenIsTold(t *testing.T) {
	i := newIssuer(t)
	tokens := []string{
		i.token(time.Now()), i.token(time.Now().Add(-2 * time.Hour)), newIssuer(t).token(time.Now()),
		"eyJhbGciOiJub25lIn0.c2VjcmV0LXRva2VuLXRoYXQtaXMtbm90LXNpZ25lZA.", "secret-token-that-is-none",
	}
	for _, lane := range []string{"handoff", "off"} {
		d := start(t, func(c *config.Config) { c.Auth.Keys, c.Lane, c.Log.Level = []string{i.file}, lane, "debug" })
		var told strings.Builder
		for _, token := range tokens {
			for _, c := range []struct{ query, header string }{
				{"", "Authorization: Bearer " + token}, {"", "Authorization: " + token}, {"", "Authorization: Basic " + token},
				{"&token=" + token, "X: y"}, {"&token=" + token, "Authorization: Bearer " + token},
			} {
				conn := d.say("GET /v1/poll?topic=other" + c.query + " HTTP/1.1\r\nHost: h\r\n" + c.header + "\r\nConnection: close\r\n\r\n")
				answer, err := io.ReadAll(conn)
				require.NoError(t, err)
				require.Regexp(t, "^HTTP/1.1 40[013] ", string(answer))
				told.Write(answer)
			}
		}
		_, metrics := d.get("http://" + d.AdminAddr() + "/metrics")
		require.Positive(t, d.metric(`pubsubd_credentials_refused_total{reason="signature"}`))
		require.NoError(t, d.wait())
		for _, e := range d.logged.All() {
			fmt.Fprintln(&told, e.Message, e.ContextMap())
		}
		told.WriteString(metrics)
		for _, token := range tokens {
			for at := range len(token) - 8 {
				require.NotContains(t, told.String(), token[at:at+8], lane)
			}
		}
	}
}
