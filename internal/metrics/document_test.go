package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite golden files")

const documentHead = `# Metrics

The admin listener serves these metrics at ` + "`/metrics`" + `, with those of the Go runtime and the process (` + "`go_…`, `process_…`" + `).
[PROTOCOL.md](../pkg/wire/PROTOCOL.md) explains the reasons of gaps and the codes. [deploy](README.md#observe) says which
metrics to watch first, and has alerts and a dashboard.

| metric | type | labels | meaning |
|---|---|---|---|
`

// METRICS.md lists every metric and its help text.
func TestMetricsDocument(t *testing.T) {
	m := New("test")
	m.Gather(func() Gauges { return Gauges{Memory: map[string]int64{"history": 0}, Limits: []Limit{{}}} })
	m.WaitSeconds.WithLabelValues("")
	m.Transport("longpoll")
	m.Hook("publish", "passed")
	m.CredentialsRefused.WithLabelValues("")
	m.KeyReadsFailed.WithLabelValues("")
	m.LogDropped.WithLabelValues("")
	got, told := document(t, m)
	require.Equal(t, described(m), told, "give every metric a sample here")
	if *update {
		require.NoError(t, os.WriteFile("../../deploy/METRICS.md", []byte(got), 0o644))
	}
	want, err := os.ReadFile("../../deploy/METRICS.md")
	require.NoError(t, err)
	require.Equal(t, string(want), got, "METRICS.md is out of date: run go test ./internal/metrics -update")
}

// document returns the table of our metrics by name, and the number of metrics.
func document(t *testing.T, m *Metrics) (text string, told int) {
	t.Helper()
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	faults, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, faults, "the linter of Prometheus")
	b := strings.Builder{}
	b.WriteString(documentHead)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		told++
		require.NotEmpty(t, f.GetHelp(), f.GetName())
		var by []string
		for _, label := range f.GetMetric()[0].GetLabel() {
			by = append(by, label.GetName())
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(by, ", "), f.GetHelp())
	}
	return b.String(), told
}

// described counts our metrics, also those without samples.
func described(m *Metrics) int {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		m.Registry.Describe(all)
	}()
	names := map[string]bool{}
	for d := range all {
		if name, _, ok := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`); ok && strings.HasPrefix(name, prefix) {
			names[name] = true
		}
	}
	return len(names)
}
