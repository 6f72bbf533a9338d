package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// keysOf makes a file of API keys with all rights on everything, and returns the keys.
func keysOf(t *testing.T, file string, names ...string) map[string]string {
	t.Helper()
	secrets := make(map[string]string)
	for _, name := range names {
		secret, k, err := auth.NewAPIKey(name, []byte(`[{"topics":[">"],"allow":["subscribe","publish"]}]`), time.Now(), time.Time{})
		require.NoError(t, err)
		secrets[name] = secret
		require.NoError(t, auth.EditAPIKeys(file, func(keys []auth.APIKey) ([]auth.APIKey, error) { return append(keys, k), nil }))
	}
	return secrets
}

// holdOpen has principals wait for the topic a on every transport. It returns what they read from, by
// the principal and the transport.
func holdOpen(t *testing.T, d *running, keys map[string]string, names ...string) map[string]*bufio.Reader {
	t.Helper()
	ask := func(name, request, headers string) *bufio.Reader {
		conn := d.say(fmt.Sprintf("%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n", request, keys[name], headers))
		t.Cleanup(func() { _ = conn.Close() })
		return bufio.NewReader(conn)
	}
	var published wire.Published
	_, text := d.publishWith(keys[names[0]])
	require.NoError(t, json.Unmarshal([]byte(text), &published))
	parked := map[string]*bufio.Reader{}
	for _, name := range names {
		session := openWith(t, d, keys[name])
		parked[name+" polls"] = ask(name, "GET /v1/sessions/"+session+"/poll?ack=0", "")
		parked[name+" polls without a session"] = ask(name, "GET /v1/poll?topic="+published.Position.String(), "")
		parked[name+" streams"] = ask(name, "GET /v1/poll?topic=a&mode=stream", "")
		parked[name+" streams events"] = ask(name, "GET /v1/sse?topic=a", "")
		parked[name+" has a WebSocket"] = ask(name, "GET /v1/ws?topic=a", upgradeLines+"\r\n")
		tcp, err := net.Dial("tcp", d.TCPAddr())
		require.NoError(t, err)
		d.connect(tcp, fmt.Sprintf(`{"topics":["a"],"auth":%q}`, keys[name]))
		parked[name+" has a TCP connection"] = bufio.NewReader(tcp)
	}
	return parked
}

// An administrator revokes an API key. Whatever it keeps open ends, on every transport, and
// nobody else notices.
func TestARevokedKeyEndsWhatItKeepsOpen(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "channel", "off"} {
		t.Run(lane, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "keys")
			keys := keysOf(t, file, "ann", "bob")
			d := start(t, func(c *config.Config) {
				c.Auth.APIKeys, c.Lane, c.Log.Level, c.Listen.TCP = file, lane, "debug", "127.0.0.1:0"
			})
			parked := holdOpen(t, d, keys, "ann", "bob")
			d.wantMetric("pubsubd_subscriptions", 12)
			removeKey(t, file, "ann")
			for who, in := range parked {
				if strings.HasPrefix(who, "ann") {
					wantSays(t, in, who, `session_ended`, `unauthorized`)
				}
			}
			d.wantMetric("pubsubd_subscriptions", 6)
			status, _ := d.publishWith(keys["ann"])
			require.Equal(t, 401, status)
			status, text := d.publishWith(keys["bob"])
			require.Equal(t, 200, status, text)
			for who, in := range parked {
				if strings.HasPrefix(who, "bob") {
					wantSays(t, in, who, `{"n":1}`, "\xa1\x61n\x01")
				}
			}
			d.wantNone([]string{keys["ann"], keys["bob"], keys["ann"][4:], keys["bob"][4:]})
		})
	}
}

