package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/mux"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// operatorsKey is the key of operators in tests.
const operatorsKey = "key-of-operators-for-tests"

// adminOf returns the configuration of the admin listener of a daemon built from cfg.
func adminOf(cfg lanetest.Parts, notReady string) AdminConfig {
	return AdminConfig{
		App:     app.New(cfg.Config),
		Metrics: cfg.Metrics.Registry, Sessions: cfg.Sessions, Ready: func() string { return notReady }, LogLevel: zap.NewAtomicLevel(),
		Hosts: cfg.Hosts,
		Key:   func() ([]byte, error) { return []byte(operatorsKey), nil },
	}
}

// askAdmin sends a GET request to the admin listener of a daemon built from cfg.
func askAdmin(cfg lanetest.Parts, path string) *httptest.ResponseRecorder {
	admin := NewAdmin(adminOf(cfg, "draining"))
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

func TestOperatorsSeeSessionsWithoutTheirIDs(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	first, _, err := cfg.Sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}}, time.Now())
	require.NoError(t, err)
	_, _, err = cfg.Sessions.Open(context.Background(), session.Opening{}, time.Now())
	require.NoError(t, err)

	w := askAdmin(cfg, "/sessions")
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.NotContains(t, w.Body.String(), first.ID()[:6])
	var list wire.SessionList
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	require.Equal(t, 2, list.Open)
	require.Len(t, list.Sessions, 2)

	w = askAdmin(cfg, "/sessions?limit=1&sort=idle")
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	require.Equal(t, 2, list.Open)
	require.Len(t, list.Sessions, 1)
}

func TestTheAdminListenerBeginsWithAPageOfLinks(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	page := askAdmin(cfg, "/")
	require.Equal(t, http.StatusOK, page.Code)
	require.Equal(t, "text/html; charset=utf-8", page.Header().Get("Content-Type"))
	links := regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(page.Body.String(), -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		require.NotEqual(t, http.StatusNotFound, askAdmin(cfg, "/"+link[1]).Code, link[1])
	}
	for _, path := range []string{"/x", "/v1/topics", "/sessions/1"} {
		w := askAdmin(cfg, path)
		require.Equal(t, http.StatusNotFound, w.Code, path)
		require.Equal(t, wire.ProblemType, w.Header().Get("Content-Type"))
		require.Contains(t, w.Body.String(), "see GET /")
	}
}

func TestSessionsAreListedInKnownOrdersAndBounds(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	for query, says := range map[string]string{
		"?sort=size":          "lag or idle",
		"?sort=lag&sort=idle": "once",
		"?limit=0":            "must be 1 to 1000",
		"?limit=1001":         "must be 1 to 1000",
		"?limit=%zz":          "percent-encode",
	} {
		w := askAdmin(cfg, "/sessions"+query)
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		require.Equal(t, wire.ProblemType, w.Header().Get("Content-Type"))
		var p wire.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, wire.CodeInvalidRequest, p.Code)
		require.Contains(t, p.Detail+": "+p.Remedy, says)
	}
}

func TestTheAdminListenerClosesAfterARequestThatCouldBeFramedInTwoWays(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	admin := NewAdmin(adminOf(cfg, ""))
	r := httptest.NewRequest("GET", "/livez", nil)
	r.TransferEncoding = []string{"chunked"}
	w := httptest.NewRecorder()
	admin.ServeHTTP(w, r)
	require.Equal(t, "close", w.Header().Get("Connection"))
}

// changes are requests on the admin listener that change something, slow the daemon down, or
// read what not everyone may.
var changes = [][2]string{
	{"PUT", "/loglevel"},
	{"POST", "/revocations"},
	{"GET", "/revocations"},         // it names users
	{"GET", "/debug/pprof/cmdline"}, // it has the flags, some of which are secret
	{"GET", "/debug/pprof/profile?seconds=99"},
	{"GET", "/debug/pprof/trace?seconds=99"},
	{"GET", "/debug/pprof/heap?gc=1"},
	{"GET", "/debug/pprof/goroutine?debug=2"},
	{"GET", "/debug/pprof/"},
}

