package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/config/certtest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestSessionsToEnd(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		all             int
		window, elapsed time.Duration
		want            int
	}{
		{0, 10 * s, 0, 0},
		{5, 10 * s, 0, 5},
		{100, 10 * s, 0, 10},
		{100, 10 * s, 50 * ms, 60},
		{100, 10 * s, 90 * ms, 100},
		{3000, 10 * s, 990 * ms, 1000},
		{3000, time.Hour, 990 * ms, 1000},
		{30_000, 10 * s, 990 * ms, 4000}, // within 7.5 s
		{30_000, 10 * s, 7490 * ms, 30_000},
		{1_000_000, 10 * s, 7490 * ms, 1_000_000},
		{1_000_000, 0, 0, 1_000_000},
		{1_000_000, ms, 0, 1_000_000},
	} {
		require.Equal(t, tt.want, sessionsToEnd(tt.all, tt.window, tt.elapsed), "%+v", tt)
	}
}

// A topic without messages exists only while it has subscribers. In a drain they leave
// one after the other, and they expect the topic after the restart.
func TestNoTopicIsForgottenWhileItsSubscribersLeave(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := start(t, func(c *config.Config) {
		keptIn(dir)(c)
		c.DrainWindow, c.Broker.HistoryAge = 4*time.Second, time.Millisecond
	})
	const quiet, others = 40, 1500
	for i := range quiet + others {
		topic := "loud"
		if i < quiet {
			topic = fmt.Sprint("quiet.", i)
		}
		_, _, err := d.sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: topic}}, Ack: true}, time.Now())
		require.NoError(t, err)
	}
	require.NoError(t, d.wait())
	state, err := os.ReadFile(filepath.Join(dir, filesIn(t, dir)[0]))
	require.NoError(t, err)
	require.Equal(t, quiet, strings.Count(string(state), "quiet."))
}

// Clients keep polling while a drain ends other sessions. They use net/http and the lane,
// on open connections and on new ones. The daemon refuses new sessions and messages.
func TestADrainIsSpreadAndServesTheRest(t *testing.T) {
	t.Parallel()
	d := start(t, func(c *config.Config) {
		c.DrainWindow = 20 * time.Second
		c.Transport.PollTimeout = 50 * time.Millisecond
	})
	const all, clients = 3000, 10
	for range all - clients {
		_, _, err := d.sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}, Ack: true}, time.Now())
		require.NoError(t, err)
	}
	stays := make(chan stay, clients)
	for i := range clients {
		id := d.open(`"a"`).Session
		go func() { stays <- d.stayPolling(id, i%2 == 0) }()
	}
	require.Zero(t, d.metric("pubsubd_draining"))
	begun := time.Now()
	d.stop()
	require.Eventually(t, func() bool { return d.whyNotReady() == "draining" }, surely, 10*time.Millisecond)

	d.wantMetric("pubsubd_draining", 1)
	for _, path := range []string{"/v1/sessions", "/v1/topics/a/messages"} {
		resp, err := http.Post("http://"+d.PublicAddr()+path, "application/json", strings.NewReader("{}"))
		require.NoError(t, err, "somebody listens")
		resp.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.True(t, resp.Close)
	}
	left := float64(all)
	require.Eventually(t, func() bool {
		left = d.metric("pubsubd_sessions")
		return left < all
	}, surely, 10*time.Millisecond)
	require.Positive(t, left, "some at a time")

	require.NoError(t, d.wait())
	const lasts = time.Duration(all) * time.Second / leaveRate
	require.Greater(t, time.Since(begun), lasts-leaveEvery)
	longest, told := 0, 0
	for range clients {
		s := <-stays
		longest = max(longest, s.polls)
		if s.status == http.StatusServiceUnavailable {
			told++
			require.Contains(t, s.body, `"positions":["a@`)
			continue
		}
		require.Zero(t, s.status, "%s", s.body)
		require.Greater(t, s.ended.Sub(begun), lasts-leaveEvery, "but for who is between two polls at the very end, all are told")
	}
	require.Positive(t, told)
	require.Greater(t, longest, 3, "polls are renewed until the session's turn comes")
	require.GreaterOrEqual(t, d.logged.FilterMessage("draining").Len(), 2, "its begin, and once a second")
	require.Empty(t, d.logged.FilterMessageSnippet("cutting off").All())
}

