package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who reads the log by machine can read all of it, also what the standard library says:
// here, that an application's 204 has a body.
func TestEveryLineOfTheLogIsJSON(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n{}")
			time.Sleep(100 * time.Millisecond) // what comes with the end is no news
			_ = conn.Close()
		}
	}))
	defer app.Close()
	s := serveProcessIn(t, []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=" + strings.Repeat("k", 24)}, "--hooks-publish-url="+app.URL)
	require.Eventually(t, func() bool { // what comes before the client notes that it has sent all is no news either
		require.Contains(t, s.post("/v1/topics/a/messages", "1"), "position")
		return strings.Contains(s.stderr.String(), "Unsolicited")
	}, patience, 10*time.Millisecond)
	for line := range strings.Lines(s.stderr.String()) {
		require.True(t, strings.HasPrefix(line, "{"), line)
	}
}