// reads are those that do not.
var reads = [][2]string{
	{"GET", "/"},
	{"GET", "/openapi.yaml"},
	{"GET", "/metrics"},
	{"GET", "/livez"},
	{"GET", "/readyz"},
	{"GET", "/sessions"},
	{"GET", "/loglevel"},
}

func TestOnlyOperatorsChangeSomething(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	set := adminOf(cfg, "")
	none, broken := set, set
	none.Key = func() ([]byte, error) { return nil, nil }
	broken.Key = func() ([]byte, error) { return nil, errors.New("no such file") }
	const key = "Authorization: Bearer " + operatorsKey
	for _, c := range []struct {
		name    string
		admin   AdminConfig
		unix    bool
		headers []string
		code    wire.Code // empty: they may
	}{
		{"the key", set, false, []string{key}, ""},
		{"the key, another case of the scheme", set, false, []string{"Authorization: bearer  " + operatorsKey}, ""},
		{"no key", set, false, nil, wire.CodeUnauthorized},
		{"half the key", set, false, []string{key[:len(key)-1]}, wire.CodeUnauthorized},
		{"more than the key", set, false, []string{key + "s"}, wire.CodeUnauthorized},
		{"an empty key", set, false, []string{"Authorization: Bearer "}, wire.CodeUnauthorized},
		{"another scheme", set, false, []string{"Authorization: Basic " + operatorsKey}, wire.CodeUnauthorized},
		{"none is set", none, false, nil, wire.CodeForbidden},
		{"none is set, and an empty one is sent", none, false, []string{"Authorization: Bearer "}, wire.CodeForbidden},
		{"the file is broken", broken, false, []string{key}, wire.CodeInternal},
		{"over a Unix socket", none, true, nil, ""},
		{"a page with the key", set, false, []string{key, "Origin: http://127.0.0.1:8081"}, wire.CodeForbidden},
		{"a page over a Unix socket", none, true, []string{"Origin: null"}, wire.CodeForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, change := range withHeads(changes) {
				w := askAs(c.admin, c.unix, change, c.headers...)
				if c.code == "" {
					require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotFound}, w.Code, change)
					continue
				}
				var p wire.Problem
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p), "%v: %s", change, w.Body)
				require.Equal(t, c.code, p.Code, change)
				require.NotEmpty(t, p.Remedy)
				require.Equal(t, c.code == wire.CodeUnauthorized, w.Header().Get("WWW-Authenticate") == "Bearer")
				require.NotContains(t, w.Body.String(), operatorsKey)
			}
		})
	}
	for _, read := range withHeads(reads) {
		require.Equal(t, http.StatusOK, askAs(none, false, read).Code, read)
		require.Equal(t, http.StatusForbidden, askAs(set, false, read, key, "Origin: https://elsewhere.example").Code, read)
	}
}

// withHeads adds a HEAD to each GET. A recorder keeps its body.
func withHeads(requests [][2]string) (all [][2]string) {
	for _, r := range requests {
		if all = append(all, r); r[0] == http.MethodGet {
			all = append(all, [2]string{http.MethodHead, r[1]})
		}
	}
	return all
}

