package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config/certtest"
)

// diagnose runs doctor, and returns its findings by check, and its exit code.
func diagnose(t *testing.T, args ...string) (map[string]finding, int) {
	t.Helper()
	r := run(t, []string{"GOMEMLIMIT=704MiB"}, append([]string{"doctor", "--json"}, args...)...)
	require.Empty(t, r.stderr)
	var list struct{ Checks []finding }
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list), r.stdout)
	found := map[string]finding{}
	for _, f := range list.Checks {
		found[f.Check] = f
	}
	require.Len(t, found, len(list.Checks))
	return found, r.code
}

func wantStatus(t *testing.T, found map[string]finding, want status, checks ...string) {
	t.Helper()
	for _, check := range checks {
		require.Equal(t, want, found[check].Status, "%s: %+v", check, found[check])
	}
}

// aProxy stands before a daemon until the test ends. It forwards requests after change, and
// answers after spoil.
func aProxy(t *testing.T, daemon string, change func(*http.Request), spoil func(*http.Response) error) string {
	t.Helper()
	to, err := url.Parse(daemon)
	require.NoError(t, err)
	p := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			if change != nil {
				change(r.Out)
			}
		},
		ModifyResponse: spoil,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return server.URL
}

// quick lets a daemon answer polls, and send heartbeats, after a moment. patient gives a busy
// machine time for the first frame.
var (
	quick   = []string{"--poll-timeout=300ms", "--poll-heartbeat=200ms"}
	patient = []string{"--first-frame=" + patience.String(), "--timeout=2m"}
)

func TestDoctorFindsNothingBehindAGoodProxy(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, append(quick, "--cors-origins=https://app.example")...)
	found, code := diagnose(t, append(patient, "--url", aProxy(t, s.public, nil, nil), "--origin=https://app.example",
		"--listen-public", strings.TrimPrefix(s.public, "http://"), "--listen-admin", strings.TrimPrefix(s.admin, "http://"))...)
	wantStatus(t, found, isOK, "settings", "listen.public", "listen.admin", "url", "date", "stream", "websocket", "poll", "origin")
	require.Contains(t, found["listen.public"].Detail, "a pubsubd listens on")
	require.Contains(t, found["poll"].Detail, "poll.timeout is 300ms")
	require.Zero(t, code, found)
	s.waitForMetric("pubsubd_sessions 0")
}

// Each proxy has one fault, and only the check of that fault fails.
func TestDoctorFindsTheFaultOfAProxy(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, append(quick, "--cors-origins=https://app.example")...)
	isPoll := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/poll") }
	for name, c := range map[string]struct {
		change func(*http.Request)
		spoil  func(*http.Response) error
		args   []string
		fails  string
		says   string
	}{
		"buffers": {spoil: func(r *http.Response) error {
			if r.StatusCode == http.StatusSwitchingProtocols {
				return nil
			}
			text, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(text)))
			return err
		}, args: []string{"--first-frame=1s"}, fails: "stream", says: "proxy_buffering off"},
		"refuses upgrades": {change: func(r *http.Request) { r.Header.Del("Upgrade"); r.Header.Del("Connection") },
			fails: "websocket", says: "Upgrade"},
		"times out": {spoil: func(r *http.Response) error {
			if isPoll(r.Request) && r.Request.URL.Query().Get("mode") == "" {
				r.StatusCode = http.StatusGatewayTimeout
			}
			return nil
		}, fails: "poll", says: "raise the read timeout"},
		"adds CORS headers": {spoil: func(r *http.Response) error {
			r.Header.Add("Access-Control-Allow-Origin", "*")
			return nil
		}, fails: "origin", says: "remove it from the proxy"},
		"drops Origin": {change: func(r *http.Request) { r.Header.Del("Origin") }, fails: "origin", says: "forward Origin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, code := diagnose(t, append(append(patient, "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0",
				"--url", aProxy(t, s.public, c.change, c.spoil), "--origin=https://app.example"), c.args...)...)
			require.Equal(t, exitRunTime, code)
			wantStatus(t, found, isFailure, c.fails)
			require.Contains(t, found[c.fails].Remedy, c.says)
			for check, f := range found {
				if check != c.fails && (check != "websocket" || c.args == nil) { // the first frame may take longer there
					require.NotEqual(t, isFailure, f.Status, f)
				}
			}
		})
	}
}

