package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// A program can parse every line of the log, including those of the standard library: here,
// that an application's 204 has a body.
func TestEveryLineOfTheLogIsJSON(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n{}")
			_, _ = io.Copy(io.Discard, conn) // until the daemon closes it: bytes that arrive with the end are not logged
			_ = conn.Close()
		}
	}))
	defer app.Close()
	s := serveProcessIn(t, []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=" + strings.Repeat("k", 24)}, "--hooks-publish-url="+app.URL)
	require.Eventually(t, func() bool { // nor are bytes that arrive before the client has noticed that its request is sent
		require.Contains(t, s.post("/v1/topics/a/messages", "1"), "position")
		return strings.Contains(s.stderr.String(), "Unsolicited")
	}, patience, 10*time.Millisecond)
	for line := range strings.Lines(s.stderr.String()) {
		require.True(t, strings.HasPrefix(line, "{"), line)
	}
}

// The help of serve shows the flags in groups, and each of them once. The ten that most
// installations need come first.
func TestServesHelpIsInGroups(t *testing.T) {
	help := run(t, nil, "serve", "--help").stdout
	parts := regexp.MustCompile(`(?m)^$`).Split(help, -1)
	first := slices.IndexFunc(parts, func(p string) bool { return strings.HasPrefix(p, "\nMost installations need only these:\n") })
	require.Positive(t, first)
	flag := regexp.MustCompile(`(?m)(?:^ {2,6}|  |-h, )--([a-zA-Z0-9-]+)`)
	require.Len(t, flag.FindAllString(parts[first], -1), 10)
	require.True(t, strings.HasPrefix(parts[first+1], "\nAddresses and names. "), parts[first+1])

	shown := make(map[string]int)
	for _, match := range flag.FindAllStringSubmatch(help, -1) {
		shown[match[1]]++
	}
	want := map[string]int{"help": 1, "rates-KIND-SCOPE": 1}
	serveCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			want[f.Name] = 1
		}
	})
	require.Equal(t, want, shown)
	require.Contains(t, help, "pubsubd config doc describes every setting")
	require.Less(t, strings.Count(help, "\n"), 100)
	for line := range strings.Lines(help) {
		require.LessOrEqual(t, len(line), 120, line)
	}
}
