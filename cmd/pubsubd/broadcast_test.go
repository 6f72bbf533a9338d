package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

func TestASearchWritesTableJSONAndChart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "search.json"), filepath.Join(dir, "search.svg")
	// Nobody's messages arrive within a microsecond, so the search is a short one.
	r := run(t, nil, "loadtest", "broadcast", "--search", "--period=50ms,100ms", "--clients=2", "--bursts=2", "--warmup-bursts=0",
		"--settle=0s", "--max-p99=1us", "--json", file, "--svg", svg)
	require.Equal(t, loadtest.ExitMissed, r.code, "%s\n%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "limited by")
	require.Contains(t, r.stderr, "period 100ms: 1 clients, 2 bursts: did not pass: p99")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var result loadtest.SearchResult
	require.NoError(t, json.Unmarshal(text, &result))
	require.Len(t, result.Points, 2)
	chart, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(chart), "<svg")
}

func TestABroadcastOverTopicsWithSizedMessages(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "loadtest", "broadcast", "--clients=20", "--topics=5", "--message-bytes=65536", "--period=100ms", "--bursts=3",
		"--settle=0s", "--json=-")
	result := wantCarried(t, r, r.stdout)
	require.Equal(t, 5, result.Parameters.Topics)
	require.EqualValues(t, 25, result.Publishes.Sent)
	require.EqualValues(t, 100, result.Deliveries.Delivered)
	require.Greater(t, result.Generator.BytesIn, int64(3*20*65536))
}

func TestBroadcastFlagsThatDoNotGoTogether(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		args []string
	}{
		"several periods":    {"--search", []string{"--period=1s,2s"}},
		"a chart of nothing": {"--svg", []string{"--svg=x.svg"}},
		"no place for it":    {"--svg", []string{"--search", "--svg=/nowhere/x.svg"}},
		"odd topics":         {"--topics", []string{"--clients=10", "--topics=3"}},
		"no room for it":     {"--message-bytes", []string{"--message-bytes=3"}},
		"no period":          {"--period", []string{"--search", "--period=0s,1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, append([]string{"loadtest", "broadcast"}, c.args...)...)
			require.Equal(t, exitUsage, r.code, "%s\n%s", r.stdout, r.stderr)
			require.Contains(t, r.stderr, c.says)
		})
	}
}