// A back end forbids a topic to ann, and then ends her sessions. Whatever she keeps open says so, on
// every transport, and nobody else notices. A reload and a restart lift nothing.
func TestABackEndActsOnClients(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"handoff", "channel", "off"} {
		t.Run(lane, func(t *testing.T) {
			folder := t.TempDir()
			file := filepath.Join(folder, "keys")
			keys := keysOf(t, file, "ann", "bob")
			secret, backend, err := auth.NewAPIKey("backend", []byte(`[{"topics":[">"],"allow":["manage"]}]`), time.Now(), time.Time{})
			require.NoError(t, err)
			require.NoError(t, auth.EditAPIKeys(file, func(keys []auth.APIKey) ([]auth.APIKey, error) { return append(keys, backend), nil }))
			change := func(c *config.Config) {
				c.Auth.APIKeys, c.Auth.Revocations = file, filepath.Join(folder, "revocations")
				c.Lane, c.Listen.TCP = lane, "127.0.0.1:0"
			}
			d := start(t, change)
			manage := func(body string) string {
				t.Helper()
				status, text := d.ask("/v1/subjects", secret, body)
				require.Equal(t, 200, status, text)
				return text
			}
			wantRefused := func() {
				t.Helper()
				for path, body := range map[string]string{"/v1/topics/a/messages": "1", "/v1/sessions": `{"topics":["a"]}`} {
					status, text := d.ask(path, keys["ann"], body)
					require.Equal(t, 403, status)
					require.Contains(t, text, "no more spam")
				}
			}
			parked := holdOpen(t, d, keys, "ann", "bob")
			d.wantMetric("pubsubd_subscriptions", 12)
			forbid := fmt.Sprintf(`{"subject":"ann","forbid":["a"],"until_ms":%d,"reason":"no more spam"}`, time.Now().Add(time.Hour).UnixMilli())
			status, _ := d.ask("/v1/subjects", keys["ann"], forbid)
			require.Equal(t, 403, status, "it needs the right")
			require.JSONEq(t, `{"sessions":6}`, manage(forbid))
			for who, in := range parked {
				if strings.HasPrefix(who, "ann") {
					wantSays(t, in, who, "forbidden")
					wantSays(t, in, who, "no more spam")
				}
			}
			d.wantMetric(`pubsubd_in_use{limit="prohibitions"}`, 1)
			wantRefused()
			status, text := d.publishWith(keys["bob"])
			require.Equal(t, 200, status, text)
			for who, in := range parked {
				if strings.HasPrefix(who, "bob") {
					wantSays(t, in, who, `{"n":1}`, "\xa1\x61n\x01")
				}
			}

			manage(`{"subject":"ann","end":true,"reason":"good bye"}`)
			for _, transport := range []string{"streams", "streams events", "has a WebSocket", "has a TCP connection"} {
				wantSays(t, parked["ann "+transport], transport, "session_ended")
				wantSays(t, parked["ann "+transport], transport, "good bye")
			}

			d.reloadWith(func(*config.Config) {})
			wantRefused()
			require.NoError(t, d.wait())
			d = start(t, change)
			wantRefused()
			manage(`{"subject":"ann","forbid":[]}`)
			status, text = d.publishWith(keys["ann"])
			require.Equal(t, 200, status, text)
		})
	}
}

// A key that is removed from its file ends its sessions within a second.
func TestARemovedKeyEndsSessionsWithinASecond(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	keys := keysOf(t, file, "ann", "bob")
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.Auth.APIKeys = file
		d, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.NoError(t, err)
		defer d.broker.Close()
		defer d.release()
		var sweeping sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		defer sweeping.Wait()
		defer stop()
		sweeping.Go(func() { d.auth.Run(ctx, d.endRevoked) })
		sessions := make(map[string]string)
		for name, key := range keys {
			c := app.Caller{Credentials: auth.Credentials{Token: key}}
			o, err := d.app.BeginOpen(ctx, c, limit.Sessions, app.OfBody)
			require.NoError(t, err)
			opened, err := o.Session(session.Opening{Topics: []wire.Start{{Topic: "a"}}, Ack: true})
			require.NoError(t, err)
			sessions[name] = opened.Session
		}
		removeKey(t, file, "ann")
		time.Sleep(time.Second)
		synctest.Wait()
		_, err = d.sessions.Get([]byte(sessions["ann"]))
		require.ErrorIs(t, err, problem.New(wire.CodeSessionEnded, "", ""))
		_, err = d.sessions.Get([]byte(sessions["bob"]))
		require.NoError(t, err)
	})
}

func removeKey(t *testing.T, file, name string) {
	t.Helper()
	require.NoError(t, auth.EditAPIKeys(file, func(keys []auth.APIKey) ([]auth.APIKey, error) {
		return slices.DeleteFunc(keys, func(k auth.APIKey) bool { return k.Name == name }), nil
	}))
}

