package daemon

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// reloadWith reloads the settings in force with a change.
func (d *running) reloadWith(change func(*config.Config)) {
	d.Reload(func() (config.Config, error) {
		c := d.Config()
		change(&c)
		return c, nil
	})
}

// said returns the log entries with this message, as "key: was → is".
func (d *running) said(message, was, is string) []string {
	var lines []string
	for _, e := range d.logged.FilterMessage(message).All() {
		m := e.ContextMap()
		lines = append(lines, fmt.Sprintf("%v: %v → %v", m["key"], m[was], m[is]))
	}
	return lines
}

// Every setting of a poll and a stream changes while they wait. Both get later messages,
// on the connections that they have.
func TestAReloadDoesNotDisturbParkedPolls(t *testing.T) {
	for _, lane := range []string{"handoff", "channel", "off"} {
		t.Run(lane, func(t *testing.T) {
			d := start(t, func(c *config.Config) { c.Lane = lane })
			poll, stream := d.dial("/poll?ack=0"), d.dial("/poll?ack=0&mode=stream")
			require.Contains(t, stream.line(), `{"hello"`)
			d.waitParked(2)

			d.reloadWith(func(c *config.Config) {
				c.Transport.PollTimeout, c.Transport.Heartbeat, c.Transport.WriteTimeout = time.Minute, time.Minute, time.Minute
				c.Transport.AnswerFrames, c.Transport.AnswerBytes = 1, 1
				c.Session.InactivityTimeout, c.Session.Subscriptions, c.Session.MaxSessions = time.Hour, 5, 5
				c.Broker.HistoryMessages, c.Broker.HistoryAge = 3, time.Hour
				c.MessageBytes, c.Log.Level = 100, "debug"
			})
			require.Len(t, d.said("setting changed", "was", "is"), 12)
			d.waitParked(2)
			d.post("/v1/topics/a/messages", `"m1"`)
			require.Contains(t, stream.line(), `"data":"m1"`)
			require.Contains(t, poll.line(), `"data":"m1"`)
			poll.send("/poll?ack=1")
			d.waitParked(2)
			d.post("/v1/topics/a/messages", `"m2"`)
			require.Contains(t, poll.line(), `"data":"m2"`, "on the same connection")
			require.Contains(t, stream.line(), `"data":"m2"`)
		})
	}
}

// A dialled is a connection with its own session, which subscribes to topic a.
type dialled struct {
	*running
	conn    net.Conn
	in      *bufio.Reader
	session string
}

func (d *running) dial(request string) *dialled {
	d.Helper()
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(d, err)
	d.Cleanup(func() { conn.Close() })
	c := &dialled{d, conn, bufio.NewReader(conn), d.open(`"a"`).Session}
	c.send(request)
	return c
}

func (c *dialled) send(request string) {
	fmt.Fprintf(c.conn, "GET /v1/sessions/%s%s HTTP/1.1\r\nHost: h\r\n\r\n", c.session, request)
}

// line returns the next line that is a frame.
func (c *dialled) line() string {
	c.Helper()
	require.NoError(c, c.conn.SetReadDeadline(time.Now().Add(surely)))
	for {
		line, err := c.in.ReadString('\n')
		require.NoError(c, err)
		if strings.HasPrefix(line, "{") {
			return line
		}
	}
}

func TestAReloadLogsEachKey(t *testing.T) {
	d := start(t, func(c *config.Config) { c.Broker.Rules = []broker.Rule{{Name: "old", Pattern: "a.*"}} })
	before := d.Config()
	d.reloadWith(func(c *config.Config) {
		c.Broker.HistoryAge, c.DrainWindow, c.Log.Level = 5*time.Minute, time.Second, "warn"
		c.Broker.Rules = []broker.Rule{{Name: "new", Pattern: "b.*", Slow: broker.Conflate}}
		c.Listen.Public, c.Lane, c.Log.Format = "127.0.0.1:1", "off", "console"
	})
	require.Equal(t, []string{
		"log.level: info → warn", "history.age: 1m0s → 5m0s", "drain.window: 2s → 1s",
		"topics.old.pattern: a.* → ", "topics.new.pattern:  → b.*", "topics.new.slow:  → conflate",
	}, d.said("setting changed", "was", "is"))
	require.Equal(t, []string{
		"listen.public: 127.0.0.1:0 → 127.0.0.1:1", "log.format: json → console", "lane: handoff → off",
	}, d.said("setting needs a restart and stays as it was", "is", "said"))
	now := d.Config()
	require.Equal(t, before.Listen, now.Listen)
	require.Equal(t, before.Lane, now.Lane)
	require.Equal(t, 5*time.Minute, now.Broker.HistoryAge)
	require.Equal(t, "new", now.Broker.Rules[0].Name)

	d.logged.TakeAll()
	d.reloadWith(func(c *config.Config) {})
	require.Empty(t, d.logged.TakeAll(), "nothing is different, and the level is warn")
}

