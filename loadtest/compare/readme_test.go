package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/report"
)

// Each of README's columns compares servers on one transport. The servers are those of a row.
var (
	rowsOfREADME = []struct{ name, webSocket, sse, longPoll string }{
		{"**pubsubd**", "pubsubd-ws", "pubsubd-sse", "pubsubd"},
		{"Nchan 1.3.6", "nchan-ws", "nchan-sse", "nchan"},
		{"Centrifugo 5.4.9", "centrifugo-ws", "centrifugo-sse", ""},
		{"Mercure 0.18.0", "", "mercure", ""},
	}
	transportsOfREADME = []string{"WebSocket", "SSE", "long poll"}
)

// The table in README is what compare-transports.json has. The fastest bursts of a transport
// are bold if they are not pubsubd's.
func TestTheTableInREADMEIsWhatWasMeasured(t *testing.T) {
	measured := readResults(t, "compare-transports.json")
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	scenarios := []string{"stream-5000", "stream-5000", "long-poll-5000"}
	best := []float64{math.Inf(1), math.Inf(1), math.Inf(1)}
	for _, row := range rowsOfREADME {
		for i, server := range []string{row.webSocket, row.sse, row.longPoll} {
			if server != "" {
				best[i] = min(best[i], percentile(measured.figuresOf(scenarios[i], server).bursts, 95))
			}
		}
	}
	for _, row := range rowsOfREADME {
		cells := []string{row.name}
		for i, server := range []string{row.webSocket, row.sse, row.longPoll} {
			if server == "" {
				cells = append(cells, "–")
				continue
			}
			f := measured.figuresOf(scenarios[i], server)
			require.Zero(t, f.failed+f.late, server)
			require.Zero(t, f.lost, server)
			burst := percentile(f.bursts, 95)
			shown := fmt.Sprintf("%.0f ms", burst)
			if burst == best[i] && !strings.HasPrefix(server, judged) {
				shown = "**" + shown + "**"
			}
			cells = append(cells, fmt.Sprintf("%.1f µs, %s", f.cpu.median, shown))
		}
		line := "| " + strings.Join(cells, " | ") + " |\n"
		require.True(t, strings.Contains(string(readme), line), "README has no line %s", line)
	}
}

// The chart in README is what was measured, too. -update draws it anew.
func TestTheChartInREADMEIsWhatWasMeasured(t *testing.T) {
	streams, polls := readResults(t, "compare-transports.json"), readResults(t, "compare.json")
	const kB = 1000
	chart := report.Bars{Title: "Memory of an idle client, 15,000 clients", Unit: " kB", Groups: make([]report.Group, len(transportsOfREADME))}
	for i, name := range transportsOfREADME {
		chart.Groups[i].Name = name
	}
	for _, row := range rowsOfREADME {
		chart.Series = append(chart.Series, strings.Trim(row.name, "*"))
		for i, bytes := range []float64{
			streams.figuresOf("memory-stream", row.webSocket).resident,
			streams.figuresOf("memory-stream", row.sse).resident,
			polls.figuresOf("memory-long-poll", row.longPoll).resident,
		} {
			chart.Groups[i].Values = append(chart.Groups[i].Values, math.Round(10*bytes/kB)/10)
		}
	}
	var drawn strings.Builder
	require.NoError(t, chart.SVG(&drawn))
	file := filepath.Join("../results", "idle-memory.svg")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(drawn.String()), 0o644))
	}
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(kept), drawn.String(), "run with -update if it is meant")

	// README says so in words, too.
	pubsubd, nchan, centrifugo := chart.Groups[0].Values[0], chart.Groups[0].Values[1], chart.Groups[0].Values[2]
	require.InDelta(t, 5, pubsubd, 0.5)
	require.InDelta(t, 2, nchan/pubsubd, 0.2)
	require.InDelta(t, 7, centrifugo/pubsubd, 0.5)
}

func readResults(t *testing.T, name string) Comparison {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../results", name))
	require.NoError(t, err)
	var c Comparison
	require.NoError(t, json.Unmarshal(text, &c))
	return c
}
