package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
)

func TestWhatNamesADaemon(t *testing.T) {
	for _, c := range []struct {
		name, env, listens string
		args               []string
		is                 string
	}{
		{"nothing", "", "", nil, "http://127.0.0.1:8081"},
		{"where it listens", "", "127.0.0.1:1", nil, "http://127.0.0.1:1"},
		{"for commands", "https://h/x", "127.0.0.1:1", nil, "https://h/x"},
		{"the flag", "http://h", "127.0.0.1:1", []string{"--admin=http://flag"}, "http://flag"},
		{"the flag with the default", "http://h", "127.0.0.1:1", []string{"--admin=http://127.0.0.1:8081"}, "http://127.0.0.1:8081"},
		{"every interface", "", ":1", nil, "http://127.0.0.1:1"},
		{"every interface of IPv4", "", "0.0.0.0:1", nil, "http://127.0.0.1:1"},
		{"every interface of IPv6", "", "[::]:1", nil, "http://127.0.0.1:1"},
		{"one of IPv6", "", "[::1]:1", nil, "http://[::1]:1"},
		{"a name", "", "localhost:1", nil, "http://localhost:1"},
		{"where it listens, a Unix socket", "", "unix:/run/a", nil, "http://localhost"},
		{"no scheme", "", "", []string{"--admin=127.0.0.1:21080"}, "http://127.0.0.1:21080"},
		{"no scheme, a name and a path", "", "", []string{"--admin=localhost:1/x"}, "http://localhost:1/x"},
		{"no scheme, IPv6", "[::1]:1", "", nil, "http://[::1]:1"},
		{"for commands, a Unix socket", "unix:/run/a", "127.0.0.1:1", nil, "http://localhost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(adminEnv, c.env)
			t.Setenv(listenAdminEnv, c.listens)
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			admin := bindAdmin(f)
			require.NoError(t, f.Parse(c.args))
			u, err := admin.url()
			require.NoError(t, err)
			require.Equal(t, c.is, u.String())
		})
	}
}

// The listener for clients may speak TLS, by files or by ACME.
func TestTheGuessHasTheSchemeOfTheListener(t *testing.T) {
	for _, c := range []struct{ name, listens, cert, domains, is string }{
		{"no TLS", ":1", "", "", "http://127.0.0.1:1"},
		{"files", ":1", "cert.pem", "", "https://127.0.0.1:1"},
		{"ACME", ":443", "", "app.example, live.example", "https://app.example:443"},
		{"ACME at one address", "10.0.0.5:8443", "", "app.example", "https://app.example:8443"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(serverEnv, "")
			t.Setenv(listenPublicEnv, c.listens)
			t.Setenv(serveCertEnv, c.cert)
			t.Setenv(serveDomainsEnv, c.domains)
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			u, err := bindServer(f).url()
			require.NoError(t, err)
			require.Equal(t, c.is, u.String())
			t.Setenv(listenAdminEnv, c.listens)
			u, err = bindAdmin(pflag.NewFlagSet("", pflag.ContinueOnError)).url()
			require.NoError(t, err)
			require.Equal(t, "http", u.Scheme, "the admin listener has no TLS")
		})
	}
}

// PUBSUBD_ is the prefix of all variables, including those of the commands besides serve. The commands
// still read the older prefix, PUBSUB_.
func TestServeAndCommandsShareAnEnvironment(t *testing.T) {
	s := serveProcess(t)
	for _, prefix := range []string{"PUBSUBD_", "PUBSUB_"} {
		env := []string{prefix + "SERVER=" + s.public, prefix + "ADMIN=" + s.admin}
		require.Zero(t, run(t, env, "publish", "a", "1").code)
		require.Equal(t, "ok\n", run(t, env, "health", "--timeout=1m").stdout)
		r := run(t, []string{prefix + "SERVER=nowhere at all"}, "topics")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, prefix+"SERVER is")
	}
	env := []string{"PUBSUBD_SERVER=" + s.public, "PUBSUB_SERVER=http://127.0.0.1:1"}
	require.Zero(t, run(t, env, "topics").code, "the newer prefix counts first")
	for _, name := range config.CommandVariables() {
		r := run(t, []string{name + "=x"}, "config", "check")
		require.Zero(t, r.code, r.stderr)
	}
}

