package report

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

func search() loadtest.SearchResult {
	held := broadcast()
	return loadtest.SearchResult{
		Scenario: "broadcast-search", Environment: environment, Dialect: "pubsubd", Mode: "batch", Topics: 1, Bursts: 100, Exploring: 25, Precision: 0.05,
		Points: []loadtest.SearchPoint{
			{
				PeriodMS: 100, Clients: 3800, LimitedBy: loadtest.LimitServer, Reason: "only 3 of 25 bursts in time", Result: &held,
				Trials: []loadtest.Trial{{Clients: 2000, Bursts: 25, Held: true}, {Clients: 4000, Bursts: 25}, {Clients: 3800, Bursts: 100, Held: true}},
			},
			{PeriodMS: 200, LimitedBy: loadtest.LimitGenerator, Reason: "only 0 of 25 bursts in time", Trials: []loadtest.Trial{{Clients: 1, Bursts: 25}}},
			{PeriodMS: 10_000, Clients: 19_000, LimitedBy: loadtest.LimitOpenFiles, Reason: "the limit of open files allows at most 19000 clients"},
		},
	}
}

func TestSearches(t *testing.T) {
	var table, chart bytes.Buffer
	require.NoError(t, SearchTable(&table, search()))
	wantGolden(t, "search.txt", table.Bytes())
	require.NoError(t, SearchChart(search()).SVG(&chart))
	wantXML(t, chart.Bytes())
	wantGolden(t, "search.svg", chart.Bytes())
}
