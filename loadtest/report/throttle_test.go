package report

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/stats"
	"github.com/pubsubd/pubsubd/loadtest/throttle"
)

var throttled = throttle.Parameters{
	Users: 100, DurationMS: 60_000, CallTimeMS: 5000, WaitMS: 2000, ToleranceMS: 250, PendingSessions: 1000, WaitingCalls: 1000, IntervalMS: 20_000, Seed: 1,
}

func measuredThrottle() throttle.Result {
	times := func(count int64, mean float64) throttle.Times {
		return throttle.Times{Count: count, MeanMS: mean, P95MS: 1.1 * mean, MaxMS: 1.2 * mean}
	}
	row := func(s throttle.Setting, within, completed int64, mean float64, theirs throttle.Theirs) throttle.Row {
		course := []stats.Point{{Count: within / 2, MeanMS: mean}, {AtS: 20}, {AtS: 40, Count: completed - within/2, MeanMS: mean}}
		return throttle.Row{
			Setting: s, Most: int(within), Theirs: &theirs, Completed: times(completed, mean), Within: times(within, mean), Served: times(completed, 5001),
			Unfinished: times(7, 30_000), WithUnfinished: 2 * mean, Users: int64(s.Sessions), Refused: throttle.Refused{Sessions: 900, Calls: 80},
			Told: times(980, 1800), Silent: times(2000, 1801), Delivered: throttle.Delivered{Delivered: completed}, Hook: throttle.Hook{Calls: completed, Most: 10, Late: times(completed, 1.5)},
			Ends: course, Begins: course, ServerCPU: true, ServerS: 0.4, GeneratorS: 0.5, Busy: 0.01, TookS: 65,
		}
	}
	return throttle.Result{
		Scenario: "throttle", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), TookS: 196, Environment: environment,
		Parameters: throttled, Ideal: throttle.Ideal{Within: 1100, Completed: 1200, MeanMS: 5000},
		Rows: []throttle.Row{
			row(throttle.Setting{Sessions: 10, Calls: 16}, 110, 120, 5002, throttle.Theirs{Completed: 106, MeanS: 32.4}),
			row(throttle.Setting{Sessions: 100, Calls: 16}, 176, 192, 27_003, throttle.Theirs{Completed: 164, MeanS: 26.9}),
			row(throttle.Setting{Sessions: 100, Calls: 100}, 1100, 1200, 5004, throttle.Theirs{Completed: 571, MeanS: 9.92}),
		},
		Verdict: throttle.Verdict{Missed: []string{"10/16: 3 lost, 0 duplicates"}, ExitCode: loadtest.ExitMissed},
	}
}

func TestThrottle(t *testing.T) {
	var table, charts, page bytes.Buffer
	require.NoError(t, ThrottleTable(&table, measuredThrottle()))
	wantGolden(t, "throttle.txt", table.Bytes())
	require.NoError(t, ThrottleCharts(measuredThrottle()).SVG(&charts))
	wantXML(t, charts.Bytes())
	wantGolden(t, "throttle.svg", charts.Bytes())
	require.NoError(t, ThrottleHTML(&page, measuredThrottle()))
	require.Contains(t, page.String(), "32.4")
	require.Contains(t, page.String(), charts.String())
}

// Other calls than the article's are beside nothing of its.
func TestThrottleOfOtherCalls(t *testing.T) {
	var table bytes.Buffer
	r := measuredThrottle()
	for i := range r.Rows {
		r.Rows[i].Theirs = nil
	}
	require.NoError(t, ThrottleTable(&table, r))
	require.NotContains(t, table.String(), "theirs")
}

// A run in which no call was completed has a table and charts, too.
func TestThrottleOfNothing(t *testing.T) {
	var table, charts bytes.Buffer
	r := throttle.Result{
		Parameters: throttle.Parameters{Target: "http://h:1", Users: 1, Step: "1/1s", ThinkMS: 500, CallsPerSession: 1, BackendWorkers: 2},
		Rows:       []throttle.Row{{Setting: throttle.Setting{Sessions: 1, Calls: 1}}},
		Verdict:    throttle.Verdict{Failed: []string{"1/1: no call was completed"}, ExitCode: loadtest.ExitFailed},
	}
	require.NoError(t, ThrottleTable(&table, r))
	require.Contains(t, table.String(), "FAILED")
	require.Contains(t, table.String(), "started in steps of 1/1s, pauses of 0.5 s on average, 1 calls per session, a back end that serves 2 at a time")
	require.Contains(t, table.String(), "http://h:1")
	require.NoError(t, ThrottleCharts(r).SVG(&charts))
	wantXML(t, charts.Bytes())
	require.NotContains(t, charts.String(), "NaN")
}

func TestThrottleSearch(t *testing.T) {
	trial := func(calls int, perSecond, served float64) throttle.Trial {
		return throttle.Trial{Calls: calls, PerSecond: perSecond, Held: true, Row: throttle.Row{
			Served: throttle.Times{MeanMS: served, P95MS: served}, Completed: throttle.Times{MeanMS: 2 * served, P95MS: 3 * served},
		}}
	}
	p := throttled
	p.BackendWorkers, p.MaxMeanMS, p.MaxP95MS = 8, 6000, 7000
	missed := trial(16, 1.46, 10_000)
	missed.Held, missed.Reason = false, "100/16: the service of calls took 10000 ms on average; at most 6000 ms is allowed"
	r := throttle.SearchResult{
		Scenario: "throttle-search", Environment: environment, Parameters: p, Precision: 0.05, Calls: 8, TookS: 200,
		Trials: []throttle.Trial{trial(4, 0.73, 5001), missed, trial(8, 1.46, 5002)},
	}
	var table, charts, page bytes.Buffer
	require.NoError(t, ThrottleSearchTable(&table, r))
	wantGolden(t, "throttle-search.txt", table.Bytes())
	require.NoError(t, ThrottleSearchCharts(r).SVG(&charts))
	wantXML(t, charts.Bytes())
	require.Contains(t, charts.String(), "doubtful")
	require.NoError(t, ThrottleSearchHTML(&page, r))
	require.Contains(t, page.String(), charts.String())
}
