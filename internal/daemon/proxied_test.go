package daemon

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proxyKind is a proxy for which deploy has an example. Tests use the example as it is
// shipped, except for addresses, ports and files.
type proxyKind struct {
	name, debian string
	example      string
	around       string // the whole configuration, in which EXAMPLE stands for the example
	arguments    []string

	// swaps returns texts of the example, each followed by its replacement: for the
	// address of the proxy and of the first daemon. second does so for the second daemon.
	swaps     func(at address, first address) []string
	second    func(second address) []string
	samePorts bool // both daemons must use the same ports, on different hosts

	// list adds an origin to those whose pages may read the proxy's own answer to an
	// EventSource. site makes the proxy forward all paths but /v1/ to a web server.
	list func(origin string) []string
	site func(server string) []string

	bound []string // replaces the bound of an address's connections by 5; empty: the proxy has none

	logs string // how it logs a session's poll; empty if it logs no requests

	// change changes the example first, and prefix then stands before the paths of the
	// protocol; unset in proxyKinds.
	change func(example string) string
	prefix string
}

// An address is where a daemon or a proxy listens. A proxy has no admin address.
type address struct{ public, admin string }

func (d *running) address() address { return address{d.PublicAddr(), d.AdminAddr()} }

func port(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return port
}

var proxyKinds = []proxyKind{
	{
		name: "nginx", debian: "nginx-light", example: "nginx/pubsubd.conf",
		around:    nginxAround,
		arguments: []string{"-e", "DIR/error.log", "-p", "DIR", "-c", "DIR/config"},
		logs:      "GET /v1/sessions/-/poll 200",
		bound:     []string{"limit_conn pubsubd_addresses 1000;", "limit_conn pubsubd_addresses 5;"},
		swaps: func(at, first address) []string {
			return []string{"listen 80;", "listen " + at.public + ";", "server 127.0.0.1:8080;", "server " + first.public + ";", "/var/log/nginx", "DIR"}
		},
		second: func(second address) []string {
			return []string{"# server 127.0.0.1:8090 backup;", "server " + second.public + " backup;"}
		},
		list: func(origin string) []string {
			return []string{"# https://app.example $http_origin;", origin + " $http_origin;"}
		},
		site: func(server string) []string { return []string{"return 404;", "proxy_pass http://" + server + ";"} },
	},
	{
		name: "haproxy", debian: "haproxy", example: "haproxy/haproxy.cfg",
		around:    "EXAMPLE",
		arguments: []string{"-db", "-f", "DIR/config"},
		logs:      "GET /v1/sessions/-/poll 200",
		bound:     []string{"sc0_conn_cur gt 1000", "sc0_conn_cur gt 5"},
		swaps: func(at, first address) []string {
			return []string{"bind :80\n", "bind " + at.public + "\n", "server first 127.0.0.1:8080 port 8081", "server first " + first.public + " port " + port(first.admin)}
		},
		second: func(second address) []string {
			return []string{"# server second 127.0.0.1:8090 port 8091 backup", "server second " + second.public + " port " + port(second.admin) + " backup"}
		},
		list: func(origin string) []string {
			return []string{"# http-request set-var(txn.page)", "http-request set-var(txn.page)", "-m str https://app.example }", "-m str https://www.example " + origin + " }",
				"# http-after-response", "http-after-response"}
		},
		site: func(server string) []string {
			return []string{`http-request return status 404 content-type text/plain string "not found" unless`, "use_backend site unless",
				"default_backend pubsubd\n", "default_backend pubsubd\n\nbackend site\n\tserver site " + server + "\n"}
		},
	},
	{
		name: "caddy", debian: "caddy", example: "caddy/Caddyfile",
		around:    "EXAMPLE",
		arguments: []string{"run", "--adapter", "caddyfile", "--config", "DIR/config"},
		swaps: func(at, first address) []string {
			return []string{"\n{$SITE::80} {\n", "\n:" + port(at.public) + " {\n\tbind 127.0.0.1\n", "{$UPSTREAM:127.0.0.1:8080}", first.public, "health_port 8081", "health_port " + port(first.admin)}
		},
		second: func(second address) []string {
			return []string{" {\n\t\t\t# Host is passed", " " + second.public + " {\n\t\t\t# Host is passed"}
		},
		list: func(origin string) []string {
			return []string{"# @listed {", "@listed {", "# \theader Origin https://app.example\n", "header Origin https://www.example\n", "# \theader Origin https://www.app.example\n", "header Origin " + origin + "\n",
				"# }\n", "}\n", "# header @listed", "header @listed"}
		},
		site:      func(server string) []string { return []string{"respond 404", "reverse_proxy " + server} },
		samePorts: true,
	},
}

const nginxAround = `
daemon off;
worker_processes 1;
pid DIR/pid;
events { worker_connections 256; }
http {
	client_body_temp_path DIR/body;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
EXAMPLE
}
`

