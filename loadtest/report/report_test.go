package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

var update = flag.Bool("update", false, "write the golden files anew")

func wantGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run with -update if it is meant")
}

var environment = loadtest.Environment{Cores: 4, GOMAXPROCS: 4, GoVersion: "go1.26.0", OS: "linux", Arch: "amd64"}

func summary(count int64, scale float64) stats.Summary {
	return stats.Summary{
		Count: count, MeanMS: 1.25 * scale, MedianMS: scale, StdevMS: 0.5 * scale,
		P90MS: 2 * scale, P99MS: 3 * scale, P999MS: 4 * scale, MaxMS: 5.5 * scale,
	}
}

// broadcast is a good one.
func broadcast() loadtest.Result {
	return loadtest.Result{
		Scenario: "broadcast",
		Started:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Parameters: loadtest.Parameters{
			Target: "http://127.0.0.1:41001", StartedServer: true, Dialect: "pubsubd", Mode: "batch", Subscriptions: 10, Topics: 1, PerTopic: 5000, Clients: 5000,
			Publishers: 1, MaxPublishers: 16, PeriodMS: 10_000, Bursts: 3, WarmupBursts: 2, DrainMS: 10_000,
		},
		Environment:   environment,
		Latency:       summary(15_000, 40),
		LatencySeries: []stats.Point{{AtS: 0, Count: 5000, MeanMS: 40, MaxMS: 80}},
		Bursts:        &loadtest.Bursts{Total: 3, InTime: 3, Completion: summary(3, 80), Completions: []float64{80, 81, 79}},
		Deliveries:    loadtest.Deliveries{Expected: 25_000, Delivered: 25_000, Gaps: map[string]int64{}},
		Publishes:     loadtest.Publishes{Sent: 5, Answer: summary(3, 0.4)},
		Server: &loadtest.Server{
			CPUSource: "kernel", CPUS: 0.21, CPUPerDeliveryUS: 14.2, ResidentBeforeBytes: 12 << 20,
			ResidentConnectedBytes: 42 << 20, ResidentEndBytes: 44 << 20, ResidentPerClientBytes: 6291.5,
			BytesIn: 9 << 20, BytesOut: 5 << 20, Build: map[string]string{"version": "v1.2.3"},
		},
		Generator: loadtest.Generator{
			WindowS: 20.1, Deliveries: 15_000, CPUS: 0.19,
			Thread:      loadtest.Thread{Known: true, Busy: 0.01, Waited: 0.002, BusyInBursts: 0.63, WaitedInBursts: 0.3},
			ScheduleLag: summary(3, 0.05), LagThresholdMS: 60, BytesIn: 5 << 20, BytesOut: 9 << 20,
		},
		Errors:  []loadtest.Failure{},
		Verdict: loadtest.Verdict{Failed: []string{}, Missed: []string{}, GeneratorBound: []string{}},
	}
}

// collab is one where everything went wrong, and no server figures were read.
func collab() loadtest.Result {
	return loadtest.Result{
		Scenario: "collab",
		Parameters: loadtest.Parameters{
			Target: "http://10.0.0.7:8080", Dialect: "pubsubd", Mode: "stream", Stateless: true, Subscriptions: 1, Topics: 1000, PerTopic: 2, Clients: 2000,
			Publishers: 100, MaxPublishers: 1000, DelayMS: 15_000, Rounds: 100, RoundTimeoutMS: 10_000, DrainMS: 10_000, MaxLoss: 1,
		},
		Environment: environment,
		Latency:     summary(99_990, 0.7),
		Rounds:      &loadtest.Rounds{Total: 100_000, Complete: 99_990, TimedOut: 10},
		Deliveries: loadtest.Deliveries{
			Expected: 200_000, Delivered: 199_985, Lost: 15, Late: 3, Duplicates: 2, Disordered: 1, EpochChanges: 1,
			Gaps: map[string]int64{"slow": 2, "evicted": 1},
		},
		Publishes: loadtest.Publishes{Sent: 100_000, Refused: 1, Waited: 12},
		Generator: loadtest.Generator{WindowS: 1500, CPUS: 1420, Thread: loadtest.Thread{Busy: 0.95}, ScheduleLag: summary(100_000, 40), LagThresholdMS: 10},
		Verdict: loadtest.Verdict{
			Failed:         []string{"publish refused: 1, the first: publish: answered 503: overloaded"},
			Missed:         []string{"15 of 200000 deliveries were lost; the limit is 1", "2 duplicates"},
			GeneratorBound: []string{"the generator's thread was 95 % busy and 0 % waiting for a core"},
			ExitCode:       loadtest.ExitFailed,
		},
	}
}