// In a container, say: serve and the commands beside it have one environment.
func TestCommandsFindTheDaemonByItsEnvironment(t *testing.T) {
	s := serveProcess(t)
	env := []string{listenPublicEnv + "=:" + port(t, s.public), listenAdminEnv + "=0.0.0.0:" + port(t, s.admin)}
	require.Equal(t, "ok\n", run(t, env, "health", "--timeout=1m").stdout)
	require.Zero(t, run(t, env, "publish", "a", "1").code)
	require.Contains(t, run(t, env, "topics").stdout, "a")

	r := run(t, []string{listenAdminEnv + "=nowhere at all"}, "health")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, listenAdminEnv)
}

func port(t *testing.T, base string) string {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(u.Host)
	require.NoError(t, err)
	return port
}

func TestAnAddressNeedsNoScheme(t *testing.T) {
	s := serveProcess(t)
	require.Zero(t, run(t, nil, "publish", "a", "1", "--server", strings.TrimPrefix(s.public, "http://")).code)
	require.Zero(t, run(t, []string{adminEnv + "=" + strings.TrimPrefix(s.admin, "http://")}, "sessions").code)
	r := run(t, nil, "topics", "--server", "127.0.0.1:1")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "is the daemon running at 127.0.0.1:1? --server or PUBSUBD_SERVER sets another address")
	for _, typed := range []string{"here", "app.example", "ftp://h:1", "http//h", "unix:", ":8080", "h:port", "h:1?x", "https://:1"} {
		r := run(t, nil, "topics", "--server", typed)
		require.Equal(t, exitUsage, r.code, typed)
		require.Contains(t, r.stderr, fmt.Sprintf("--server is %q: want a URL such as http://127.0.0.1:8080, host:port, or unix:/path", typed))
	}
}

// A load test takes the same addresses as the other commands.
func TestALoadTestsAddressNeedsNoScheme(t *testing.T) {
	s := serveProcess(t)
	public, admin := strings.TrimPrefix(s.public, "http://"), strings.TrimPrefix(s.admin, "http://")
	r := run(t, nil, "loadtest", "broadcast", "--clients=5", "--period=300ms", "--bursts=2", "--settle=0s", "--json=-", "--target", public, "--admin", admin)
	result := wantCarried(t, r, r.stdout)
	require.Equal(t, public, result.Parameters.Target, "as it was typed")
	require.Positive(t, result.Server.ResidentEndBytes, "the admin listener was read")
}

func TestCommandsReachAUnixSocket(t *testing.T) {
	socket := unixPrefix + filepath.Join(t.TempDir(), "admin.sock")
	serveProcess(t, "--listen-admin", socket)
	require.Equal(t, "ok\n", run(t, nil, "health", "--timeout=1m", "--admin", socket).stdout)
	require.Equal(t, "ok\n", run(t, []string{listenAdminEnv + "=" + socket}, "health", "--timeout=1m").stdout)
	require.Contains(t, run(t, []string{adminEnv + "=" + socket}, "sessions").stdout, "0 of 0 sessions")
	r := run(t, nil, "health", "--admin", socket+".gone")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "--admin")
}

func TestClientsReachAUnixSocket(t *testing.T) {
	socket := unixPrefix + filepath.Join(t.TempDir(), "public.sock")
	s := serveProcess(t, append(quick, "--listen-public", socket, "--listen-tcp=127.0.0.1:0")...)
	require.Zero(t, run(t, []string{listenPublicEnv + "=" + socket}, "publish", "a", `"first"`).code)
	require.Zero(t, run(t, []string{serverEnv + "=" + socket}, "publish", "a", `"second"`).code)
	require.Contains(t, run(t, nil, "topics", "--server", socket).stdout, "\na ")
	env := []string{listenTCPEnv + "=" + s.tcp, authorityEnv + "=" + certtest.New(t).Cert} // who is trusted has no effect without TLS
	for _, transport := range transportNames {
		r := run(t, env, "subscribe", "a@oldest", "--count=2", "--server", socket, "--transport", transport)
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `(?s)"first".*"second"`, r.stdout)
		require.Contains(t, r.stderr, "subscribed at "+socket+" over "+strings.Replace(transport, "auto", "websocket", 1)+",")
	}
	found, _ := diagnose(t, append(patient, "--url", socket, "--origin=http://localhost")...)
	wantStatus(t, found, isOK, "url", "stream", "websocket", "poll", "origin")
	require.Equal(t, "a pubsubd answers at "+socket, found["url"].Detail)

	r := run(t, nil, "topics", "--server", socket+".gone")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "is the daemon running at "+socket+".gone? --server")
	refused := &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
	err := (&address{text: socket, flag: &pflag.Flag{Changed: true}, authority: bindAuthority(pflag.NewFlagSet("", pflag.ContinueOnError))}).unreached(refused)
	require.ErrorContains(t, err, "permission denied: run the command as a user who may connect to the socket")
}