// A proxy may serve the daemon below a prefix that it removes. doctor and the commands take it.
func TestDoctorAndCommandsTakeAPrefix(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, quick...)
	removes := func(r *http.Request) { r.URL.Path = strings.TrimPrefix(r.URL.Path, "/push") }
	below := aProxy(t, s.public, removes, nil) + "/push"
	found, code := diagnose(t, append(patient, "--url", below)...)
	wantStatus(t, found, isOK, "url", "date", "stream", "websocket", "poll")
	require.Zero(t, code, found)
	r := run(t, nil, "publish", "--server", below, "prices.acme", "41.5")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "prices.acme@")
}

// The daemon shows which path and which Host arrived.
func TestDoctorFindsWhatAProxyLeavesOrChanges(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, quick...)
	forwards := func(host string) string {
		return aProxy(t, s.public, func(r *http.Request) { r.Host = host }, nil)
	}
	for _, c := range []struct{ url, check, detail, remedy string }{
		{aProxy(t, s.public, nil, nil) + "/push", "url", `nothing is served at "/push/v1/openapi.yaml"`, `remove the prefix "/push"`},
		{forwards("push.example:8443"), "url", `arrived with Host "push.example:8443"`, "in the daemon's setting hosts"},
		{forwards("127.0.0.1"), "websocket", `and Host "127.0.0.1"`, "forward Host with its port"},
	} {
		found, code := diagnose(t, append(patient, "--url", c.url)...)
		require.Equal(t, exitRunTime, code)
		wantStatus(t, found, isFailure, c.check)
		require.Contains(t, found[c.check].Detail, c.detail)
		require.Contains(t, found[c.check].Remedy, c.remedy)
		if c.check == "url" {
			require.Len(t, found, 1, "nothing else can be checked")
		}
	}
}

func TestDoctorKnowsWhyAServerCannotBeReached(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	found, code := diagnose(t, "--url", secure.URL)
	require.Equal(t, exitRunTime, code)
	require.Equal(t, "the server's certificate is not trusted: x509: certificate signed by unknown authority", found["url"].Detail)
	require.Contains(t, found["url"].Remedy, "--ca or PUBSUBD_CA")

	untrusted := func(err error) error { return &tls.CertificateVerificationError{Err: err} }
	for remedy, err := range map[string]error{
		"correct the name in the URL": &net.DNSError{Name: "push.exampel", Err: "no such host", IsNotFound: true},
		"start the daemon":            &net.DNSError{Name: "push.example", Err: "timeout", IsTimeout: true},
		"get a certificate":           untrusted(x509.HostnameError{Certificate: new(x509.Certificate), Host: "push.example"}),
		"renew the certificate":       untrusted(x509.CertificateInvalidError{Reason: x509.Expired}),
		"name the file of a private":  untrusted(x509.UnknownAuthorityError{}),
	} {
		f := unreachable(&url.Error{Op: "Get", URL: "https://push.example", Err: err}, "start the daemon")
		require.Equal(t, isFailure, f.Status)
		require.Contains(t, f.Remedy, remedy)
	}
}

// A laptop that checks a URL has no daemon that its own files and memory could fail.
func TestDoctorChecksOnlyTheURLWithoutSettings(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, quick...)
	found, code := diagnose(t, append(patient, "--url", s.public)...)
	require.Zero(t, code, found)
	wantStatus(t, found, isOK, "url", "date", "stream", "websocket", "poll")
	require.Len(t, found, 5)
	found, _ = diagnose(t, append(patient, "--url", s.public, "--history-age=2m")...)
	require.Contains(t, found, "settings")

	r := run(t, []string{serverEnv + "=" + s.public, "PUBSUBD_LISTEN_ADMIN=127.0.0.1:0"}, "doctor", "--listen-public=127.0.0.1:0", "--first-frame="+patience.String())
	require.Regexp(t, `(?m)^ok +url `, r.stdout)
	require.Regexp(t, `(?m)^ok +listen.admin `, r.stdout, "the environment does not ask for the URL alone")
}

func TestDoctorsHelpHasItsOwnFlags(t *testing.T) {
	help := run(t, nil, "doctor", "--help").stdout
	_, flags, found := strings.Cut(help, "\nFlags:\n")
	require.True(t, found)
	own, settings, found := strings.Cut(flags, "\n\n")
	require.True(t, found)
	for _, flag := range []string{"--url", "--origin", "--topic", "--timeout", "--first-frame", "--json", "--token-file", "--ca"} {
		require.Contains(t, own, flag+" ")
	}
	require.Contains(t, settings, "see pubsubd serve --help")
}