// A stay is the result of polling until an answer is not frames.
type stay struct {
	polls, status int // status 0: no answer came
	body          string
	ended         time.Time
}

// stayPolling polls a session repeatedly, on one connection or on a new one each time.
func (d *running) stayPolling(session string, keep bool) (s stay) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: !keep}}
	defer client.CloseIdleConnections()
	for {
		req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+d.PublicAddr()+"/v1/sessions/"+session+"/poll?ack=0", nil)
		resp, err := client.Do(req)
		if err != nil {
			s.status, s.body, s.ended = 0, err.Error(), time.Now()
			return s
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		s.polls, s.status, s.body = s.polls+1, resp.StatusCode, string(body)
		if s.status != http.StatusOK {
			return s
		}
	}
}

// An operator reloads a longer or a shorter window while clients leave. The drain keeps
// its first window: the service manager knows that one and waits no longer.
func TestAReloadDoesNotChangeARunningDrain(t *testing.T) {
	for _, tt := range []struct {
		sessions                      int
		window, reloaded, least, most time.Duration
	}{
		{sessions: 12_000, window: 2 * time.Second, reloaded: time.Hour, least: time.Second, most: 10 * time.Second},
		{sessions: 3000, window: aMinute, reloaded: 0, least: 2 * time.Second, most: aMinute},
	} {
		d := start(t, func(c *config.Config) { c.DrainWindow = tt.window })
		for range tt.sessions {
			_, _, err := d.sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}, Ack: true}, time.Now())
			require.NoError(t, err)
		}
		begun := time.Now()
		d.stop()
		require.Eventually(t, func() bool { return d.sessions.Draining() != nil }, surely, 10*time.Millisecond)
		d.Reload(func() (config.Config, error) {
			cfg := d.Config()
			cfg.DrainWindow = tt.reloaded
			return cfg, nil
		})
		d.wantLogged("setting changed")
		require.NoError(t, d.wait())
		require.Greater(t, time.Since(begun), tt.least, "%+v", tt)
		require.Less(t, time.Since(begun), tt.most, "%+v", tt)
	}
}

// During drain.delay a load balancer sees that the daemon is not ready. Clients see nothing:
// they connect, open sessions and publish.
func TestDuringTheDelayOnlyReadinessFails(t *testing.T) {
	t.Parallel()
	const delay = 2 * time.Second
	d := start(t, func(c *config.Config) { c.DrainDelay = delay })
	begun := time.Now()
	d.stop()
	require.Eventually(t, func() bool { return d.whyNotReady() == "draining" }, surely, 10*time.Millisecond)
	id := d.open(`"a"`).Session
	resp, err := http.Post("http://"+d.PublicAddr()+"/v1/topics/b/messages", "application/json", strings.NewReader("1"))
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	s := d.stayPolling(id, true)
	require.Equal(t, http.StatusServiceUnavailable, s.status, s.body)
	require.Contains(t, s.body, `"draining"`)
	require.GreaterOrEqual(t, time.Since(begun), delay)
	require.NoError(t, d.wait())
}

func TestADrainWithoutAWindowEndsAtOnce(t *testing.T) {
	t.Parallel()
	d := start(t, func(c *config.Config) { c.DrainWindow = 0 })
	for range 20_000 {
		_, _, err := d.sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}, Ack: true}, time.Now())
		require.NoError(t, err)
	}
	begun := time.Now()
	require.NoError(t, d.wait())
	require.Less(t, time.Since(begun), 15*time.Second, "a thousand a second would take 20 s")
}

