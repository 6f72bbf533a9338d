package daemon

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A run uses tokens, an API key, the key of operators and session ids wherever they can be
// sent, rightly and wrongly. Afterwards none of them is in a log entry, a refusal, a metric, a
// profile, the list of sessions, the state or the file of revocations.
func TestNoSecretOfAuthorisationGetsOut(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	encoded := base64.RawURLEncoding.EncodeToString(tokenSecret)
	require.NoError(t, os.WriteFile(file("hmac"), []byte(fmt.Sprintf(`{"kty":"oct","alg":"HS256","k":%q}`, encoded)), 0o600))
	apiKey := keysOf(t, file("keys"), "backend")["backend"]
	for _, lane := range []string{"handoff", "off"} {
		t.Run(lane, func(t *testing.T) {
			d := start(t, func(c *config.Config) {
				c.Auth.Keys, c.Auth.APIKeys, c.Auth.Revocations = []string{file("hmac")}, file("keys"), file("revoked."+lane)
				c.Admin.KeyFile, c.Listen.TCP = operatorsKey(t), "127.0.0.1:0"
				keptIn(file("state." + lane))(c)
				c.Log.Level, c.Lane = "debug", lane
			})
			good, expired := tokenFor(time.Now().Add(time.Hour)), tokenFor(time.Now().Add(-time.Minute))
			forged := good[:len(good)-10] + "AAAAAAAAAA"
			secrets := []string{string(tokenSecret), encoded, apiKey, keyOfOperators}
			var out strings.Builder // what others than the secrets' owners may see
			for _, token := range []string{good, expired, forged, apiKey, good + "x", "psk_" + good} {
				for part := range strings.SplitSeq(token, ".") {
					if len(part) > 40 { // not the header, which is the same for all
						secrets = append(secrets, part[8:len(part)-8])
					}
				}
				var opened wire.SessionOpened
				if status, text := d.ask("/v1/sessions", token, `{"topics":["a"]}`); status == http.StatusCreated {
					require.NoError(t, json.Unmarshal([]byte(text), &opened))
					secrets = append(secrets, opened.Session)
				} else {
					out.WriteString(text)
				}
				_, text := d.ask("/v1/topics/a/messages", token, `"x"`)
				out.WriteString(text)
				for _, path := range []string{
					"/v1/poll?topic=a@oldest&token=" + token, "/v1/topics?token=" + token, "/v1/sse?topic=..&token=" + token, "/v1/poll?topic=a&mode=no&token=" + token,
					"/v1/sessions/" + opened.Session + "x/poll?ack=0&token=" + token, "/v1/ws?topic=a&token=" + token,
				} {
					_, text := d.get("http://" + d.PublicAddr() + path)
					out.WriteString(text)
				}
				const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
				conn := d.say("GET /v1/ws?topic=a HTTP/1.1\r\nHost: h\r\n" + upgrade + "Sec-WebSocket-Protocol: pubsubd.v1, bearer." + token + "\r\n\r\n")
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				answer.Body.Close()
				require.NoError(t, answer.Header.Write(&out))
				require.NoError(t, conn.Close())
				conn, err = net.Dial("tcp", d.TCPAddr())
				require.NoError(t, err)
				_, err = conn.Write(itemOf(t, wire.ConnectRequest{Topics: []wire.Start{{Topic: "a"}}, Auth: &token}))
				require.NoError(t, err)
				said := make([]byte, 4096)
				n, err := conn.Read(said)
				require.NoError(t, err)
				out.Write(said[:n])
				_, _ = conn.Write(itemOf(t, wire.Command{Auth: token, Ref: new(uint64)}))
				require.NoError(t, conn.Close())
			}
			for _, path := range []string{"/metrics", "/sessions", "/readyz", "/revocations", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/cmdline"} {
				out.WriteString(d.operate("GET", path, ""))
			}
			out.WriteString(d.operate("POST", "/revocations", `{"subject":"ann"}`))
			out.WriteString(d.operate("POST", "/revocations", `{"subject":"`+good[:20]))
			_, text := d.ask("/v1/topics/a/messages", good, `"x"`)
			require.Contains(t, text, "unauthorized")
			out.WriteString(text)
			require.NoError(t, d.wait())
			checkpoints, err := filepath.Glob(filepath.Join(file("state."+lane), "*.checkpoint"))
			require.NoError(t, err)
			require.Len(t, checkpoints, 1)
			for _, path := range append(checkpoints, file("revoked."+lane)) {
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				out.Write(text)
			}
			d.wantNone(secrets)
			require.Contains(t, out.String(), "pubsubd_messages_published_total")
			for _, secret := range secrets {
				require.NotContains(t, out.String(), secret)
			}
		})
	}
}

// operate makes a request to the admin listener with the key of operators, and returns the
// answer.
func (d *running) operate(method, path, body string) string {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), method, "http://"+d.adminHost()+path, strings.NewReader(body))
	require.NoError(d, err)
	r.Header.Set("Authorization", "Bearer "+keyOfOperators)
	r.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(r)
	require.NoError(d, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	return string(text)
}

// itemOf returns a value as one CBOR item.
func itemOf(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return cbor.AppendFromJSON(nil, text)
}
