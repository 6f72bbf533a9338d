package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

var update = flag.Bool("update", false, "write the golden files anew")

// openFiles is what many machines allow a process.
const openFiles = 20_000

func TestPlansAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		plan []Point
		most time.Duration
	}{"full": {fullPlan(), 12 * time.Minute}, "quick": {quickPlan(), 75 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			var takes time.Duration
			seen := map[string]int{}
			for _, p := range c.plan {
				takes += p.takes()
				seen[p.Series]++
				require.Zero(t, p.Clients%p.Topics, "%v", p)
				require.Less(t, p.Clients+mostPublishers, openFiles, "%v", p)
				require.Positive(t, p.Bursts)
				require.Positive(t, p.PeriodMS)
				require.Positive(t, p.X)
			}
			require.Less(t, takes, c.most)
			require.LessOrEqual(t, len(c.plan), 30)
			for _, s := range allSeries {
				require.GreaterOrEqual(t, seen[s.name], 2, "a line takes two points")
				delete(seen, s.name)
			}
			require.Empty(t, seen, "a series that the page does not know")
		})
	}
}

func TestPointsNameOnlyTheFlagsTheyNeed(t *testing.T) {
	plan := complete([]Point{
		{Clients: 500, PeriodMS: 50, Bursts: 3},
		{Clients: 500, PeriodMS: 50, Bursts: 3, Topics: 5000, Subscriptions: 7, MessageBytes: 10},
	})
	require.Equal(t, "loadtest broadcast --json=- --quiet --clients=500 --period=50ms --bursts=3 --warmup-bursts=1",
		strings.Join(plan[0].arguments(), " "))
	require.Equal(t, "--topics=5000 --publishers=1000 --max-publishers=1000 --subscriptions=7 --message-bytes=10",
		strings.Join(plan[1].arguments()[8:], " "))
}

func TestFits(t *testing.T) {
	for _, c := range []struct {
		name             string
		x, y             []float64
		intercept, slope float64
		rms, worst       float64
		points           int
	}{
		{"a line", []float64{1, 2, 10}, []float64{5, 7, 23}, 3, 2, 0, 0, 3},
		{"two points", []float64{10, 65536}, []float64{15, 80}, 14.990081, 0.00099198, 0, 0, 2},
		{"flat", []float64{1, 100, 1000}, []float64{4, 4, 4}, 4, 0, 0, 0, 3},
		{"what is not positive is left out", []float64{0, 1, 2, 3}, []float64{-9, 5, 7, 9}, 3, 2, 0, 0, 3},
		// At x = 0 the best c is where (c-1)² + (c/2-1)² is least: 1.2. The line then
		// goes through the third point, which costs nothing.
		{"shares count, not sizes", []float64{0, 0, 1}, []float64{1, 2, 4}, 1.2, 2.8, math.Sqrt((0.04 + 0.16) / 3), 0.4, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, ok := fitLine(c.x, c.y)
			require.True(t, ok)
			require.InDelta(t, c.intercept, f.intercept, 1e-4)
			require.InDelta(t, c.slope, f.slope, 1e-4)
			require.InDelta(t, c.rms, f.rms, 1e-6)
			require.InDelta(t, c.worst, f.worst, 1e-6)
			require.Equal(t, c.points, f.points)
		})
	}
	for _, none := range [][]float64{{}, {1}, {2, 2, 2}} {
		_, ok := fitLine(none, []float64{1, 2, 3}[:len(none)])
		require.False(t, ok)
	}
}

// invented are measurements that follow the lines exactly: 6 µs and 1 ns a byte for
// a delivery, 30 µs for a publish, 8000 bytes for a client, 200 for a subscription.
func invented() Measurements {
	m := Measurements{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), TookS: 540,
		Environment: loadtest.Environment{Cores: 2, GoVersion: "go1.26.0", OS: "linux", Arch: "amd64"},
		Build:       map[string]string{"version": "v1.2.3"},
	}
	for _, p := range fullPlan() {
		deliveries := float64(p.Clients * p.Bursts)
		cpu := deliveries*(6+float64(p.MessageBytes)/1000) + 30*float64(p.Topics*p.Bursts)
		resident := int64(1_000_000 + p.Clients*(8000+200*p.Subscriptions) + 1500*p.Topics)
		m.Points = append(m.Points, Measured{
			Point: p, Command: "pubsubd " + strings.Join(p.arguments(), " "), Status: OK,
			Deliveries: int64(deliveries), CPUS: cpu / 1e6, CPUPerDeliveryUS: cpu / deliveries,
			BytesOut: int64(deliveries) * 500, MedianMS: float64(p.Clients) / 100, P99MS: float64(p.Clients) / 50,
			ResidentBytes: resident, ResidentEndBytes: resident + 500_000,
		})
	}
	spoil := func(at int, s Status, reason string) *Measured {
		m.Points[at].Status, m.Points[at].Reasons = s, []string{reason}
		return &m.Points[at]
	}
	spoil(4, GeneratorBound, "its thread was 95 % busy")
	spoil(7, Missed, "1 of 5 bursts in time").CPUPerDeliveryUS = 99
	for at, s := range map[int]Status{12: Failed, 24: NotRun} {
		p := m.Points[at]
		m.Points[at] = Measured{Point: p.Point, Command: p.Command, Status: s, Reasons: []string{"no | reason <given>"}}
	}
	return m
}