// wantSays reads an answer until it says one of some texts.
func wantSays(t *testing.T, in *bufio.Reader, who string, texts ...string) {
	t.Helper()
	var said []byte
	for !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(string(said), text) }) {
		b, err := in.ReadByte()
		require.NoError(t, err, "%s: %s", who, said)
		said = append(said, b)
	}
}

// A broken file changes nothing, and the log says what is wrong and where.
func TestABrokenFileOfAPIKeysIsLogged(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	keys := keysOf(t, file, "ann")
	d := start(t, func(c *config.Config) { c.Auth.APIKeys = file })
	require.NoError(t, os.WriteFile(file, []byte("broken\n"), 0o600))
	require.Eventually(t, func() bool { return d.logged.FilterMessageSnippet("cannot read auth.api_keys").Len() > 0 }, surely, 10*time.Millisecond)
	require.Contains(t, fmt.Sprint(d.logged.FilterMessageSnippet("cannot read auth.api_keys").All()[0].ContextMap()), file+", line 1")
	status, text := d.publishWith(keys["ann"])
	require.Equal(t, 200, status, text)
	d.wantMetric(`pubsubd_in_use{limit="api_keys"}`, 1)
}

// A new deployment starts before anybody could make its first API key. Until then nobody may do
// anything.
func TestTheFirstAPIKeyMayComeAfterTheStart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	d := start(t, func(c *config.Config) { c.Auth.APIKeys = file })
	require.Len(t, d.logged.FilterMessageSnippet("which does not exist: the daemon starts without API keys").All(), 1)
	status, _ := d.publishWith("")
	require.Equal(t, 401, status)
	key := keysOf(t, file, "ann")["ann"]
	require.Eventually(t, func() bool {
		status, _ := d.publishWith(key)
		return status == 200
	}, surely, 10*time.Millisecond)
	require.Empty(t, d.logged.FilterMessageSnippet("cannot read auth.api_keys").All())
}

// Two daemons cannot have the same file of revocations. The second starts once the first ends.
func TestOneDaemonHasTheFileOfRevocations(t *testing.T) {
	folder := t.TempDir()
	keysOf(t, filepath.Join(folder, "keys"), "ann")
	change := func(c *config.Config) {
		c.Listen = config.Listen{Public: "127.0.0.1:0", Admin: "127.0.0.1:0"}
		c.Auth.APIKeys, c.Auth.Revocations = filepath.Join(folder, "keys"), filepath.Join(folder, "revocations")
	}
	d := start(t, change)
	cfg := config.Default()
	change(&cfg)
	_, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.ErrorContains(t, err, "is in use by another daemon")
	require.NoError(t, d.wait())

	cfg.Store.Dir = filepath.Join(folder, "keys", "store")
	_, err = New(cfg, zap.NewNop(), metrics.New("test"))
	require.ErrorContains(t, err, "store.dir")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	cfg.Store.Dir, cfg.Listen.Public = "", taken.Addr().String()
	second, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.NoError(t, err, "what failed has released the file")
	require.Error(t, second.Listen())
	start(t, change)
}

// openWith opens a session of the topic a, and returns its id.
func openWith(t *testing.T, d *running, key string) string {
	t.Helper()
	status, text := d.ask("/v1/sessions", key, `{"topics":["a"]}`)
	require.Equal(t, 201, status, text)
	var opened wire.SessionOpened
	require.NoError(t, json.Unmarshal([]byte(text), &opened))
	return opened.Session
}

// publishWith publishes a message to the topic a.
func (d *running) publishWith(key string) (int, string) {
	d.Helper()
	return d.ask("/v1/topics/a/messages", key, `{"n":1}`)
}

// ask sends a POST request with a token or an API key.
func (d *running) ask(path, key, body string) (int, string) {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), http.MethodPost, "http://"+d.PublicAddr()+path, strings.NewReader(body))
	require.NoError(d, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := d.client.Do(r)
	require.NoError(d, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	return resp.StatusCode, string(text)
}

// A look at the keys hangs in the file system when the daemon is told to stop. The daemon ends
// without it, and says so.
func TestAHangingFileSystemDoesNotKeepTheDaemon(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	keysOf(t, file, "ann")
	d := startWith(t, func(c *config.Config) { c.Auth.APIKeys = file }, func(d *Daemon) { d.watching.Add(1) })
	require.NoError(t, d.wait())
	require.Len(t, d.logged.FilterMessageSnippet("the file system of auth.revocations").All(), 1)
	d.watching.Done() // it answers at last
}
