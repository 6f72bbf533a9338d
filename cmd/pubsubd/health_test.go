package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthOfADaemonThatIsReady(t *testing.T) {
	s := serveProcess(t)
	require.Equal(t, "ok\n", s.do("health", "--timeout=1m").stdout)
	require.Equal(t, "ok\n", s.do("health", "--live", "--timeout=1m").stdout)
	r := run(t, nil, "health", "--admin", s.public)
	require.Equal(t, exitRunTime, r.code, "the wrong listener")
}

func TestHealthOfADaemonThatIsNot(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("draining\n"))
		case "/livez":
			_, _ = w.Write([]byte("ok\n"))
		case "/silent/readyz":
			<-r.Context().Done()
		case "/other/readyz":
			_, _ = w.Write([]byte("<html>"))
		case "/away/readyz":
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer server.Close()
	require.Zero(t, run(t, nil, "health", "--live", "--timeout=1m", "--admin", server.URL).code)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"draining": {[]string{"--admin", server.URL, "--timeout=1m"}, "pubsubd: draining\n"},
		"silent":   {[]string{"--admin", server.URL + "/silent", "--timeout=50ms"}, "no answer in time"},
		"other":    {[]string{"--admin", server.URL + "/other", "--timeout=1m"}, "without pubsubd's error body"},
		"away":     {[]string{"--admin", server.URL + "/away", "--timeout=1m"}, "502 Bad Gateway, without pubsubd's error body: the proxy does not reach pubsubd"},
		"nobody":   {[]string{"--admin", "http://127.0.0.1:1"}, adminEnv},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, append([]string{"health"}, c.args...)...)
			require.Equal(t, exitRunTime, r.code)
			require.Contains(t, r.stderr, c.says)
			require.Empty(t, r.stdout)
		})
	}
	require.Equal(t, exitUsage, run(t, nil, "health", "now").code)
}
