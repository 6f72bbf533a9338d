package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAnOperatorEndsASessionByItsNumber(t *testing.T) {
	key := filepath.Join(t.TempDir(), "admin.key")
	require.NoError(t, os.WriteFile(key, []byte(keyOfOperators+"\n"), 0o600))
	s := serveProcess(t, "--admin-key-file", key)
	var opened wire.SessionOpened
	require.NoError(t, json.Unmarshal([]byte(s.post("/v1/sessions", `{"topics":["a"]}`)), &opened))

	r := run(t, nil, "revoke", "--session=1", "--admin", s.admin)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "unauthorized")
	r = s.do("revoke", "--session=1", "--admin-key-file", key)
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, "revoked; sessions ended: 1\n", r.stdout)
	require.Contains(t, s.do("sessions").stdout, "0 of 0 sessions")
	s.waitForMetric(`pubsubd_sessions_ended_total{reason="revoked"} 1`)

	r = run(t, []string{adminEnv + "=" + s.admin, adminKeyEnv + "=" + key}, "revoke", "--session=1")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "session_unknown")
	r = run(t, nil, "revoke", "--subject=ann", "--admin", s.admin, "--admin-key-file", key)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "set auth.revocations")
}

func TestRevokeCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, args := range []string{"", "--subject=a --session=1", "--session=0", "--session=-1", "--admin=here --session=1", "ann", "--session=1 --admin-key-file=/gone"} {
		r := run(t, nil, append([]string{"revoke"}, strings.Fields(args)...)...)
		require.Equal(t, exitUsage, r.code, fmt.Sprint(args, r.stderr))
	}
}

// An issuer signs tokens with a secret that the daemons of a test know.
type issuer struct {
	*testing.T
	secret []byte
	args   []string // of serve
}

const keyOfOperators = "key-of-operators-for-tests"

// newIssuer writes the files of a daemon that verifies tokens and keeps revocations.
func newIssuer(t *testing.T) *issuer {
	t.Helper()
	dir := t.TempDir()
	i := &issuer{T: t, secret: []byte("a secret of 32 bytes, for tests!")}
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	jwk := write("secret.json", `{"kty":"oct","alg":"HS256","k":"`+base64.RawURLEncoding.EncodeToString(i.secret)+`"}`)
	i.args = []string{"--auth-keys", jwk, "--auth-revocations", filepath.Join(dir, "revocations"), "--admin-key-file", write("admin.key", keyOfOperators)}
	return i
}

// token returns a token with all rights (RFC 7519, section 3.1).
func (i *issuer) token(subject string, issued time.Time) string {
	i.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		require.NoError(i, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(map[string]any{"alg": "HS256"}) + "." + part(map[string]any{
		"sub": subject, "iat": issued.Unix(), "exp": issued.Add(time.Hour).Unix(),
		"pubsub": []any{map[string]any{"topics": []string{">"}, "allow": []string{"publish", "subscribe"}}},
	})
	mac := hmac.New(sha256.New, i.secret)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// send sends a request with a token, and returns the status and the answer.
func (s *served) send(method, url, token, body string) (int, string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, url, strings.NewReader(body))
	require.NoError(s, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(s, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return resp.StatusCode, string(text)
}

// An operator revokes a user, whose polls and session end. The daemon is killed and started
// again, and refuses the user's old tokens.
func TestARevocationSurvivesAKill(t *testing.T) {
	i := newIssuer(t)
	old, bob := i.token("ann", time.Now().Add(-time.Minute)), i.token("bob", time.Now())
	s := serveProcess(t, i.args...)
	status, text := s.send("POST", s.public+"/v1/sessions", old, `{"topics":["a"]}`)
	require.Equal(t, http.StatusCreated, status, text)
	var opened wire.SessionOpened
	require.NoError(t, json.Unmarshal([]byte(text), &opened))
	poll := s.public + "/v1/sessions/" + opened.Session + "/poll?ack=0"
	ended := make(chan string)
	go func() {
		_, text := s.send("GET", poll, old, "")
		ended <- text
	}()
	s.waitForMetric(`pubsubd_polls_parked{transport="longpoll"} 1`)
	r := s.do("revoke", "--subject=ann", "--admin-key-file", i.args[5])
	require.Equal(t, "revoked; sessions ended: 1\n", r.stdout)
	require.Contains(t, <-ended, "session_ended")

	wantRefused := func() {
		t.Helper()
		status, text := s.send("POST", s.public+"/v1/topics/a/messages", old, "1")
		require.Equal(t, http.StatusUnauthorized, status, text)
		require.Contains(t, text, "revoked")
		status, text = s.send("POST", s.public+"/v1/topics/a/messages", bob, "1")
		require.Equal(t, http.StatusOK, status, text)
		status, text = s.send("POST", s.public+"/v1/topics/a/messages", i.token("ann", time.Now().Add(time.Second)), "1")
		require.Equal(t, http.StatusOK, status, text)
	}
	wantRefused()
	s.signal(syscall.SIGKILL)
	s.exit()
	s = serveProcess(t, i.args...)
	wantRefused()
	require.NotContains(t, s.stderr.String(), old[len(old)-20:])
}

// Operators revoke many tokens when the daemon is killed. What it acknowledged is revoked.
func TestNoAcknowledgedRevocationIsLost(t *testing.T) {
	i := newIssuer(t)
	s := serveProcess(t, i.args...)
	var mu sync.Mutex // guards acknowledged
	acknowledged := map[string]bool{}
	var operators sync.WaitGroup
	enough := make(chan bool)
	for n := range 4 {
		operators.Go(func() {
			for m := 0; ; m++ {
				id := fmt.Sprint("t-", n, "-", m)
				r, err := http.NewRequest("POST", s.admin+"/revocations", bytes.NewReader([]byte(`{"token_id":"`+id+`"}`)))
				if err != nil {
					panic(err)
				}
				r.Header.Set("Authorization", "Bearer "+keyOfOperators)
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					return // the daemon is dead
				}
				resp.Body.Close()
				mu.Lock()
				acknowledged[id] = resp.StatusCode == http.StatusOK
				if len(acknowledged) == 100 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	s.signal(syscall.SIGKILL)
	s.exit()
	operators.Wait()

	s = serveProcess(t, i.args...)
	status, text := s.send("GET", s.admin+"/revocations?limit=1000", keyOfOperators, "")
	require.Equal(t, http.StatusOK, status, text)
	var list auth.RevocationList
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	held := map[string]bool{}
	for _, v := range list.Revocations {
		held[v.TokenID] = true
	}
	require.GreaterOrEqual(t, len(acknowledged), 100)
	for id, ok := range acknowledged {
		require.True(t, ok && held[id], id)
	}
}
