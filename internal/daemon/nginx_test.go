package daemon

import (
	"context"
	"fmt"
	"io"
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

	"github.com/pubsubd/pubsubd/internal/config"
)

// crowd is how many subscribers share connections, each with a topic of its own,
// and rounds how many messages each gets.
const (
	crowd  = 20
	rounds = 10
)

// member is one of the crowd: its topic and session, and what it has.
type member struct {
	topic, session string
	frames         []string
}

func (d *running) gatherCrowd() []*member {
	d.Helper()
	members := make([]*member, crowd)
	for i := range members {
		topic := fmt.Sprintf("own.t%d", i)
		members[i] = &member{topic: topic, session: d.open(`"` + topic + `"`).Session}
	}
	return members
}

func (m *member) pollTarget() string {
	return fmt.Sprintf("/v1/sessions/%s/poll?ack=%d", m.session, len(m.frames))
}

func (m *member) take(body string) {
	for line := range strings.Lines(body) {
		m.frames = append(m.frames, line)
	}
}

// payload is what member m's topic gets in a round: its name is in it, so that a
// frame that went astray is seen.
func (m *member) payload(round int) string { return fmt.Sprintf(`"%s #%d"`, m.topic, round) }

// wantOwnFrames checks that a member has each of its messages once, in order, and
// nothing else.
func (m *member) wantOwnFrames(t *testing.T, n int) {
	t.Helper()
	require.Len(t, m.frames, n, m.topic)
	for i, frame := range m.frames {
		require.Regexp(t, fmt.Sprintf(`^{"position":"%s@\w+:%d","time":\d+,"data":%s}\n$`, m.topic, i+1, m.payload(i)), frame)
	}
}

// Behind nginx, many clients share few connections to the daemon: at most one idle
// one is kept, and whoever comes next has it. Everyone polls and publishes through
// it, and gets exactly their own.
func TestBehindNginxEveryoneGetsTheirOwn(t *testing.T) {
	nginx := findNginx(t)
	for _, lane := range append(lanes, "off") {
		t.Run(lane, func(t *testing.T) {
			d := startLane(t, lane, func(c *config.Config) { c.Transport.PollTimeout = time.Second })
			proxy := startNginx(t, nginx, d.PublicAddr())
			members := d.gatherCrowd()
			var all sync.WaitGroup
			for _, m := range members {
				all.Go(func() { m.pollThrough(t, proxy) })
				all.Go(func() { m.publishThrough(t, proxy) })
			}
			all.Wait()
			for _, m := range members {
				m.wantOwnFrames(t, rounds)
			}
			if lane != "off" {
				require.Positive(t, d.calls("poll", "lane"))
				require.Positive(t, d.calls("publish", "lane"))
			}
		})
	}
}

// findNginx returns nginx's path, or skips the test where nobody asked for nginx.
func findNginx(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"nginx", "/usr/sbin/nginx", "/usr/local/sbin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("nginx is not installed, and CI must have it: apt-get install nginx-light")
	}
	t.Skip("nginx is not installed: apt-get install nginx-light")
	return ""
}

const nginxConfig = `
daemon off;
worker_processes 1;
pid DIR/pid;
error_log DIR/errors;
events { worker_connections 256; }
http {
	access_log off;
	client_body_temp_path DIR/body;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
	upstream pubsubd {
		server DAEMON;
		keepalive 1;
	}
	server {
		listen unix:DIR/socket;
		location / {
			proxy_pass http://pubsubd;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_set_header Host $http_host;
			proxy_set_header X-Real-IP $remote_addr;
			proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
			proxy_set_header X-Forwarded-Proto $scheme;
			proxy_next_upstream off;
		}
	}
}
`

// startNginx starts an nginx in front of a daemon and returns a client of it.
func startNginx(t *testing.T, nginx, daemon string) *http.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "nginx") // t.TempDir's name may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755)) // nginx started by root runs as another user
	file := filepath.Join(dir, "conf")
	text := strings.NewReplacer("DIR", dir, "DAEMON", daemon).Replace(nginxConfig)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))

	ctx, stop := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, nginx, "-e", filepath.Join(dir, "errors"), "-p", dir, "-c", file)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // it ends its workers
	command.WaitDelay = 5 * time.Second
	var said strings.Builder
	command.Stdout, command.Stderr = &said, &said
	require.NoError(t, command.Start())

	socket := filepath.Join(dir, "socket")
	network := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() {
		network.CloseIdleConnections()
		stop()
		_ = command.Wait()
		if errors, _ := os.ReadFile(filepath.Join(dir, "errors")); t.Failed() {
			t.Logf("nginx said %s%s", said.String(), errors)
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 5*time.Second, 5*time.Millisecond)
	return &http.Client{Transport: network, Timeout: 20 * time.Second}
}