// A path of the admin listener refuses other methods with the ones that it has, and the
// listener says which methods there are.
func TestTheAdminListenerListsItsMethods(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	allow := map[string]string{"/loglevel": "GET, HEAD, PUT", "/revocations": "GET, HEAD, POST"}
	for _, r := range slices.Concat(changes, reads) {
		path, _, _ := strings.Cut(r[1], "?")
		for _, method := range []string{"DELETE", "OPTIONS", "BREW"} {
			w := askAs(adminOf(cfg, ""), false, [2]string{method, r[1]})
			require.Equal(t, http.StatusMethodNotAllowed, w.Code, "%s %s", method, path)
			want := cmp.Or(allow[path], "GET, HEAD")
			require.Equal(t, want, w.Header().Get("Allow"), path)
			require.Equal(t, wire.ProblemType, w.Header().Get("Content-Type"))
			var p wire.Problem
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
			require.Equal(t, wire.CodeMethodNotAllowed, p.Code)
			require.Equal(t, "use "+want, p.Remedy)
		}
	}
	used := map[string]bool{"OPTIONS": true}
	for _, route := range routes(t, adminRouter(adminOf(cfg, ""))) {
		method, _, _ := strings.Cut(route, " ")
		used[method] = true
	}
	w := askAs(adminOf(cfg, ""), false, [2]string{"OPTIONS", "*"})
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Equal(t, strings.Join(slices.Sorted(maps.Keys(used)), ", "), w.Header().Get("Allow"))
	require.Equal(t, http.StatusForbidden, askAs(adminOf(cfg, ""), false, [2]string{"OPTIONS", "*"}, "Origin: null").Code)
}

// Each route of the admin listener is in one of the lists above.
func TestEveryRouteOfTheAdminListenerIsJudged(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	judged := map[string]bool{}
	for _, c := range withHeads(slices.Concat(changes, reads)) {
		path, _, _ := strings.Cut(c[1], "?")
		judged[c[0]+" "+path] = true
	}
	require.NoError(t, adminRouter(adminOf(cfg, "")).Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		require.NoError(t, err)
		for _, method := range methodsOf(route.GetHandler(), path) {
			require.True(t, judged[method+" "+path], "%s %s: does it change something?", method, path)
		}
		return nil
	}))
}

// withRevocations gives the daemon a file for revocations, which its sessions heed.
func withRevocations(t *testing.T, s lanetest.Settings) lanetest.Parts {
	t.Helper()
	s.Revoked = openRevocations(t)
	cfg := lanetest.NewParts(s)
	t.Cleanup(cfg.Broker.Close)
	return cfg
}

// openRevocations makes a file for revocations.
func openRevocations(t *testing.T) *auth.Revocations {
	t.Helper()
	list, err := auth.OpenRevocations(filepath.Join(t.TempDir(), "revocations"), time.Hour, time.Hour, zap.NewNop(), time.Now())
	require.NoError(t, err)
	t.Cleanup(list.Close)
	return list
}

func TestOperatorsRevoke(t *testing.T) {
	cfg := withRevocations(t, lanetest.Settings{})
	open := func(g auth.Grant) *session.Session {
		s, _, err := cfg.Sessions.Open(t.Context(), session.Opening{Grant: &g}, time.Now())
		require.NoError(t, err)
		return s
	}
	hourAgo := time.Now().Add(-time.Hour)
	open(auth.Grant{Subject: "ann", TokenID: "1", Issued: hourAgo})
	open(auth.Grant{Subject: "ann", TokenID: "2", Issued: hourAgo})
	open(auth.Grant{Subject: "bob", TokenID: "3", Issued: hourAgo})
	open(auth.Grant{Subject: "cid", TokenID: "4", Issued: hourAgo})
	ask := func(status int, method, path, body string) string {
		t.Helper()
		w := httptest.NewRecorder()
		NewAdmin(adminOf(cfg, "")).ServeHTTP(w, newRequest(method, path, body, []string{"Authorization: Bearer " + operatorsKey}))
		require.Equal(t, status, w.Code, w.Body)
		return w.Body.String()
	}
	require.JSONEq(t, `{"ended":2}`, ask(200, "POST", "/revocations", `{"subject":"ann"}`))
	require.JSONEq(t, `{"ended":0}`, ask(200, "POST", "/revocations", `{"subject":"ann"}`))
	require.JSONEq(t, `{"ended":1}`, ask(200, "POST", "/revocations", `{"token_id":"3"}`))
	number := cfg.Sessions.List(10, session.ByLag, time.Now()).Sessions[0].Number
	require.JSONEq(t, `{"ended":1}`, ask(200, "POST", "/revocations", fmt.Sprintf(`{"session":%d}`, number)))
	require.Contains(t, ask(404, "POST", "/revocations", fmt.Sprintf(`{"session":%d}`, number)), "pubsubd sessions")
	require.Zero(t, cfg.Sessions.List(10, session.ByLag, time.Now()).Open)

	var list auth.RevocationList
	require.NoError(t, json.Unmarshal([]byte(ask(200, "GET", "/revocations?limit=1", "")), &list))
	require.Equal(t, 2, list.Held)
	require.Len(t, list.Revocations, 1)
	for _, wrong := range []string{"", "{}", "[]", `{"subject":"ann","session":1}`, `{"session":-1}`, `{"session":0}`, `{"user":"ann"}`, `{"subject":"ann"} 1`} {
		require.Contains(t, ask(400, "POST", "/revocations", wrong), "invalid_request", wrong)
	}
	ask(413, "POST", "/revocations", `{"subject":"`+strings.Repeat("x", maxRevokeBytes)+`"}`)
	ask(400, "GET", "/revocations?limit=0", "")
}

