package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestTopicsAreShownAsATable(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "prices.acme", "1")
	s.do("publish", "prices.acme", "2")
	s.post("/v1/sessions", `{"topics":["prices.acme","prices.new"]}`)
	lines := strings.Split(s.do("topics").stdout, "\n")
	require.Regexp(t, `^TOPIC +OFFSET +MESSAGES +BYTES +SUBSCRIPTIONS +NEWEST$`, lines[0])
	require.Regexp(t, `^prices\.acme +2 +2 +\d+ +1 +\d+s ago$`, lines[1])
	require.Regexp(t, `^prices\.new +0 +0 +0 +1 +-$`, lines[2])
	require.Equal(t, []string{""}, lines[3:])
}

func TestTopicsAreListedOverAllPages(t *testing.T) {
	s := serveProcess(t)
	for page := range 3 {
		topics := make([]string, 900)
		for i := range topics {
			topics[i] = fmt.Sprintf(`"t.%d"`, page*len(topics)+i)
		}
		s.post("/v1/sessions", `{"topics":[`+strings.Join(topics, ",")+`]}`)
	}
	r := s.do("topics", "--json")
	seen := map[string]bool{}
	for line := range strings.Lines(r.stdout) {
		var topic wire.TopicState
		require.NoError(t, json.Unmarshal([]byte(line), &topic))
		seen[topic.Topic] = true
	}
	require.Len(t, seen, 2700)
	require.Equal(t, 2701, strings.Count(s.do("topics").stdout, "\n"), "each, under one head")
}

func TestTopicsWithAPrefix(t *testing.T) {
	s := serveProcess(t)
	s.post("/v1/sessions", `{"topics":["a","b","b-c","b.a","b.z.z","b_","bz","c"]}`)
	names := func(prefix string) (names []string) {
		for line := range strings.Lines(s.do("topics", "--json", "--prefix="+prefix).stdout) {
			var topic wire.TopicState
			require.NoError(t, json.Unmarshal([]byte(line), &topic))
			names = append(names, topic.Topic)
		}
		return names
	}
	require.Equal(t, []string{"b", "b-c", "b.a", "b.z.z", "b_", "bz"}, names("b"))
	require.Equal(t, []string{"b.a", "b.z.z"}, names("b."))
	require.Equal(t, []string{"b.z.z"}, names("b.z.z"))
	require.Empty(t, names("d"))
	require.Len(t, names(""), 8)
}

func TestTopicsDeleteEmptiesATopic(t *testing.T) {
	s := serveProcess(t)
	s.do("publish", "a", "1")
	require.Regexp(t, `^a is empty; it continues after a@\w+:2\n$`, s.do("topics", "delete", "a").stdout)
	require.NotContains(t, s.held("a"), `"data"`)
}

// An empty table would hide that the command lacks credentials.
func TestTopicsNeedCredentialsIfTheDaemonDoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	s := serveProcess(t, "--auth-api-keys", file, `--auth-anonymous=[{"topics":["a"],"allow":["publish"]}]`)
	s.do("publish", "a", "1")
	r := run(t, nil, "topics", "--server", s.public)
	require.Equal(t, exitRunTime, r.code)
	require.Empty(t, r.stdout)
	require.Contains(t, r.stderr, "unauthorized: a client without credentials may not subscribe to any topic")
	require.Contains(t, r.stderr, "set a token or an API key with --token-file or PUBSUBD_TOKEN")

	key := strings.TrimSpace(run(t, nil, "key", "new", "--file", file, "--name=b", "--allow=subscribe:a").stdout)
	require.Eventually(t, func() bool {
		r = run(t, []string{tokenEnv + "=" + key}, "topics", "--server", s.public)
		return r.code == 0
	}, patience, 100*time.Millisecond)
	require.Contains(t, r.stdout, "\na ")
}

func TestTopicsWithoutCredentialsWhereEveryoneMaySubscribe(t *testing.T) {
	s := serveProcess(t, `--auth-anonymous=[{"topics":["public.>"],"allow":["subscribe"]}]`)
	r := run(t, nil, "topics", "--server", s.public)
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `^TOPIC .*\n$`, r.stdout)
}

// A daemon that refuses is quoted, and one that is too old is told of.
func TestTopicsDeleteThatFails(t *testing.T) {
	answers := map[string]string{
		"/v1/topics/a":   `{"topic":"a","position":"a@k3:18","oldest":"a@k3:18","messages":0,"bytes":0,"subscriptions":0}`,
		"/v1/topics/old": "",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch answer, known := answers[r.URL.Path]; {
		case !known || r.Method != http.MethodDelete:
			w.Header().Set("Content-Type", wire.ProblemType)
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"status":404,"code":"topic_unknown","detail":"there is no such topic"}`))
		case answer == "":
			w.Header().Set("Content-Type", wire.ProblemType)
			w.WriteHeader(http.StatusMethodNotAllowed)
			_, _ = w.Write([]byte(`{"status":405,"code":"method_not_allowed"}`))
		default:
			_, _ = w.Write([]byte(answer))
		}
	}))
	defer server.Close()
	r := run(t, nil, "topics", "delete", "a", "--server", server.URL)
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, "a is empty; it continues after a@k3:18\n", r.stdout)
	for topic, says := range map[string]string{"old": "too old to delete a history", "b": "topic_unknown: there is no such topic"} {
		r = run(t, nil, "topics", "delete", topic, "--server", server.URL)
		require.Equal(t, exitRunTime, r.code)
		require.Contains(t, r.stderr, says)
		require.Empty(t, r.stdout)
	}
	for _, args := range [][]string{{"delete"}, {"delete", "a..b"}, {"delete", "a", "b"}, {"b"}, {"--server=x"}} {
		require.Equal(t, exitUsage, run(t, nil, append([]string{"topics"}, args...)...).code, args)
	}
}

func TestTopicsOfWhatIsNoDaemon(t *testing.T) {
	pages := map[string]string{"/html/v1/topics": "<html>", "/gone/v1/topics": ""}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pages[r.URL.Path] == "" {
			http.NotFound(w, r)
		}
		_, _ = w.Write([]byte(pages[r.URL.Path]))
	}))
	defer server.Close()
	for path, says := range map[string]string{"/html": "does not come from pubsubd", "/gone": "404"} {
		r := run(t, nil, "topics", "--server", server.URL+path)
		require.Equal(t, exitRunTime, r.code)
		require.Contains(t, r.stderr, says)
	}
	require.Contains(t, run(t, nil, "topics", "--server=http://127.0.0.1:1").stderr, "--server")
}
