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

If you watch pubsubd with Prometheus, look here for the meaning of each metric that the admin listener serves at ` + "`/metrics`" + `.
[deploy](README.md#observe) says which metrics to watch first, and has queries, alerts and a dashboard. The
[glossary](../pkg/README.md#glossary) explains all terms, and PROTOCOL.md the [reasons of gaps](../pkg/wire/PROTOCOL.md#gaps) and the
[error codes](../pkg/wire/PROTOCOL.md#codes).

`

const documentForm = `
Braces contain the labels of a metric, and its meaning lists their values after the word *by*. Counters begin at 0 when the daemon starts, and a
histogram has the series ` + "`_bucket`, `_sum` and `_count`" + `. The listener also serves the metrics of the Go runtime and the
process (` + "`go_…`, `process_…`" + `).
`

// metricGroups are the sections of METRICS.md. A metric is in the first group that has its name, or a beginning of it that ends
// with an underscore.
var metricGroups = []struct{ name, needs, names string }{
	{
		"Messages and deliveries", "Watch these to see how many messages pass through the daemon, how late they arrive, and whether subscribers lose any.",
		"messages_ frames_ gaps_ publish_ polls_ answer_ compressed_ calls_total",
	},
	{
		"Sessions and subscriptions", "Look here if subscribers are slow or reconnect often, because these show how many sessions there are and why they end.",
		"session_ sessions sessions_ subscriptions subscriptions_ unfollowed_",
	},
	{
		"Topics and presence", "Look here when you size histories or search for a gap, because these show how many topics exist and what leaves them.",
		"topics topics_ history_ idempotency_ presence_",
	},
	{
		"Limits and refusals", "Look here when clients are refused or wait, because these show which limit they met and how near the others are.",
		"limit limited_ in_use waiting wait_ requests_ connections_ addresses",
	},
	{
		"Memory", "Watch these before you raise a limit or a history, because the daemon refuses work when the memory budget is full.",
		"memory_",
	},
	{
		"Network and fast path", "Look here when you measure traffic or CPU time, because connections cost less on the fast path (`lane`) than with net/http.",
		"network_ lane_",
	},
	{
		"Credentials and certificates", "Watch these if clients have tokens or connect over TLS, because nobody can connect when the keys are too old or the certificate has expired.",
		"token_ tokens_ cached_ credentials_ jwks_ key_ certificate_",
	},
	{
		"Hooks", "Watch these if your application answers hooks, because clients wait for its answers and it may miss events.",
		"hook_",
	},
	{
		"Store", "Watch these if the daemon has a store, because they show whether the disk is fast enough and what a crash could lose.",
		"store_",
	},
	{
		"Process, logs and traces", "Look here after a start or a stop, or when log lines or traces are missing, because the daemon drops some when their reader is slow.",
		"build_ draining access_ log_ spans_",
	},
}

// groupOf returns the index in metricGroups of a metric.
func groupOf(t *testing.T, metric string) int {
	t.Helper()
	for i, g := range metricGroups {
		for name := range strings.FieldsSeq(g.names) {
			if metric == name || strings.HasSuffix(name, "_") && strings.HasPrefix(metric, name) {
				return i
			}
		}
	}
	require.Fail(t, "a metric is in no group: add its name to metricGroups", metric)
	return 0
}

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

// document returns the text of METRICS.md, and the number of metrics.
func document(t *testing.T, m *Metrics) (text string, told int) {
	t.Helper()
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	faults, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, faults, "the linter of Prometheus")
	rows := make([]string, len(metricGroups))
	for _, f := range families {
		name, ours := strings.CutPrefix(f.GetName(), prefix)
		if !ours {
			continue
		}
		told++
		require.NotEmpty(t, f.GetHelp(), f.GetName())
		var by []string
		for _, label := range f.GetMetric()[0].GetLabel() {
			by = append(by, label.GetName())
		}
		labels := ""
		if len(by) > 0 {
			labels = "{" + strings.Join(by, ",") + "}"
		}
		rows[groupOf(t, name)] += fmt.Sprintf("| `%s%s` | %s | %s |\n", f.GetName(), labels, strings.ToLower(f.GetType().String()), f.GetHelp())
	}
	var links []string
	var sections strings.Builder
	for i, g := range metricGroups {
		require.NotEmpty(t, rows[i], g.name)
		anchor := strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(g.name), ",", ""), " ", "-")
		links = append(links, fmt.Sprintf("[%s](#%s)", g.name, anchor))
		fmt.Fprintf(&sections, "\n## %s\n\n%s\n\n| metric | type | meaning |\n|---|---|---|\n%s", g.name, g.needs, rows[i])
	}
	return documentHead + strings.Join(links, ",\n") + ".\n" + documentForm + sections.String(), told
}

// described counts our metrics, including those without samples.
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
