package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

func newTestChat(t *testing.T) (c *chat, file string, settings []string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key.json")
	c, settings, err := newChat("http://127.0.0.1:1", file, time.Minute)
	require.NoError(t, err)
	return c, file, settings
}

func answerOf(h http.HandlerFunc, body string, header http.Header) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body))
	for name, values := range header {
		r.Header[name] = values
	}
	h(w, r)
	return w
}

func TestTheDaemonGetsOnlyWhatVerifiesTokens(t *testing.T) {
	_, file, settings := newTestChat(t)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	key, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(key), `"d"`)
	_, _, others := newTestChat(t)
	require.NotEqual(t, settings, others, "each start has its own secrets")
}

func TestANameBelongsToTheFirstWhoTakesIt(t *testing.T) {
	c, _, _ := newTestChat(t)
	login := func(name, secret string) int {
		return answerOf(c.login, fmt.Sprintf(`{"name":%q,"secret":%q}`, name, secret), nil).Code
	}
	require.Equal(t, 200, login("Ann", "1"))
	require.Equal(t, 200, login("ann", "1"))
	require.Equal(t, 403, login("ANN", "2"))
	for _, name := range []string{"", "a b", "a\n", "ann\u200b"} {
		require.Equal(t, 403, login(name, "1"), name)
	}
	require.Equal(t, 403, answerOf(c.login, "no JSON", nil).Code)
	for i := range 999 {
		require.Equal(t, 200, login(fmt.Sprint("x", i), "1"))
	}
	require.Equal(t, 403, login("x999", "1"), "the names have a bound")
	require.Equal(t, 200, login("x998", "1"))
}

// A message has the text that was moderated, and nothing else.
func TestTheModerationRefusesAndPublishesTextsOnly(t *testing.T) {
	c, _, settings := newTestChat(t)
	var secret string
	for _, s := range settings {
		if after, ok := strings.CutPrefix(s, "PUBSUBD_HOOKS_PUBLISH_SECRET="); ok {
			secret = after
		}
	}
	signer, err := webhooks.NewWebhookRaw([]byte(secret))
	require.NoError(t, err)
	sign := func(body string) http.Header {
		now := time.Now()
		signature, err := signer.Sign("msg_1", now, []byte(body))
		require.NoError(t, err)
		return http.Header{"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {fmt.Sprint(now.Unix())}, "Webhook-Signature": {signature}}
	}
	for _, tt := range []struct{ message, want string }{
		{`{"data":{"text":"hello"}}`, `{"message":{"data":{"text":"hello"}}}`},
		{`{"data":{"text":"hello","name":"Ann"},"key":"k"}`, `{"message":{"data":{"text":"hello"}}}`},
		{`{"data":{"text":"casino","TEXT":"hello"}}`, `{"message":{"data":{"text":"hello"}}}`},
		{`{"data":{"text":"My CASINO"}}`, "refuse"},
		{`{"data":{"text":""}}`, "refuse"},
		{`{"data":{"text":1}}`, "refuse"},
		{`{"data":["casino"]}`, "refuse"},
		{`{"type":"text/plain","text":"casino"}`, "refuse"},
	} {
		body := `{"type":"publish","topic":"chat.lobby","principal":"ann","message":` + tt.message + `}`
		answer := answerOf(c.moderate, body, sign(body))
		require.Equal(t, 200, answer.Code)
		require.Contains(t, answer.Body.String(), tt.want, tt.message)
		require.Equal(t, 401, answerOf(c.moderate, body, sign(body+" ")).Code)
		require.Equal(t, 401, answerOf(c.moderate, body, nil).Code)
	}
}
