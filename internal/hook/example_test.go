package hook

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// HOOKS.md contains the code between the lines.
// ---8<---
func hook(verifier *webhooks.Webhook) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 2<<20))
		if err != nil || verifier.Verify(body, r.Header) != nil {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		var question struct {
			Type, Principal  string
			Topics, Patterns []string
			Events           []struct{ Type, Topic, Principal, Reason string }
		}
		detail := ""
		switch err := json.Unmarshal(body, &question); {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		case question.Type == "publish" && bytes.Contains(bytes.ToLower(body), []byte("casino")):
			detail = "no advertisements here"
		case question.Type == "authorize" && slices.Contains(question.Topics, "chat.staff") && question.Principal != "ann":
			detail = "only staff may listen here"
		}
		for _, e := range question.Events {
			log.Print(e.Type, " ", e.Principal, e.Topic, " ", e.Reason)
		}
		if detail != "" {
			_ = json.NewEncoder(w).Encode(map[string]any{"refuse": map[string]string{"detail": detail}})
		}
	}
}

// ---8<---

func TestTheExampleOfTheDocument(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	document, err := os.ReadFile("../../deploy/HOOKS.md")
	require.NoError(t, err)
	example := strings.TrimSpace(strings.Split(string(source), "// ---8<---\n")[1])
	require.Contains(t, string(document), example)

	verifier, err := webhooks.NewWebhookRaw([]byte(secret))
	require.NoError(t, err)
	app := httptest.NewServer(hook(verifier))
	defer app.Close()
	d := newDesk(t, Config{})
	d.cfg.URL = app.URL
	d.Reload(d.cfg)
	_, err = d.publish("a")
	require.NoError(t, err)
	m := message("a")
	m.Data = []byte(`"Casino!"`)
	require.ErrorContains(t, d.Publish(t.Context(), Principal{}, m, 0, nil), "no advertisements here")
	h := d.asksAt(0, "chat.>")
	require.NoError(t, h.Authorize(t.Context(), annTo("chat.staff")))
	require.NoError(t, h.Authorize(t.Context(), Subscribing{Topics: annTo("chat.lobby").Topics}))
	require.ErrorContains(t, h.Authorize(t.Context(), Subscribing{Topics: annTo("chat.lobby", "chat.staff").Topics}), "only staff may listen here")
	logged := &bytes.Buffer{}
	log.SetOutput(logged)
	defer log.SetOutput(os.Stderr)
	e := NewEvents(EventsConfig{Config: d.cfg}, new(changes), d.all, zap.NewNop())
	go e.Run()
	e.SessionEnded(7, "ann", "inactive")
	e.Close(t.Context())
	require.Contains(t, logged.String(), "session_ended ann inactive")
	resp, err := http.Post(app.URL, "application/json", strings.NewReader(`{}`))
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}