func TestTheModelFindsWhatWasPutIn(t *testing.T) {
	m := newModel(invented())
	require.InEpsilon(t, 8200, m.connected.slope, 1e-3)
	require.InEpsilon(t, 8200, m.memory.slope, 1e-3)
	require.InEpsilon(t, m.connected.intercept+500_000, m.memory.intercept, 1e-3)
	require.InEpsilon(t, 200, m.subscriptions.slope, 1e-3)
	require.InEpsilon(t, 1500, m.topics.slope, 1e-3)
	require.InEpsilon(t, 1.0/1000, m.bytes.slope, 1e-3)
	require.InEpsilon(t, 30, m.publishes.slope, 1e-3)
	require.Less(t, m.bytes.worst, 1e-3)
	require.Equal(t, 4, m.publishes.points, "the one that missed is in no fit")
	require.EqualValues(t, 18_000, m.reference.X, "one that the generator bound counts")

	n, ok := m.predict(load{1e6, 1})
	require.True(t, ok)
	require.InEpsilon(t, (8200.0+4000)*1e6/gibibyte, n.memoryLow, 1e-3)
	require.InEpsilon(t, (8200.0+5000)*1e6/gibibyte, n.memoryHigh, 1e-3)
	require.InEpsilon(t, 6, n.cores, 1e-2)
	require.InEpsilon(t, 4, n.gigabits, 1e-6)

	ten, _ := m.predict(load{1e7, 1})
	s := spread(ten, machine{cores: 1000, gibibytes: 64, gigabits: 10, used: 0.5})
	require.Equal(t, 8, s.machines)
	require.Equal(t, "network", s.runsOut())
	ten, _ = m.predict(load{1e7, 0.1})
	s = spread(ten, machine{cores: 1000, gibibytes: 64, gigabits: 10, used: 0.5})
	require.Equal(t, "memory", s.runsOut())
}

func TestThePageSaysWhatWasMeasured(t *testing.T) {
	none := Measurements{}
	for name, m := range map[string]Measurements{"page.md": invented(), "empty.md": none} {
		t.Run(name, func(t *testing.T) {
			got := page(m, map[string]string{"clients": "A note on the clients.", "model": "A note on the model."})
			require.NotContains(t, got, "NaN")
			require.NotContains(t, got, "Inf")
			path := filepath.Join("testdata", name)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "run with -update if it is meant")
		})
	}
}

// What is written names only what is written with it, and can be read again.
func TestFilesAreComplete(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	require.NoError(t, write(first, invented()))
	require.NoError(t, run(t.Context(), options{from: filepath.Join(first, "scale.json"), out: second}))
	text, err := os.ReadFile(filepath.Join(first, "scale.md"))
	require.NoError(t, err)
	again, err := os.ReadFile(filepath.Join(second, "scale.md"))
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
	for _, part := range strings.Split(string(text), "](")[1:] {
		file, _, _ := strings.Cut(part, ")")
		require.FileExists(t, filepath.Join(first, file))
	}
}

func TestAQuickRunDoesNotReplaceRealResults(t *testing.T) {
	require.Equal(t, keptResults, (&options{}).folder())
	require.Equal(t, quickResults, (&options{quick: true}).folder())
	require.Equal(t, "there", (&options{quick: true, out: "there"}).folder())
}