func TestDoctorFindsAForbiddenOrigin(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, append(quick, "--cors-origins=https://app.example")...)
	free := append(patient, "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0")
	found, code := diagnose(t, append(free, "--url", s.public, "--origin=https://evil.example")...)
	require.Equal(t, exitRunTime, code)
	wantStatus(t, found, isFailure, "origin", "websocket")
	wantStatus(t, found, isOK, "stream", "poll")
	for _, check := range []string{"origin", "websocket"} {
		require.Contains(t, found[check].Remedy, "add https://evil.example to cors.origins")
	}
	found, _ = diagnose(t, append(free, "--url", s.public, "--origin", s.public)...)
	wantStatus(t, found, isOK, "origin", "websocket")

	// Without --url the setting counts.
	found, code = diagnose(t, append(free, "--cors-origins=https://app.example", "--origin=https://evil.example")...)
	require.Equal(t, exitRunTime, code)
	wantStatus(t, found, isFailure, "origin")
	require.NotContains(t, found, "url")
	found, _ = diagnose(t, append(free, "--cors-origins=https://app.example", "--origin=https://app.example")...)
	wantStatus(t, found, isOK, "origin")
}

// Without the right, a check is incomplete, but the proxy is not at fault.
func TestDoctorNeedsTheRightToSubscribe(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, append(quick, `--auth-anonymous=[{"topics":["public.>"],"allow":["subscribe"]}]`)...)
	free := append(patient, "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--url", s.public)
	found, _ := diagnose(t, free...)
	wantStatus(t, found, isOK, "url", "date")
	wantStatus(t, found, isWarning, "stream", "websocket", "poll")
	require.Contains(t, found["poll"].Remedy, "--token-file")
	found, _ = diagnose(t, append(free, "--topic=public.a")...)
	wantStatus(t, found, isOK, "stream", "websocket", "poll")
}

func TestDoctorSaysThatTheTimeWasTooShort(t *testing.T) {
	t.Parallel()
	s := serveProcess(t)
	found, code := diagnose(t, "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--url", s.public, "--timeout=8s", "--first-frame=2m")
	wantStatus(t, found, isWarning, "stream", "poll")
	require.Contains(t, found["poll"].Remedy, "poll.timeout (25s)")
	require.Contains(t, found["stream"].Remedy, "poll.heartbeat (15s)")
	require.Zero(t, code, found)
}

func TestDoctorOfAServerThatIsNoPubsubd(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for _, at := range []string{other.URL, "http://127.0.0.1:1"} {
		found, code := diagnose(t, "--url", at, "--listen-public", strings.TrimPrefix(other.URL, "http://"), "--listen-admin=127.0.0.1:0")
		require.Equal(t, exitRunTime, code)
		wantStatus(t, found, isFailure, "url", "listen.public")
		wantStatus(t, found, isOK, "listen.admin")
		require.NotContains(t, found, "stream")
	}
}

func TestDoctorKnowsEveryListenerOfAPubsubd(t *testing.T) {
	t.Parallel()
	pair := certtest.New(t)
	socket := "unix:" + filepath.Join(t.TempDir(), "admin.sock")
	s := serveProcess(t, "--tls-cert", pair.Cert, "--tls-key", pair.Key, "--listen-tcp=127.0.0.1:0", "--listen-admin", socket)
	settings := []string{"--tls-cert", pair.Cert, "--tls-key", pair.Key}
	found, code := diagnose(t, append(settings, "--listen-public", strings.TrimPrefix(s.public, "http://"), "--listen-tcp", s.tcp, "--listen-admin", socket)...)
	for _, key := range []string{"listen.public", "listen.tcp", "listen.admin"} {
		wantStatus(t, found, isOK, key)
		require.Contains(t, found[key].Detail, "a pubsubd listens on")
	}
	require.Zero(t, code)

	_ = s.cmd.Process.Kill()
	s.exit()
	found, _ = diagnose(t, append(settings, "--listen-public=127.0.0.1:0", "--listen-admin", socket)...)
	wantStatus(t, found, isOK, "listen.admin")
	require.Contains(t, found["listen.admin"].Detail, "serve replaces it")

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	taken.Close() // whoever connects to a foreign listener waits, which takes long
	found, code = diagnose(t, "--listen-public", taken.Addr().String(), "--listen-admin=unix:/nowhere/admin.sock")
	wantStatus(t, found, isOK, "listen.public")
	wantStatus(t, found, isFailure, "listen.admin")
	require.Equal(t, exitRunTime, code)
}

