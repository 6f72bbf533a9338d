package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/scenarios"
)

// A user writes a scenario, and gets a table, a record, a page and charts; the run
// that misses its objective does not keep the others from being made.
func TestAScenarioFileIsRunAsItSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, record, page, charts := filepath.Join(dir, "mine.yaml"), filepath.Join(dir, "r.json"), filepath.Join(dir, "r.html"), filepath.Join(dir, "charts")
	require.NoError(t, os.WriteFile(file, []byte(`title: Mine
runs:
  - {kind: broadcast, name: too-slow, clients: 5, period: 50ms, bursts: 20, max-p99: 1us}
  - {kind: collab, name: rounds, topics: 3, delay: 10ms, rounds: 20, theirs: {mean: 496, median: 498, stdev: 288}}
  - {kind: steady, name: steady, series: P 100 ms, course: true, topics: 3, period: 100ms, warmup: 100ms, duration: 2s}
`), 0o600))
	r := run(t, nil, "loadtest", "--scenario", file, "--rounds=3", "--duration=300ms", "--settle=10ms",
		"--json", record, "--html", page, "--svg", charts)
	require.Equal(t, loadtest.ExitMissed, r.code, "%s\n%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "CHANGED from the scenario: bursts 3 instead of 20 (1 of 3 runs); settle 10ms instead of 1s; rounds 3 instead")
	require.Contains(t, r.stdout, "498")
	require.Contains(t, r.stdout, "too-slow: p99 of latency")
	text, err := os.ReadFile(record)
	require.NoError(t, err)
	var result scenarios.Result
	require.NoError(t, json.Unmarshal(text, &result))
	require.Len(t, result.Runs, 3)
	targets := map[string]bool{}
	for _, made := range result.Runs {
		require.NotNil(t, made.Result, "%s: %s", made.Name, made.Error)
		require.Zero(t, made.Result.Deliveries.Lost)
		targets[made.Result.Parameters.Target] = true
	}
	require.Len(t, targets, 3, "each run has a server of its own")
	require.EqualValues(t, 3*3, result.Runs[1].Result.Rounds.Complete)
	require.FileExists(t, page)
	for _, name := range []string{"mean", "stdev", "memory", "network", "course-steady"} {
		require.FileExists(t, filepath.Join(charts, name+".svg"))
	}
}

func TestPresetsOfTheCommandLine(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	require.NoError(t, os.WriteFile(broken, []byte("title: x\nruns:\n  - kind: collab\n    topic: 3\n    rounds: some\n"), 0o600))
	for _, c := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"the list", []string{"scenarios"}, 0, []string{"silverlight3", "8 runs", "laharsub", "14 runs"}},
		{"one of them", []string{"scenarios", "laharsub"}, 0, []string{"runs:\n  - kind: steady"}},
		{"one that is none", []string{"scenarios", "x"}, exitUsage, []string{`"x": use example`}},
		{"no such preset", []string{"--preset=x"}, exitUsage, []string{`--preset "x": use example, laharsub, silverlight3`}},
		{"no such file", []string{"--scenario=x.yaml"}, exitUsage, []string{`"x.yaml" is neither a file nor one of the presets example`}},
		{"both", []string{"--preset=example", "--scenario=example"}, exitUsage, []string{"either a --preset or a --scenario"}},
		{"rounds of nothing", []string{"--rounds=5"}, exitUsage, []string{"either a --preset or a --scenario"}},
		{"rounds where none are", []string{"--preset=laharsub", "--rounds=5"}, exitUsage, []string{"--rounds: no run of laharsub has"}},
		{"no rounds", []string{"--preset=silverlight3", "--rounds=0"}, exitUsage, []string{"run collab-100x5-1s: --rounds: must be at least 1", "run broadcast-10s: --bursts: must be at least 1"}},
		{"a file with faults", []string{"--scenario", broken}, exitUsage, []string{broken + ":4: topic: unknown key", broken + `:5: rounds: is "some"`}},
		{"no place for a page", []string{"--preset=example", "--html=/nowhere/x.html"}, exitUsage, []string{"--html"}},
		{"no place for charts", []string{"--preset=example", "--svg=/dev/null/x"}, exitUsage, []string{"--svg"}},
		{"below collab", []string{"collab", "--preset=example", "--target=http://127.0.0.1:1", "--quiet", "--rounds=3"}, exitRunTime,
			[]string{"3 of 3 runs did not pass", "rounds 3 instead of 5"}},
		{"below collab, with what it would ignore", []string{"collab", "--preset=silverlight3", "--topics=3", "--delay=1s"}, exitUsage,
			[]string{"--delay, --topics: has no effect with --preset"}},
		{"nobody there", []string{"--preset=example", "--target=http://127.0.0.1:1", "--quiet"}, exitRunTime,
			[]string{"ours     broadcast: client ", "ours     steady: client ", "connection refused", "3 of 3 runs did not pass"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, nil, append([]string{"loadtest"}, c.args...)...)
			require.Equal(t, c.code, r.code, "%s\n%s", r.stdout, r.stderr)
			for _, says := range c.says {
				require.Contains(t, r.stdout+r.stderr, says)
			}
		})
	}
}