func TestNotesAreOfTheSeriesThereAre(t *testing.T) {
	known := map[string]bool{"model": true}
	for _, s := range allSeries {
		known[s.name] = true
	}
	for name, text := range sections(notes) {
		require.True(t, known[name], "nothing shows the notes on %q", name)
		require.NotEmpty(t, text)
		require.NotRegexp(t, `[0-9]`, text, "figures come from the measurements")
	}
	require.Equal(t, map[string]string{"a": "one\n\ntwo", "b": ""}, sections("head\n## a\none\n\ntwo\n\n## b\n"))
}

func result(exit int) loadtest.Result {
	r := loadtest.Result{Scenario: "broadcast", Server: &loadtest.Server{
		CPUSource: "kernel", CPUS: 1, CPUPerDeliveryUS: 10, ResidentBeforeBytes: 10, ResidentConnectedBytes: 30, ResidentEndBytes: 40,
		BytesOut: 7, Build: map[string]string{"version": "v1"},
	}}
	r.Generator.Deliveries, r.Latency = 100, stats.Summary{P99MS: 5}
	r.Verdict = loadtest.Verdict{ExitCode: exit}
	switch exit {
	case loadtest.ExitFailed:
		r.Verdict.Failed = []string{"broken"}
	case loadtest.ExitMissed:
		r.Verdict.Missed = []string{"late"}
	case loadtest.ExitGeneratorBound:
		r.Verdict.GeneratorBound = []string{"busy"}
	}
	return r
}

func TestVerdictsBecomeStatuses(t *testing.T) {
	for exit, want := range map[int]Status{
		loadtest.ExitOK: OK, loadtest.ExitFailed: Failed, loadtest.ExitMissed: Missed, loadtest.ExitGeneratorBound: GeneratorBound,
	} {
		r, m := result(exit), Measured{Point: Point{Clients: 2}}
		m.take(&r)
		require.Equal(t, want, m.Status)
		require.Equal(t, want == OK, len(m.Reasons) == 0)
		if want == Failed {
			require.Zero(t, m.Deliveries)
			continue
		}
		require.EqualValues(t, 100, m.Deliveries)
		require.InDelta(t, 10, m.residentPerSession(), 0)
		require.InDelta(t, 15, m.residentEndPerSession(), 0)
	}
	r, m := result(0), Measured{}
	r.Server = nil
	m.take(&r)
	require.Equal(t, Failed, m.Status)
}

func TestPointsThatWouldTakeTooLongAreLeftOut(t *testing.T) {
	plan := complete([]Point{{Series: "clients", Clients: 1, Bursts: 1000, PeriodMS: 1000}, {Series: "clients", Clients: 1, Bursts: 1, PeriodMS: 1}, {Series: "topics", Clients: 1, Bursts: 1, PeriodMS: 1}})
	calls := 0
	m := measurer{pubsubd: "server", deadline: time.Now().Add(time.Minute), log: &bytes.Buffer{}, run: func(ctx context.Context, binary string, _ []string) (loadtest.Result, error) {
		calls++
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		require.Equal(t, "server", binary)
		if calls == 2 {
			return loadtest.Result{}, errors.New("no luck")
		}
		return result(0), nil
	}}
	all, err := m.all(t.Context(), plan)
	require.NoError(t, err)
	var statuses []Status
	for _, p := range all.Points {
		statuses = append(statuses, p.Status)
	}
	require.Equal(t, []Status{NotRun, OK, Failed}, statuses)
	require.Equal(t, "v1", all.Build["version"])

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.all(ctx, plan)
	require.ErrorIs(t, err, context.Canceled)
}

// The test binary plays the load test.
func TestMain(m *testing.M) {
	switch os.Getenv("SCALE_CHILD") {
	case "":
		os.Exit(m.Run())
	case "result":
		_ = json.NewEncoder(os.Stdout).Encode(result(loadtest.ExitMissed))
		os.Exit(loadtest.ExitMissed)
	default:
		fmt.Fprint(os.Stderr, "first\nunknown flag: --faster\n")
		os.Exit(2)
	}
}

func TestAChildsResultCountsWhateverItsExitCode(t *testing.T) {
	t.Setenv("SCALE_CHILD", "result")
	r, err := runChild(t.Context(), os.Args[0], nil)
	require.NoError(t, err)
	require.Equal(t, loadtest.ExitMissed, r.Verdict.ExitCode)
	t.Setenv("SCALE_CHILD", "usage")
	_, err = runChild(t.Context(), os.Args[0], nil)
	require.ErrorContains(t, err, "unknown flag: --faster")
	require.ErrorContains(t, err, "exit status 2")
}
