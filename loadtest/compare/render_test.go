package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// measured is a measurement whose figures are all made of one.
func measured(scenario, server string, round int, cpu float64) Measurement {
	return Measurement{
		Scenario: scenario, Server: server, Round: round,
		Result: &loadtest.Result{
			Latency:    stats.Summary{MedianMS: 3 * cpu, P99MS: 7 * cpu},
			Bursts:     &loadtest.Bursts{Total: 2, InTime: 2, Completions: []float64{5 * cpu, 6 * cpu}},
			Deliveries: loadtest.Deliveries{Expected: 1000, Delivered: 1000},
			Publishes:  loadtest.Publishes{Answer: stats.Summary{Count: 100}},
			Server:     &loadtest.Server{CPUS: cpu / 1000, CPUPerDeliveryUS: cpu, ResidentPerClientBytes: 300 * cpu},
			Generator:  loadtest.Generator{Thread: loadtest.Thread{Known: true, Busy: 0.2, BusyInBursts: 0.6}},
		},
	}
}

// comparison is of a few servers; one failed once, one was bound, one is missing.
func comparison() Comparison {
	present := contenders(programs{})[:3]
	for _, c := range contenders(programs{}) {
		if c.product == "nchan" || c.name == judged+withLimits {
			present = append(present, c)
		}
	}
	c := Comparison{
		Finished: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Source: "v1.2.3-4-gabcdef0",
		Machine:   Machine{Cores: 2, CPU: "A CPU", MemoryBytes: 8 << 30, System: "linux/amd64 An OS", Kernel: "6.1.0", OpenFiles: 20000, GoVersion: "go1.26.0"},
		Versions:  map[string]string{"pubsubd": "pubsubd v1.2.3", "nchan": "nginx/1.22.1, Nchan 1.3.6"},
		LeftOut:   []LeftOut{{"mercure", "not installed"}},
		Scenarios: headings(scenarios(false), present),
	}
	for round, scale := range []float64{1, 1.1, 1.3} {
		for server, cpu := range map[string]float64{"floor": 10, "pubsubd": 13, "pubsubd-channel": 18, "pubsubd-limits": 13.5, "nchan": 20} {
			for _, scenario := range []string{"long-poll-5000", "collab", "memory-long-poll"} {
				m := measured(scenario, server, round+1, cpu*scale)
				m.Steal = 0.06
				if server == "floor" {
					m.Result.Verdict.GeneratorBound = []string{"its thread was busy"}
				}
				c.Measurements = append(c.Measurements, m)
			}
		}
		c.Measurements = append(c.Measurements, measured("stream-5000", "floor", round+1, 10), measured("stream-5000", "nchan-sse", round+1, 15))
	}
	lossy := measured("stream-5000", "pubsubd", 1, 12.5)
	lossy.Result.Deliveries.Lost = 3
	lossy.Result.Deliveries.Duplicates = 2
	c.Measurements = append(c.Measurements, lossy, Measurement{Scenario: "stream-5000", Server: "pubsubd", Round: 2, Error: "refused: 503 | overloaded"})
	return c
}

func TestTables(t *testing.T) { wantGolden(t, "compare.md", comparison().render()) }

func TestQuickRunsSayThatTheyMeanNothing(t *testing.T) {
	c := comparison()
	c.Quick = true
	require.Contains(t, c.render(), "mean nothing")
}

func TestTablesAreMadeAnewFromTheirJSON(t *testing.T) {
	folder, c := t.TempDir(), comparison()
	require.NoError(t, c.write(folder))
	again, err := readComparison(folder)
	require.NoError(t, err)
	require.Equal(t, c.render(), again.render())
	require.Len(t, again.Measurements, len(c.Measurements))
}

func TestJSONOfNoMeasurements(t *testing.T) {
	text, err := Comparison{}.json()
	require.NoError(t, err)
	require.True(t, json.Valid(text))
}