// The log has each invalid setting. Nothing changes, not even by the valid settings
// beside it.
func TestAnInvalidReloadChangesNothing(t *testing.T) {
	d := start(t, nil)
	before := d.Config()
	d.Reload(func() (config.Config, error) {
		c := config.Default()
		c.Log.Level, c.MessageBytes = "debug", 5
		return c, errors.Join(errors.New("pubsubd.yaml:3: one"), errors.New("pubsubd.yaml:4: two"))
	})
	d.reloadWith(func(c *config.Config) { c.Transport.PollTimeout, c.Broker.HistoryBytes = 0, 1 })
	var told []string
	for _, e := range d.logged.FilterMessage("cannot reload").All() {
		require.Equal(t, zapcore.ErrorLevel, e.Level)
		told = append(told, fmt.Sprint(e.ContextMap()["error"]))
	}
	require.Len(t, told, 4)
	require.Equal(t, []string{"pubsubd.yaml:3: one", "pubsubd.yaml:4: two"}, told[:2])
	require.Contains(t, told[2], "poll.timeout")
	require.Contains(t, told[3], "history.bytes")
	require.Equal(t, before, d.Config())
	require.Equal(t, 64<<10, d.limitsTold().MessageBytes)
	require.Equal(t, zap.InfoLevel, d.level.Level())
	require.Empty(t, d.logged.FilterMessage("reloaded").All())
}

func (d *running) limitsTold() wire.Limits {
	d.Helper()
	return d.open(`"a"`).Limits
}