func TestHowTheServerIsSpokenTo(t *testing.T) {
	for want, p := range map[string]loadtest.Parameters{
		"mode batch, sessions":                                      {Mode: "batch", Subscriptions: 1},
		"mode stream, stateless, cbor":                              {Mode: "stream", Stateless: true, Format: "cbor"},
		"mode batch, sessions with 10 topics each":                  {Mode: "batch", Subscriptions: 10},
		"sse, 3 topics each":                                        {Mode: "sse", Subscriptions: 3},
		"websocket, cbor, clients publish on their own connections": {Mode: "websocket", Format: "cbor", OnSocket: true},
	} {
		p.Dialect = "pubsubd"
		require.Equal(t, want, spoken(p))
	}
}

// interrupted is one that was ended in the middle.
func interrupted() loadtest.Result {
	r := collab()
	r.Errors = []loadtest.Failure{{Kind: "ended early", Count: 1, First: "interrupted: context canceled"}}
	r.Verdict = loadtest.Verdict{Failed: []string{"ended early: interrupted: context canceled"}, ExitCode: loadtest.ExitFailed}
	return r
}

// imprecise is one whose server was slow to say what it had used, and delivered
// what it had refused.
func imprecise() loadtest.Result {
	r := broadcast()
	r.Server.CPUSource, r.Server.CPUNote = "", "the metrics were read up to 1.3 s too early or too late for a window of 1.8 s"
	r.Deliveries.Surplus = 5
	r.Parameters.Dialect, r.Parameters.Mode, r.Parameters.Subscriptions = "nchan-sse", "nchan-sse", 1
	return r
}

// shared is one whose clients were in two processes, one of them elsewhere.
func shared() loadtest.Result {
	r := broadcast()
	r.Parameters.Subscriptions = 1
	agent := loadtest.AgentResult{
		Address: "127.0.0.1:40001", PID: 77, Started: true, Clients: 2500, Latency: summary(7500, 30), Generator: r.Generator,
		Clock: loadtest.AgentClock{Shared: true, UncertaintyMS: 0.001},
	}
	other := agent
	other.Address, other.PID, other.Started = "10.0.0.8:9000", 4711, false
	other.Clock = loadtest.AgentClock{UncertaintyMS: 0.312, DriftMS: 0.021}
	r.Agents = []loadtest.AgentResult{agent, other}
	return r
}

func TestTables(t *testing.T) {
	for name, results := range map[string][]loadtest.Result{
		"broadcast.txt":   {broadcast()},
		"collab.txt":      {collab()},
		"two.txt":         {broadcast(), broadcast()},
		"interrupted.txt": {interrupted()},
		"imprecise.txt":   {imprecise()},
		"agents.txt":      {shared()},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, Table(&b, results...))
			wantGolden(t, name, b.Bytes())
		})
	}
}

// The JSON's members are a promise to other programs.
func TestJSON(t *testing.T) {
	for name, r := range map[string]loadtest.Result{"broadcast.json": broadcast(), "collab.json": collab(), "agents.json": shared()} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, JSON(&b, r))
			wantGolden(t, name, b.Bytes())
		})
	}
}

func at(phase string, done int, elapsed time.Duration) loadtest.Status {
	return loadtest.Status{Phase: phase, Done: done, Total: 100, Unit: "bursts", Deliveries: 7, Elapsed: elapsed}
}

func TestPlainLinesComeForPhasesAndEveryFewSeconds(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{w: &b}
	p.Notice("started a server")
	p.Update(at("connecting", 1, 0))
	p.Update(at("connecting", 2, time.Second))
	p.Update(at("broadcast", 3, 2*time.Second))
	p.Update(at("broadcast", 4, 6*time.Second))
	failing := at("broadcast", 5, 7*time.Second)
	failing.Failures = 2
	p.Update(failing)
	failing.Elapsed = 8 * time.Second
	p.Update(failing)
	p.Finish()
	require.Equal(t, "started a server\n"+
		"connecting 1/100 bursts, 7 deliveries, 0 s\n"+
		"broadcast  3/100 bursts, 7 deliveries, 2 s\n"+
		"broadcast  5/100 bursts, 7 deliveries, 7 s, 2 errors\n", b.String())
}

func TestABarIsRedrawnAndRemoved(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{w: &b, terminal: true}
	p.Update(at("broadcast", 50, time.Second))
	p.Update(at("b", 100, time.Second))
	p.Notice("hear")
	p.Finish()
	require.Equal(t, "\r[###############---------------] broadcast  50/100 bursts, 7 deliveries, 1 s"+
		"\r[##############################] b          100/100 bursts, 7 deliveries, 1 s"+
		"\r                                                                             \r"+
		"hear\n", b.String())
}

func TestQuietShowsNoticesAlone(t *testing.T) {
	var b bytes.Buffer
	p := Quiet(&b)
	p.Update(at("connecting", 1, 0))
	p.Notice("started a server")
	p.Finish()
	require.Equal(t, "started a server\n", b.String())
}

func TestAFileIsNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer f.Close()
	require.False(t, NewProgress(f).terminal)
}
