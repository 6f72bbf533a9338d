package report

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/scenarios"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

func p(v float64) *float64 { return &v }

// steady is a good one of so many clients, whose figures grow with them.
func steady(clients int) *loadtest.Result {
	r := broadcast()
	r.Scenario, r.Bursts = "steady", nil
	r.Parameters.Topics, r.Parameters.PerTopic, r.Parameters.Clients = clients/2, 2, clients
	r.Parameters.PeriodMS = 1000
	scale := float64(clients) / 100
	r.Latency = summary(int64(clients)*30, scale*scale)
	r.Server.ResidentEndBytes = int64(clients) * 100_000
	r.Server.BytesOut = int64(clients) * 1_000_000
	r.LatencySeries = []stats.Point{{AtS: 0, Count: 5, MeanMS: 4, MaxMS: 8}, {AtS: 1}, {AtS: 2, Count: 5, MeanMS: 5, MaxMS: 7}}
	return &r
}

// suite has everything: a failure, a bound generator, a search, changes.
func suite() scenarios.Result {
	missed, found := collab(), search()
	bound := steady(400)
	bound.Verdict = loadtest.Verdict{GeneratorBound: []string{"the generator's thread was 95 % busy and 0 % waiting for a core"}, ExitCode: loadtest.ExitGeneratorBound}
	found.Points = found.Points[2:]
	shorter := []scenarios.Change{{Key: "rounds", From: "100", To: "5"}}
	return scenarios.Result{
		Scenario: "mine", Title: "Theirs <and> ours", Source: "An article", About: "What is to be known of it.",
		Theirs:  "Latency grows faster than linearly in clients, memory and network linearly; at most 18 % of 100 Mbit/s was used.",
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Environment: environment, ExitCode: loadtest.ExitFailed,
		Runs: []scenarios.RunResult{
			{
				Name: "rounds", Kind: scenarios.Collab, Changes: shorter, ExitCode: loadtest.ExitFailed,
				Theirs:  scenarios.Theirs{MeanMS: p(2743), MedianMS: p(0), StdevMS: p(12.5), Words: "out of hand"},
				Outcome: scenarios.Outcome{Result: &missed},
			},
			{Name: "refused", Kind: scenarios.Collab, Changes: shorter, ExitCode: 1, Theirs: scenarios.Theirs{MeanMS: p(25)}, Error: errors.New("connection refused").Error()},
			{Name: "steady-400", Kind: scenarios.Steady, Series: "P 1 s", ExitCode: 4, Outcome: scenarios.Outcome{Result: bound}},
			{Name: "steady-100", Kind: scenarios.Steady, Series: "P 1 s", Course: true, Theirs: scenarios.Theirs{MeanMS: p(3)}, Outcome: scenarios.Outcome{Result: steady(100)}},
			{Name: "search", Kind: scenarios.BroadcastSearch, Theirs: scenarios.Theirs{Clients: p(5000)}, Outcome: scenarios.Outcome{Search: &found}},
			{Name: "no-search", Kind: scenarios.BroadcastSearch, ExitCode: 1, Theirs: scenarios.Theirs{Clients: p(1)}, Error: "interrupted"},
		},
	}
}

func TestSuites(t *testing.T) {
	var table, page, record bytes.Buffer
	require.NoError(t, SuiteTable(&table, suite()))
	wantGolden(t, "suite.txt", table.Bytes())
	require.NoError(t, SuiteHTML(&page, suite()))
	wantGolden(t, "suite.html", page.Bytes())
	require.NotContains(t, page.String(), "<and>")
	require.NoError(t, JSON(&record, suite()))
	wantGolden(t, "suite.json", record.Bytes())
	names := []string{}
	for _, c := range SuiteCharts(suite()) {
		var chart bytes.Buffer
		require.NoError(t, c.Chart.SVG(&chart))
		wantXML(t, chart.Bytes())
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"mean", "stdev", "memory", "network", "course-steady-100"}, names)
}

// What nobody has a figure for has no column, and what has no points no chart.
func TestASuiteShowsWhatThereIs(t *testing.T) {
	r := scenarios.Result{Title: "Mine", Environment: environment, Runs: []scenarios.RunResult{
		{Name: "one", Kind: scenarios.Steady, Outcome: scenarios.Outcome{Result: steady(100)}},
	}}
	var table bytes.Buffer
	require.NoError(t, SuiteTable(&table, r))
	wantGolden(t, "suite-one.txt", table.Bytes())
	require.NotContains(t, table.String(), "theirs")
	require.Empty(t, SuiteCharts(r))
}