// askAs sends a request to an admin listener, perhaps over a Unix socket.
func askAs(admin AdminConfig, unix bool, request [2]string, headers ...string) *httptest.ResponseRecorder {
	var at net.Addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8081}
	if unix {
		at = &net.UnixAddr{Net: "unix", Name: "/run/pubsubd/admin.sock"}
	}
	r := newRequest(request[0], request[1], "", headers)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
	cancel() // profiles end at once
	w := httptest.NewRecorder()
	NewAdmin(admin).ServeHTTP(w, r.WithContext(ctx))
	return w
}

// What takes much CPU is served at a bounded rate.
func TestProfilesAndTheListOfSessionsAreServedRarely(t *testing.T) {
	for _, path := range []string{"/sessions", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap"} {
		synctest.Test(t, func(t *testing.T) {
			cfg := lanetest.NewParts(lanetest.Settings{})
			defer cfg.Broker.Close()
			set := adminOf(cfg, "")
			admin := NewAdmin(set)
			ask := func() int {
				w := httptest.NewRecorder()
				r := httptest.NewRequest("GET", path, nil)
				r.Header.Set("Authorization", "Bearer "+operatorsKey)
				admin.ServeHTTP(w, r)
				if w.Code == http.StatusTooManyRequests {
					require.Equal(t, "1", w.Header().Get("Retry-After"))
				}
				return w.Code
			}
			for range 5 {
				require.Equal(t, http.StatusOK, ask())
			}
			require.Equal(t, http.StatusTooManyRequests, ask())
			time.Sleep(time.Second)
			require.Equal(t, http.StatusOK, ask())
			require.Equal(t, http.StatusTooManyRequests, ask())
		})
	}
}

// A profile is bounded in time, and so in what it holds. The lookup of symbols, whose answer is
// longer than its body, is not served.
func TestProfilesAreBounded(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	key := "Authorization: Bearer " + operatorsKey
	for _, seconds := range []string{"61", "1e9", "-1", "0", "x", "NaN", "%20", ""} {
		for _, profile := range []string{"profile", "trace", "goroutine"} {
			w := askAs(adminOf(cfg, ""), false, [2]string{"GET", "/debug/pprof/" + profile + "?seconds=" + seconds}, key)
			require.Equal(t, http.StatusBadRequest, w.Code, seconds)
			require.Contains(t, w.Body.String(), "above 0 and at most 60")
		}
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"seconds\"\r\n\r\nx\r\n--b--\r\n"
	r := newRequest("GET", "/debug/pprof/goroutine", form, []string{"Content-Type: multipart/form-data; boundary=b", key})
	w := httptest.NewRecorder()
	NewAdmin(adminOf(cfg, "")).ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code, "a form in the body does not count")
	for _, method := range []string{"GET", "POST"} {
		w := askAs(adminOf(cfg, ""), false, [2]string{method, "/debug/pprof/symbol"}, key)
		require.GreaterOrEqual(t, w.Code, http.StatusNotFound, method)
	}
}