// find returns the proxy's path. If the proxy is not installed, find skips the test, or
// fails it in CI.
func (k proxyKind) find(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(dir + k.name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed, and CI must have it: apt-get install %s", k.name, k.debian)
	}
	t.Skipf("%s is not installed: apt-get install %s", k.name, k.debian)
	return ""
}

// exchanged replaces the first text of each pair of swaps by the second. The first must
// occur in text.
func exchanged(t *testing.T, text string, swaps []string) string {
	t.Helper()
	for i := 0; i < len(swaps); i += 2 {
		require.Contains(t, text, swaps[i], "the example changed: change the test")
		text = strings.ReplaceAll(text, swaps[i], swaps[i+1])
	}
	return text
}

// config returns the configuration of a proxy at this address, in front of the daemons.
func (k proxyKind) config(t *testing.T, at address, daemons []address, others []string) string {
	t.Helper()
	example, err := os.ReadFile(filepath.Join("../../deploy", k.example))
	require.NoError(t, err)
	text := string(example)
	if k.change != nil {
		text = k.change(text)
	}
	text = exchanged(t, text, others)
	if len(daemons) > 1 {
		text = exchanged(t, text, k.second(daemons[1]))
	}
	text = exchanged(t, text, k.swaps(at, daemons[0]))
	return strings.Replace(k.around, "EXAMPLE", text, 1)
}

// A proxied is a proxy as its clients see it.
type proxied struct {
	*testing.T
	url    string
	client *http.Client
	output *output
}

// An output is what a process prints and writes into its log files.
type output struct {
	dir string

	mu   sync.Mutex
	said strings.Builder // guarded by mu
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.said.String()
	logs, _ := filepath.Glob(filepath.Join(o.dir, "*.log"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		all += string(text)
	}
	return all
}

// asShipped adds no replacements to those of the proxyKind.
var asShipped []string

// startProxy starts a proxy in front of daemons. The second daemon is the backup of the
// first. others are further replacements in the example.
func startProxy(t *testing.T, kind proxyKind, others []string, daemons ...*running) *proxied {
	t.Helper()
	var addresses []address
	for _, d := range daemons {
		addresses = append(addresses, d.address())
	}
	return startProxyTo(t, kind, others, addresses...)
}

func startProxyTo(t *testing.T, kind proxyKind, others []string, daemons ...address) *proxied {
	t.Helper()
	binary := kind.find(t)
	dir, err := os.MkdirTemp("", kind.name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755)) // nginx started by root runs as another user
	at := address{public: freePort(t)}
	inDir := strings.NewReplacer("DIR", dir)
	text := inDir.Replace(kind.config(t, at, daemons, others))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), []byte(text), 0o644))
	arguments := strings.Split(inDir.Replace(strings.Join(kind.arguments, "\n")), "\n")
	said := &output{dir: dir}
	runProxy(t, said, binary, arguments)
	p := &proxied{T: t, url: "http://" + at.public + kind.prefix, client: newClient(t), output: said}
	p.waitUp()
	return p
}

// freePort returns an address on which nobody listens. Its port is below the ephemeral
// ports, so that no other listener or client gets it meanwhile.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// proxyFiles is how many open files a proxy may have: as many as in a login shell. The examples
// must start with it.
const proxyFiles = 1024

// runProxy runs a proxy with proxyFiles until the test ends. If the test fails, it logs the
// proxy's output.
func runProxy(t *testing.T, said *output, binary string, arguments []string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	limited := append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, proxyFiles), binary}, arguments...)
	command := exec.CommandContext(ctx, "sh", limited...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // the proxy then ends its workers
	command.WaitDelay = surely
	command.Env = append(os.Environ(), "XDG_CONFIG_HOME="+said.dir, "XDG_DATA_HOME="+said.dir)
	command.Stdout, command.Stderr = said, said
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		stop()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the proxy said %s", said)
		}
	})
}

// newClient returns a client with connections of its own.
func newClient(t *testing.T) *http.Client {
	t.Helper()
	network := &http.Transport{}
	t.Cleanup(network.CloseIdleConnections)
	return &http.Client{Transport: network, Timeout: aMinute}
}

// waitUp waits until the proxy listens and has found the daemon healthy.
func (p *proxied) waitUp() {
	p.Helper()
	require.Eventually(p, func() bool {
		resp, err := p.client.Get(p.url + "/v1/topics")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, surely, 10*time.Millisecond)
}

// do sends a request and returns its whole answer.
func (p *proxied) do(client *http.Client, method, path, body string) (int, string) {
	p.Helper()
	req, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	require.NoError(p, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	require.NoError(p, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(p, err)
	return resp.StatusCode, string(text)
}

func (p *proxied) get(path string) (int, string) {
	p.Helper()
	return p.do(p.client, http.MethodGet, path, "")
}

// post posts a body that the daemon must accept.
func (p *proxied) post(path, body string) string {
	p.Helper()
	status, text := p.do(p.client, http.MethodPost, path, body)
	require.Less(p, status, 300, text)
	return text
}