// Clients are told the limits that the daemon enforces, before and after a reload.
func TestAReloadedLimitIsShownAndEnforced(t *testing.T) {
	for _, lane := range []string{"handoff", "off"} {
		d := start(t, func(c *config.Config) { c.Lane = lane })
		d.reloadWith(func(c *config.Config) {
			c.MessageBytes, c.Session.Subscriptions, c.Session.InactivityTimeout = 10, 2, 7*time.Minute
			c.Transport.PollTimeout, c.Transport.Heartbeat, c.Transport.MaxOutputDelay = 9*time.Second, 8*time.Second, 6*time.Second
			c.Transport.AnswerFrames, c.Transport.AnswerBytes = 5, 4
			c.Broker.HistoryMessages, c.Broker.IdempotencyWindow = 2, 3*time.Second
			c.Limit.Wait, c.Limit.PendingMessages = 20*time.Millisecond, 9
			c.Session.Queue, c.Session.Unacked = 3, 3
		})
		want := wire.Limits{
			MessageBytes: 10, Subscriptions: 2, InactivityTimeoutMS: 420_000, PollTimeoutMS: 9000, HeartbeatMS: 8000, MaxOutputDelayMS: 6000,
			AnswerFrames: 5, AnswerBytes: 4, Queue: 3, Unacked: 3, IdempotencyMS: 3000, WaitMS: 20, PendingMessages: 9,
		}
		require.Equal(t, want, d.limitsTold())
		_, hello := d.get("http://" + d.PublicAddr() + "/v1/poll?topic=a")
		var said struct{ Hello wire.Hello }
		require.NoError(t, json.Unmarshal([]byte(hello), &said))
		require.Equal(t, want, *said.Hello.Limits)

		for range 2 { // the first over net/http, the second perhaps on the lane
			require.Equal(t, http.StatusRequestEntityTooLarge, d.status("/v1/topics/a/messages", `"12345678901"`))
		}
		require.Equal(t, http.StatusBadRequest, d.status("/v1/sessions", `{"topics":["a","b","c"]}`))
		for range 3 {
			d.post("/v1/topics/a/messages", "1")
		}
		_, state := d.get("http://" + d.PublicAddr() + "/v1/topics/a")
		require.Contains(t, state, `"messages":2`)
		d.reloadWith(func(c *config.Config) { c.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a", HistoryMessages: 1}} })
		_, state = d.get("http://" + d.PublicAddr() + "/v1/topics/a")
		require.Contains(t, state, `"messages":1`, "a rule is for topics that there are, too")
		d.reloadWith(func(c *config.Config) { c.Session.MaxSessions, c.Broker.MaxTopics, c.Broker.MaxSubscriptions = 1, 1, 2 })
		for limit, is := range map[string]float64{"sessions": 1, "topics": 1, "all_subscriptions": 2} {
			require.Equal(t, is, d.metric(`pubsubd_limit{limit="`+limit+`"}`), limit)
		}
		require.Equal(t, http.StatusServiceUnavailable, d.status("/v1/sessions", `{"topics":["a"]}`))
		require.Equal(t, http.StatusServiceUnavailable, d.status("/v1/topics/another/messages", "1"))
		require.NoError(t, d.wait())
	}
}

func (d *running) status(path, body string) int {
	d.Helper()
	resp, err := d.client.Post("http://"+d.PublicAddr()+path, "application/json", strings.NewReader(body))
	require.NoError(d, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// Polls that begin after the reload use the new timeout. To time them out that early, the
// sweeper must tick as often.
func TestAReloadChangesThePollTimeout(t *testing.T) {
	t.Parallel()
	d := start(t, func(c *config.Config) { c.Transport.PollTimeout, c.Transport.Heartbeat = time.Hour, time.Hour })
	d.reloadWith(func(c *config.Config) { c.Transport.PollTimeout = 50 * time.Millisecond })
	session := d.open(`"a"`).Session
	soon := 0
	for range 20 {
		begun := time.Now()
		status, _ := d.get("http://" + d.PublicAddr() + "/v1/sessions/" + session + "/poll?ack=0")
		require.Equal(t, http.StatusOK, status)
		if time.Since(begun) < sweepEvery/2 {
			soon++
		}
	}
	require.Greater(t, soon, 2, "they were told each second")
}

func TestAReloadChangesTheInactivityTimeout(t *testing.T) {
	d := start(t, func(c *config.Config) { c.Session.InactivityTimeout = 2 * time.Second })
	d.open(`"a"`)
	d.reloadWith(func(c *config.Config) { c.Session.InactivityTimeout = 10 * time.Millisecond })
	require.Eventually(t, func() bool { return d.metric("pubsubd_sessions") == 0 }, surely, 10*time.Millisecond)
}

func TestAReloadChangesTheDrainWindow(t *testing.T) {
	d := start(t, func(c *config.Config) { c.DrainWindow = time.Hour })
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
	_, err = io.ReadFull(conn, make([]byte, len("HTTP/1.1 100")))
	require.NoError(t, err)
	d.reloadWith(func(c *config.Config) { c.DrainWindow = time.Millisecond })
	require.NoError(t, d.wait())
}

func TestTheLevelIsReloadedAndSetByHand(t *testing.T) {
	key := operatorsKey(t)
	d := start(t, func(c *config.Config) { c.Admin.KeyFile = key })
	level := "http://" + d.AdminAddr() + "/loglevel"
	wantLevel := func(want string) {
		t.Helper()
		_, body := d.get(level)
		require.JSONEq(t, `{"level":"`+want+`"}`, body)
	}
	put := func(body, as string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, level, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", as)
		req.Header.Set("Authorization", "Bearer "+keyOfOperators)
		resp, err := d.client.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	wantLevel("info")
	require.Equal(t, http.StatusOK, put("level=debug", "application/x-www-form-urlencoded"), "as curl -d says it")
	wantLevel("debug")
	d.log.Debug("whispered")
	require.Len(t, d.logged.FilterMessage("whispered").All(), 1)
	require.Equal(t, http.StatusBadRequest, put(`{"level":"loud"}`, "application/json"))
	wantLevel("debug")

	require.Equal(t, http.StatusOK, put(`{"level":"warn"}`, "application/json"))
	wantLevel("warn")
	d.reloadWith(func(*config.Config) {})
	wantLevel("info")
	require.Len(t, d.logged.FilterMessage("log level is as configured again").All(), 1)
	d.reloadWith(func(c *config.Config) { c.Log.Level = "error" })
	wantLevel("error")
	require.Equal(t, []string{"log.level: info → error"}, d.said("setting changed", "was", "is"), "told before it is too quiet")
	d.log.Warn("said aloud")
	require.Empty(t, d.logged.FilterMessage("said aloud").All())
	d.reloadWith(func(c *config.Config) { c.Log.Level = "debug" })
	require.Len(t, d.said("setting changed", "was", "is"), 2)
	status, _ := d.get("http://" + d.PublicAddr() + "/loglevel")
	require.Equal(t, http.StatusNotFound, status, "not on the public listener")
}

// The daemon reports the beginning and the end of a reload, whatever its result.
func TestAReloadIsReportedWhateverItsResult(t *testing.T) {
	m := listenAsManager(t)
	d := start(t, nil)
	require.Equal(t, "READY=1", m.hears())
	for _, wrong := range []error{nil, errors.New("wrong")} {
		d.Reload(func() (config.Config, error) {
			m.hearsReloading()
			d.manager.tell("X_LOADING=1")
			return d.Config(), wrong
		})
		require.Equal(t, "X_LOADING=1", m.hears())
		require.Equal(t, "READY=1", m.hears())
	}
	require.NoError(t, d.wait())
	require.Contains(t, m.hears(), "STOPPING=1")
	d.reloadWith(func(*config.Config) {})
	d.manager.tell("X_LAST=1")
	require.Equal(t, "X_LAST=1", m.hears())
}