// The daemon delays refusals to a client that retries too often. While a body is unread,
// net/http does not notice that the connection was cut off. The drain must not last as
// long as the delay.
func TestDelayedRefusalsDoNotOutlastTheDrain(t *testing.T) {
	for _, lane := range []string{"off", "handoff"} {
		d := startLane(t, lane, func(c *config.Config) {
			c.Limit.Wait, c.DrainWindow = 20*time.Second, 10*time.Second
			c.Limit.Rates[limit.Publishes][limit.Address] = limit.Rate{PerSecond: 1.0 / 3600, Burst: 1}
		})
		const publish = "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n1"
		var held []net.Conn
		for range 30 { // one is published, and some are refused at once
			held = append(held, d.say(publish))
		}
		require.Eventually(t, func() bool {
			return d.metric(`pubsubd_limited_total{limit="rates.publishes.address"}`) == 29
		}, surely, 10*time.Millisecond)
		begun := time.Now()
		require.NoError(t, d.wait())
		require.Less(t, time.Since(begun), 15*time.Second, lane)
		told := map[int]int{}
		for _, c := range held {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err, lane)
			told[resp.StatusCode]++
			resp.Body.Close()
		}
		require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusTooManyRequests: 29}, told, lane)
	}
}

// Browsers and scanners open connections on which they send nothing. They do not delay a
// stop: http.Server.Shutdown alone waits five seconds for a first request.
func TestSilentConnectionsDoNotDelayAStop(t *testing.T) {
	d := start(t, func(c *config.Config) { c.DrainWindow = surely })
	silent := d.knock()
	operator, err := net.Dial("tcp", d.AdminAddr())
	require.NoError(t, err)
	defer operator.Close()
	d.wantMetric(`pubsubd_in_use{limit="connections"}`, 1)
	begun := time.Now()
	require.NoError(t, d.wait())
	require.Less(t, time.Since(begun), 4*time.Second)
	require.Empty(t, d.logged.FilterMessageSnippet("cutting off").All())
	wantLateAnswer(t, silent, wire.CodeDraining)
}

// wantLateAnswer writes a request on a connection that the daemon has ended, and wants 503.
func wantLateAnswer(t *testing.T, ended net.Conn, code wire.Code) {
	t.Helper()
	_, err := io.WriteString(ended, "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(ended), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	var p wire.Problem
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&p))
	require.Equal(t, code, p.Code)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
}

// A browser keeps a connection of HTTP/2 without a request. Only the head of a first request is
// worth a wait.
func TestIdleConnectionsOfHTTP2DoNotDelayAStop(t *testing.T) {
	t.Parallel()
	d := start(t, func(c *config.Config) {
		cleartext(c)
		c.DrainWindow = surely
	})
	idle := d.dialHTTP2()
	require.NotEmpty(t, idle.next(frameSettings))
	require.Empty(t, idle.next(frameSettings), "the daemon has read the preface")
	begun := time.Now()
	require.NoError(t, d.wait())
	require.Less(t, time.Since(begun), 4*time.Second)
	idle.next(frameGoAway)
}

// A client on a bad line has sent half of the head of its first request when the daemon is told
// to stop. The daemon answers when it has the rest.
func TestAStopAnswersAFirstRequestThatArrivesSlowly(t *testing.T) {
	t.Parallel()
	pair := certtest.New(t)
	patient := func(c *config.Config) { c.DrainWindow = surely }
	for name, dial := range map[string]func(t *testing.T) (*running, net.Conn){
		"plain": func(t *testing.T) (*running, net.Conn) {
			d := start(t, patient)
			return d, d.knock()
		},
		"TLS": func(t *testing.T) (*running, net.Conn) {
			d := start(t, func(c *config.Config) {
				patient(c)
				c.TLS = config.TLS{Cert: pair.Cert, Key: pair.Key}
			})
			return d, tls.Client(d.knock(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the certificate is not the subject
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, client := dial(t)
			_, err := io.WriteString(client, "GET /v1/topics HTTP/1.1\r\nHo")
			require.NoError(t, err)
			d.stop()
			require.Eventually(t, func() bool {
				other, err := net.Dial("tcp", d.PublicAddr())
				if err == nil {
					_ = other.Close()
				}
				return errors.Is(err, syscall.ECONNREFUSED)
			}, surely, 10*time.Millisecond, "the listener is closed")
			time.Sleep(3 * silentGrace) // the line is bad for longer than the daemon waits for a first byte
			_, err = io.WriteString(client, "st: h\r\n\r\n")
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(client), nil)
			require.NoError(t, err)
			resp.Body.Close()
			require.NoError(t, d.wait())
			require.Empty(t, d.logged.FilterMessageSnippet("cutting off").All())
		})
	}
}