// pollThrough polls until all is there.
func (m *member) pollThrough(t *testing.T, proxy *http.Client) {
	for polls := 0; len(m.frames) < rounds && polls < 10*rounds; polls++ {
		resp, err := proxy.Get("http://pubsubd.example" + m.pollTarget())
		if err != nil {
			t.Errorf("%s: %v", m.topic, err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: poll: %d %s %v", m.topic, resp.StatusCode, body, err)
			return
		}
		m.take(string(body))
	}
}

func (m *member) publishThrough(t *testing.T, proxy *http.Client) {
	for round := range rounds {
		resp, err := proxy.Post("http://pubsubd.example/v1/topics/"+m.topic+"/messages", "application/json", strings.NewReader(m.payload(round)))
		if err != nil {
			t.Errorf("%s: %v", m.topic, err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := fmt.Sprintf(`{"position":"%s@`, m.topic); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), want) {
			t.Errorf("%s: publish: %d %s %v", m.topic, resp.StatusCode, body, err)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// As behind a proxy, without one: one connection carries the polls and publishes of
// many sessions in turns, also parked, and pipelined behind one another.
func TestOneConnectionCarriesManySessions(t *testing.T) {
	for _, lane := range append(lanes, "off") {
		t.Run(lane, func(t *testing.T) {
			d := startLane(t, lane, func(c *config.Config) { c.Transport.PollTimeout = 5 * time.Second })
			members := d.gatherCrowd()
			shared := dialRaw(t, d.PublicAddr(), 60*time.Second)
			get := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: pubsubd.example\r\n\r\n" }
			publish := func(m *member, round int) string {
				text := m.payload(round)
				return fmt.Sprintf("POST /v1/topics/%s/messages HTTP/1.1\r\nHost: pubsubd.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", m.topic, len(text), text)
			}

			// Each publishes, and polls in another order than they published.
			for i := range members {
				_, body := shared.exchange(publish(members[i], 0))
				require.Contains(t, body, members[i].topic+"@")
			}
			for i := range members {
				m := members[(7*i+3)%crowd]
				_, body := shared.exchange(get(m.pollTarget()))
				m.take(body)
				m.wantOwnFrames(t, 1)
			}
			// One after the other is parked on the connection until its message comes
			// from elsewhere; messages of the others come first and must wait.
			for i, m := range members {
				other := members[(i+1)%crowd]
				if i+1 < crowd {
					d.post("/v1/topics/"+other.topic+"/messages", other.payload(1))
				}
				if i == 0 {
					shared.send(get(m.pollTarget()))
					d.waitParked()
					d.post("/v1/topics/"+m.topic+"/messages", m.payload(1))
				} else {
					shared.send(get(m.pollTarget()))
				}
				_, body := shared.answer()
				m.take(body)
				m.wantOwnFrames(t, 2)
			}
			// All at once behind a parked poll: nothing is answered before it is, and
			// then all in order.
			shared.send(get(members[0].pollTarget()))
			d.waitParked()
			for _, m := range members[1:] {
				shared.send(publish(m, 2))
			}
			for _, m := range members[1:] {
				shared.send(get(m.pollTarget()))
			}
			d.post("/v1/topics/"+members[0].topic+"/messages", members[0].payload(2))
			_, body := shared.answer()
			members[0].take(body)
			for _, m := range members[1:] {
				_, body := shared.answer()
				require.Contains(t, body, m.topic+"@")
			}
			for _, m := range members[1:] {
				_, body := shared.answer()
				m.take(body)
			}
			for _, m := range members {
				m.wantOwnFrames(t, 3)
			}
			if lane == "off" {
				return
			}
			onShared := crowd + (crowd - 1) // publishes on the shared connection
			d.wantCalls("poll", 0, 3*crowd)
			require.GreaterOrEqual(t, d.calls("publish", "lane"), onShared-1, "all but the first, which net/http serves")
		})
	}
}