func TestDoctorCountsOpenFiles(t *testing.T) {
	t.Parallel()
	few := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 400 && exec "$0" doctor --listen-public=127.0.0.1:0 --listen-admin=127.0.0.1:0 "$@"`, binary)
		cmd.Args, cmd.Env = append(cmd.Args, args...), []string{}
		r := runCommand(t, cmd)
		return r.stdout, r.code
	}
	said, code := few("--limits-connections=1000")
	require.Equal(t, exitRunTime, code)
	require.Regexp(t, `(?m)^failure +files +400 open files \(soft limit; hard limit 400\) are enough for 300 connections, but limits.connections is 1000\n +remedy: raise`, said)
	said, code = few()
	require.Zero(t, code)
	require.Regexp(t, `(?m)^warning +files .*\n +remedy: .* limits.connections to 300`, said)
	said, _ = few("--limits-connections=300")
	require.Regexp(t, `(?m)^ok +files `, said)
}

func TestDoctorRefusesWhatServeRefuses(t *testing.T) {
	for _, args := range [][]string{{"--poll-timeout=soon"}, {"--url=push"}, {"now"}, {"--url=http://127.0.0.1:1", "--token-file=/nowhere"}} {
		r := run(t, nil, append([]string{"doctor"}, args...)...)
		require.Equal(t, exitUsage, r.code, "%v", args)
		require.NotEmpty(t, r.stderr)
	}
}

func TestCheckMemory(t *testing.T) {
	const mib, none = 1 << 20, math.MaxInt64
	for _, c := range []struct {
		budget, limit, cgroup int64
		want                  status
		says                  string
	}{
		{0, none, 0, isWarning, "GOMEMLIMIT=1024MiB or more: memory.budget is half of it, and at most 512MiB"},
		{512 * mib, none, 0, isWarning, "GOMEMLIMIT=704MiB or more"},
		{0, none, 1024 * mib, isWarning, "GOMEMLIMIT=819MiB"},
		{512 * mib, none, 600 * mib, isFailure, "limit to 880MiB, or lower memory.budget to 349MiB"},
		{0, 819 * mib, 1024 * mib, isOK, ""},
		{0, 704 * mib, 0, isOK, ""},
		{0, 2048 * mib, 1024 * mib, isFailure, "GOMEMLIMIT=819MiB"},
		{0, 1000 * mib, 1024 * mib, isWarning, "GOMEMLIMIT=819MiB"},
		{512 * mib, 600 * mib, 0, isWarning, "GOMEMLIMIT=704MiB or more, or lower memory.budget to 436MiB"},
		{512 * mib, 704 * mib, 880 * mib, isOK, ""},
	} {
		f := checkMemory(c.budget, c.limit, c.cgroup)
		require.Equal(t, c.want, f.Status, "%+v: %+v", c, f)
		require.Contains(t, f.Remedy, c.says)
	}
}

func TestTheLowestLimitOfTheCgroupsCounts(t *testing.T) {
	tree := func(files ...string) fstest.MapFS {
		fs := fstest.MapFS{}
		for i := 0; i < len(files); i += 2 {
			fs[files[i]] = &fstest.MapFile{Data: []byte(files[i+1] + "\n")}
		}
		return fs
	}
	const two, one = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"
	require.EqualValues(t, 0, cgroupMemory(tree()))
	require.EqualValues(t, 0, cgroupMemory(tree("proc/self/cgroup", "0::/a.slice/b", two+"a.slice/b/memory.max", "max")))
	require.EqualValues(t, 7, cgroupMemory(tree("proc/self/cgroup", "0::/a.slice/b", two+"a.slice/b/memory.max", "9", two+"a.slice/memory.max", "7", two+"c/memory.max", "5")))
	require.EqualValues(t, 9, cgroupMemory(tree("proc/self/cgroup", "0::/", two+"memory.max", "9")))
	require.EqualValues(t, 8, cgroupMemory(tree("proc/self/cgroup", "5:cpu:/a\n4:hugetlb,memory:/a", one+"a/memory.limit_in_bytes", "8", one+"memory.limit_in_bytes", "9223372036854771712")))
	require.EqualValues(t, 0, cgroupMemory(tree("proc/self/cgroup", "4:memory:/", one+"memory.limit_in_bytes", "9223372036854771712")))
}

func TestCheckDate(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for behind, want := range map[time.Duration]status{0: isOK, 2 * time.Second: isOK, 5 * time.Second: isWarning, -5 * time.Second: isWarning, time.Minute: isFailure, -time.Minute: isFailure} {
		f := checkDate(begun.Add(-behind).Format(http.TimeFormat), begun, begun.Add(time.Second))
		require.Equal(t, want, f.Status, "%v: %+v", behind, f)
	}
	require.Contains(t, checkDate(begun.Add(time.Minute).Format(http.TimeFormat), begun, begun).Detail, "1m0.5s behind")
	require.Equal(t, isOK, checkDate("", begun, begun).Status)
}
