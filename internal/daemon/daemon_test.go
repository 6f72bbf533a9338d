package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// surely bounds the wait for what must happen, on a busy machine.
const surely = 20 * time.Second

// sceneHost is a name under which clients may address the daemon.
const sceneHost = "pubsubd.example"

// A running is a daemon on free ports of the loopback interface.
type running struct {
	*testing.T
	*Daemon
	stop   context.CancelFunc
	result chan error
	ended  error // the result of Run, once it has returned
	logged *observer.ObservedLogs
	client *http.Client

	elsewhere *addresses // set for a daemon in another process; Daemon is nil then
}

// PublicAddr hides Daemon.PublicAddr: the daemon may run in another process.
func (d *running) PublicAddr() string {
	if d.elsewhere != nil {
		return d.elsewhere.Public
	}
	return d.Daemon.PublicAddr()
}

// AdminAddr hides Daemon.AdminAddr, as PublicAddr does.
func (d *running) AdminAddr() string {
	if d.elsewhere != nil {
		return d.elsewhere.Admin
	}
	return d.Daemon.AdminAddr()
}

func start(t *testing.T, change func(c *config.Config)) *running {
	t.Helper()
	return startWith(t, change, func(*Daemon) {})
}

// startWith is start with a function that changes the daemon before it listens.
func startWith(t *testing.T, change func(c *config.Config), changeMade func(d *Daemon)) *running {
	t.Helper()
	cfg := config.Default()
	cfg.Listen = config.Listen{Public: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	cfg.DrainWindow = 2 * time.Second
	cfg.Hosts = []string{"h", sceneHost}
	if change != nil {
		change(&cfg)
	}
	core, logged := observer.New(zapcore.DebugLevel) // the daemon applies its own level
	made, err := New(cfg, zap.New(core), metrics.New("test"))
	require.NoError(t, err)
	changeMade(made)
	ctx, stop := context.WithCancel(context.Background())
	d := &running{
		T: t, Daemon: made, stop: stop, logged: logged,
		result: make(chan error, 1), client: &http.Client{Transport: &http.Transport{}},
	}
	d.client.Transport.(*http.Transport).DialContext = d.dialAdmin
	require.NoError(t, d.Listen())
	go func() { d.result <- d.Daemon.Run(ctx) }()
	t.Cleanup(func() { _ = d.wait() })
	d.waitReady()
	require.Eventually(t, func() bool { // the log entry comes after the daemon is ready
		return !made.level.Enabled(zapcore.InfoLevel) || logged.FilterMessage("ready").Len() == 1
	}, surely, 10*time.Millisecond)
	return d
}

// wait stops the daemon and returns what Run returned.
func (d *running) wait() error {
	d.stop()
	if d.result != nil {
		d.ended = <-d.result
		d.result = nil
	}
	d.client.CloseIdleConnections()
	return d.ended
}

func (d *running) waitReady() {
	d.Helper()
	require.Eventually(d, func() bool {
		status, _ := d.get("http://" + d.adminHost() + "/readyz")
		return status == http.StatusOK
	}, surely, 10*time.Millisecond)
}

func (d *running) get(url string) (int, string) {
	d.Helper()
	resp, err := d.client.Get(url)
	require.NoError(d, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	return resp.StatusCode, string(body)
}

func (d *running) post(path, body string) string {
	d.Helper()
	resp, err := d.client.Post("http://"+d.PublicAddr()+path, "application/json", strings.NewReader(body))
	require.NoError(d, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	require.Less(d, resp.StatusCode, 300, string(text))
	return string(text)
}

func (d *running) open(topics string) wire.SessionOpened {
	d.Helper()
	var opened wire.SessionOpened
	require.NoError(d, json.Unmarshal([]byte(d.post("/v1/sessions", `{"topics":[`+topics+`]}`)), &opened))
	return opened
}

// metric returns one sample of /metrics, by name and labels as written there.
func (d *running) metric(sample string) float64 {
	d.Helper()
	v, ok := d.metricIfAny(sample)
	require.True(d, ok, "no such sample: %s", sample)
	return v
}

// wantMetric waits until a sample has this value. The daemon may count an answer after
// the client has read it.
func (d *running) wantMetric(sample string, want float64) {
	d.Helper()
	got, ok := d.metricIfAny(sample)
	for begun := time.Now(); (!ok || got != want) && time.Since(begun) < surely; got, ok = d.metricIfAny(sample) {
		time.Sleep(min(time.Millisecond+time.Since(begun)/8, 25*time.Millisecond)) // the daemon needs the CPU for what is awaited
	}
	require.True(d, ok, "no such sample: %s", sample)
	require.EqualValues(d, want, got, sample)
}

// metricIfAny is metric for a sample that may not exist yet. It asks for one metric, not
// compressed: many tests ask until a value is there.
func (d *running) metricIfAny(sample string) (v float64, ok bool) {
	d.Helper()
	name, _, _ := strings.Cut(sample, "{")
	histogram := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
	r, err := http.NewRequest("GET", "http://"+d.AdminAddr()+"/metrics?name[]="+name+"&name[]="+histogram, nil)
	require.NoError(d, err)
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := d.client.Do(r)
	require.NoError(d, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(d, err)
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			_, err := fmt.Sscan(value, &v)
			require.NoError(d, err)
			return v, true
		}
	}
	return 0, false
}

// waitParked waits until n polls are parked. Streams count, too.
func (d *running) waitParked(n int) {
	d.Helper()
	require.Eventually(d, func() bool {
		return d.metric(`pubsubd_polls_parked{transport="longpoll"}`)+d.metric(`pubsubd_polls_parked{transport="stream"}`) == float64(n)
	}, surely, 10*time.Millisecond)
}

func TestTheFirstLogLineSaysThatNobodyIsAuthorised(t *testing.T) {
	d := start(t, nil)
	require.Contains(t, d.logged.All()[0].Message, "open")
	require.NoError(t, d.wait())
}

func TestAddressesAreWrittenOnceItIsReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "addresses")
	d := start(t, func(c *config.Config) { c.AddressesFile = path })
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"public":%q,"admin":%q}`, d.PublicAddr(), d.AdminAddr()), string(text))
}

func TestAnAddressInUseIsAnErrorThatNamesTheSetting(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, listen := range []config.Listen{
		{Public: taken.Addr().String(), Admin: "127.0.0.1:0"},
		{Public: "127.0.0.1:0", Admin: taken.Addr().String()},
	} {
		cfg := config.Default()
		cfg.Listen = listen
		d, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.NoError(t, err)
		err = d.Listen()
		require.ErrorContains(t, err, "address already in use")
		require.ErrorContains(t, err, "listen.")
	}
}

// Two daemons in one process share nothing.
func TestTwoDaemonsDoNotKnowEachOther(t *testing.T) {
	one, two := start(t, nil), start(t, nil)
	one.post("/v1/topics/a/messages", "1")
	require.EqualValues(t, 1, one.metric("pubsubd_topics"))
	require.EqualValues(t, 0, two.metric("pubsubd_topics"))
}

func TestADrainAnswersAllPollsAndEnds(t *testing.T) {
	d := start(t, func(c *config.Config) { c.DrainWindow = surely }) // no poll times out earlier
	session := d.open(`"a"`)
	answers := make(chan string, 3)
	poll := func(path string) {
		resp, err := http.Get("http://" + d.PublicAddr() + path)
		if err != nil {
			answers <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answers <- fmt.Sprint(resp.StatusCode, " ", string(body))
	}
	go poll("/v1/sessions/" + session.Session + "/poll?ack=0")
	go poll("/v1/poll?topic=" + session.Positions[0].String())
	go poll("/v1/sessions/" + d.open(`"b"`).Session + "/poll?ack=0&mode=stream")
	require.Eventually(t, func() bool {
		return d.metric(`pubsubd_polls_parked{transport="longpoll"}`) == 2 && d.metric(`pubsubd_polls_parked{transport="stream"}`) == 1
	}, surely, 10*time.Millisecond)

	require.NoError(t, d.wait())
	require.Empty(t, d.logged.FilterMessageSnippet("cutting off").All())
	streams := 0
	for range 3 {
		answer := <-answers
		require.Contains(t, answer, `"code":"draining"`)
		require.Contains(t, answer, `"positions":[`)
		if strings.HasPrefix(answer, `200 {"hello"`) {
			streams++
			require.True(t, strings.HasSuffix(answer, "}}\n"), "the stream ends whole: %q", answer)
		} else {
			require.True(t, strings.HasPrefix(answer, "503 "), answer)
		}
	}
	require.Equal(t, 1, streams)
	_, err := net.Dial("tcp", d.PublicAddr())
	require.Error(t, err, "nobody listens any more")
}

// A client that does not read its stream cannot delay the end of a drain.
func TestADrainCutsOffSlowAnswers(t *testing.T) {
	d := start(t, func(c *config.Config) { c.DrainWindow = 100 * time.Millisecond })
	conn, err := net.Dial("tcp", d.PublicAddr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10)) // otherwise the kernel may enlarge it later
	fmt.Fprintf(conn, "GET /v1/sessions/%s/poll?ack=0&mode=stream HTTP/1.1\r\nHost: h\r\n\r\n", d.open(`"a"`).Session)
	_, err = bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	big := `"` + strings.Repeat("x", 60<<10) + `"`
	require.Eventually(t, func() bool { // until the socket's buffers are full
		d.post("/v1/topics/a/messages", big)
		return d.staysBehind()
	}, 20*time.Second, time.Microsecond)
	require.NoError(t, d.wait())
	require.Len(t, d.logged.FilterMessageSnippet("cutting off").All(), 1)
}

// staysBehind reports whether a subscription stays behind while the daemon answers 20
// requests. A subscription that is merely late would catch up meanwhile.
func (d *running) staysBehind() bool {
	for range 20 {
		if d.metric("pubsubd_subscriptions_behind") == 0 {
			return false
		}
	}
	return true
}

func TestReadinessFailsWithItsReasonWhileDraining(t *testing.T) {
	d, err := New(config.Default(), zap.NewNop(), metrics.New("test"))
	require.NoError(t, err)
	require.Equal(t, "starting", d.whyNotReady())
	d.notReady("draining")
	require.Equal(t, "draining", d.whyNotReady())
}

func TestMetricsCountCalls(t *testing.T) {
	d := startWith(t, nil, func(d *Daemon) { d.metrics.GatherProcess() })
	session := d.open(`"a","b@oldest"`)
	d.post("/v1/topics/a/messages", "[1]")
	d.post("/v1/topics/a/messages", "[2]")
	poll := "http://" + d.PublicAddr() + "/v1/sessions/" + session.Session + "/poll?ack="
	_, frames := d.get(poll + "0")
	require.Equal(t, 2, strings.Count(frames, "\n"))
	status, _ := d.get(poll + "9")
	require.Equal(t, http.StatusBadRequest, status)
	_, all := d.get("http://" + d.AdminAddr() + "/metrics")
	faults, err := promlint.New(strings.NewReader(all)).Lint()
	require.NoError(t, err)
	require.Empty(t, faults, "the linter of Prometheus")
	require.Contains(t, all, "\ngo_goroutines ")
	require.Contains(t, all, "\nprocess_start_time_seconds ")
	for sample, want := range map[string]float64{
		`pubsubd_build_info{version="test"}`:                                  1,
		`pubsubd_messages_published_total`:                                    2,
		`pubsubd_messages_published_bytes_total`:                              6,
		`pubsubd_sessions`:                                                    1,
		`pubsubd_sessions_opened_total`:                                       1,
		`pubsubd_topics`:                                                      2,
		`pubsubd_subscriptions`:                                               2,
		`pubsubd_frames_delivered_total{transport="longpoll"}`:                2,
		`pubsubd_frames_delivered_bytes_total{transport="longpoll"}`:          float64(len(frames)),
		`pubsubd_polls_total{outcome="frames",transport="longpoll"}`:          1,
		`pubsubd_polls_total{outcome="ack_beyond_sent",transport="longpoll"}`: 1,
		`pubsubd_requests_refused_total{code="ack_beyond_sent"}`:              1,
		`pubsubd_answer_frames_count{transport="longpoll"}`:                   1,
		`pubsubd_answer_frames_sum{transport="longpoll"}`:                     2,
		`pubsubd_session_queue_depth_sum`:                                     2,
		`pubsubd_session_unacked_frames`:                                      2,
		`pubsubd_memory_bytes{kind="frames"}`:                                 float64(len(frames)),
	} {
		d.wantMetric(sample, want)
	}
	for _, kind := range []string{"history", "queues"} {
		require.Positive(t, d.metric(`pubsubd_memory_bytes{kind="`+kind+`"}`), kind)
	}
	require.Greater(t, d.metric(`pubsubd_network_bytes_total{direction="out"}`), float64(len(frames)))
	require.Positive(t, d.metric(`pubsubd_network_bytes_total{direction="in"}`))
}

func TestTheAdminListenerServesHealthAndProfiles(t *testing.T) {
	d := start(t, nil)
	for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "ok\n"} {
		status, body := d.get("http://" + d.AdminAddr() + path)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, want, body)
	}
	status, _ := d.get("http://" + d.AdminAddr() + "/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusForbidden, status, "without the operators' key")
	status, _ = d.get("http://" + d.PublicAddr() + "/metrics")
	require.Equal(t, http.StatusNotFound, status, "not on the public listener")
}

// The sweeper ends sessions without polls and forgets topics without messages.
func TestIdleSessionsAndEmptyTopicsAreSwept(t *testing.T) {
	d := start(t, func(c *config.Config) {
		c.Session.InactivityTimeout = 100 * time.Millisecond
		c.Broker.HistoryAge = 100 * time.Millisecond
	})
	d.post("/v1/topics/a/messages", "1")
	session := d.open(`"a"`).Session
	require.Eventually(t, func() bool {
		return d.metric("pubsubd_sessions") == 0 && d.metric("pubsubd_topics") == 0
	}, surely, 20*time.Millisecond)
	status, why := d.get("http://" + d.PublicAddr() + "/v1/sessions/" + session)
	require.Equal(t, http.StatusGone, status)
	require.Contains(t, why, "inactivity")
}

// lanes are the settings of lane that take connections over.
var lanes = []string{"handoff", "channel"}

// startLane is start with this setting of lane.
func startLane(t *testing.T, lane string, change func(c *config.Config)) *running {
	t.Helper()
	return start(t, func(c *config.Config) {
		c.Lane = lane
		if change != nil {
			change(c)
		}
	})
}

// calls returns how many calls were served this way. A way without calls has no sample.
func (d *running) calls(call, way string) int {
	d.Helper()
	n, _ := d.metricIfAny(fmt.Sprintf("pubsubd_calls_total{call=%q,way=%q}", call, way))
	return int(n)
}
