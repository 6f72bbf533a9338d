package checks

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"
)

// rules are those of a file, checked as promtool check rules does.
func rules(t *testing.T, file string) []rulefmt.Rule {
	t.Helper()
	groups, wrong := rulefmt.ParseFile(deploy+"prometheus/"+file, false, model.UTF8Validation, promQL)
	require.Empty(t, wrong)
	var all []rulefmt.Rule
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// recorded are the expressions of the recording rules, by name.
func recorded(t *testing.T) map[string]string {
	t.Helper()
	expressions := map[string]string{}
	for _, rule := range rules(t, "recording.yaml") {
		expressions[rule.Record] = rule.Expr
	}
	return expressions
}

func TestEveryMetricOfTheRulesExists(t *testing.T) {
	d := serve(t, "--history-messages=1")
	d.live()
	asked := map[string]string{}
	for _, rule := range append(rules(t, "recording.yaml"), rules(t, "alerts.yaml")...) {
		for _, name := range metricsOf(t, rule.Expr) {
			asked[name] = rule.Record + rule.Alert
		}
	}
	for name := range recorded(t) {
		delete(asked, name)
	}
	for _, name := range prometheusOwn {
		delete(asked, name)
	}
	d.wantMetrics(asked)
}

func TestEveryAlertSaysWhatItIsAndWhatToDo(t *testing.T) {
	for _, rule := range rules(t, "alerts.yaml") {
		require.True(t, strings.HasPrefix(rule.Alert, "Pubsubd"), rule.Alert)
		require.Contains(t, []string{"critical", "warning", "info"}, rule.Labels["severity"], rule.Alert)
		require.Len(t, rule.Annotations, 3, rule.Alert)
		for _, name := range []string{"summary", "description", "action"} {
			text := rule.Annotations[name]
			require.True(t, strings.HasSuffix(text, "."), "%s: %s: %q", rule.Alert, name, text)
		}
	}
}

// The scrape job loads the rules, and its name is one that they look for.
func TestTheScrapeJobLoadsTheRules(t *testing.T) {
	text, err := os.ReadFile(deploy + "prometheus/prometheus.yml")
	require.NoError(t, err)
	for _, want := range []string{"- recording.yaml\n", "- alerts.yaml\n", "job_name: pubsubd\n"} {
		require.Contains(t, string(text), want)
	}
}

// A trial is series, one value a minute, and the alert that must fire over them in
// the end, or must not.
type trial struct {
	alert  string
	series string
	fires  bool
	labels string // of what fires, beside the alert's own, if they matter
}

const on = `job="pubsubd",instance="a"`

// load writes series: each line's {} gets the target's labels.
func load(lines ...string) string {
	return strings.ReplaceAll(strings.Join(lines, "\n"), "{", "{"+on+",")
}

// calls is what fifty calls a second count, so that shares have a whole.
const calls = `pubsubd_calls_total{call="poll",way="lane"} 0+6000x100`

// near is how many there are where there may be 100 sessions, 200 topics and 400
// subscriptions.
func near(sessions, topics, subscriptions int) string {
	return load(
		fmt.Sprintf(`pubsubd_in_use{limit="sessions"} %dx100`, sessions), `pubsubd_limit{limit="sessions"} 100x100`,
		fmt.Sprintf(`pubsubd_topics{} %dx100`, topics), `pubsubd_limit{limit="topics"} 200x100`,
		fmt.Sprintf(`pubsubd_subscriptions{} %dx100`, subscriptions), `pubsubd_limit{limit="all_subscriptions"} 400x100`,
		`pubsubd_in_use{limit="connections"} 1000x100`, `pubsubd_limit{limit="connections"} 0x100`)
}

// waits are wait_seconds's: of so many that waited each minute, nine in ten over half
// a second, or none.
func waits(perMinute int, long bool) string {
	short := perMinute
	if long {
		short = 0
	}
	return load(
		fmt.Sprintf(`pubsubd_wait_seconds_bucket{limit="calls",le="0.256"} 0+%dx100`, short),
		fmt.Sprintf(`pubsubd_wait_seconds_bucket{limit="calls",le="1.024"} 0+%dx100`, perMinute),
		fmt.Sprintf(`pubsubd_wait_seconds_bucket{limit="calls",le="+Inf"} 0+%dx100`, perMinute),
		fmt.Sprintf(`pubsubd_wait_seconds_count{limit="calls"} 0+%dx100`, perMinute))
}

// buckets are publish_to_write_seconds's: of 60 messages a minute, so many within
// half a second.
func buckets(within int) string {
	return load(
		fmt.Sprintf(`pubsubd_publish_to_write_seconds_bucket{transport="longpoll",le="0.5"} 0+%dx100`, within),
		`pubsubd_publish_to_write_seconds_bucket{transport="longpoll",le="5"} 0+60x100`,
		`pubsubd_publish_to_write_seconds_bucket{transport="longpoll",le="+Inf"} 0+60x100`)
}

var trials = []trial{
	{"PubsubdDown", load(`up{} 1x90 0x10`), true, on},
	{"PubsubdDown", load(`up{} 1x98 0 1`), false, ""},
	{"PubsubdMissing", `up{job="other"} 1x100`, true, ""},
	{"PubsubdMissing", load(`up{} 0x100`), false, ""},
	{"PubsubdRestartsOften", load(`process_start_time_seconds{} 1x80 2x5 3x5 4x10`), true, on},
	{"PubsubdRestartsOften", load(`process_start_time_seconds{} 1x80 2x20`), false, ""},
	{"PubsubdDrainsTooLong", load(`pubsubd_draining{} 0x90 1x10`), true, on},
	{"PubsubdDrainsTooLong", load(`pubsubd_draining{} 0x99 1`), false, ""},
	{"PubsubdLosesMessages", load(`pubsubd_gaps_total{reason="slow"} 0+1x100`), true, on + `,reason="slow"`},
	{"PubsubdLosesMessages", load(`pubsubd_gaps_total{reason="deleted"} 0+1x100`, `pubsubd_gaps_total{reason="conflated"} 0+1x100`, `pubsubd_gaps_total{reason="slow"} 7x100`), false, ""},
	{"PubsubdPositionsAreOfAnotherDaemon", load(`pubsubd_gaps_total{reason="restarted"} 0+1x100`, `process_start_time_seconds{} 0x100`), true, on},
	{"PubsubdPositionsAreOfAnotherDaemon", load(`pubsubd_gaps_total{reason="restarted"} 0+1x100`, `process_start_time_seconds{} 5000x100`), false, ""},
	{"PubsubdSubscribersBehind", load(`pubsubd_subscriptions{} 1000x100`, `pubsubd_subscriptions_behind{} 200x100`), true, on},
	{"PubsubdSubscribersBehind", load(`pubsubd_subscriptions{} 50x100`, `pubsubd_subscriptions_behind{} 20x100`), false, ""},
	{"PubsubdRefusesForLoad", load(calls, `pubsubd_requests_refused_total{code="overloaded"} 0+100x100`), true, on},
	{"PubsubdRefusesForLoad", load(calls, `pubsubd_requests_refused_total{code="stale_ack"} 0+100x100`, `pubsubd_requests_refused_total{code="limited"} 0+1x100`), false, ""},
	{"PubsubdFails", load(`pubsubd_requests_refused_total{code="internal"} 0x95 1x5`), true, on + `,code="internal"`},
	{"PubsubdFails", load(`pubsubd_requests_refused_total{code="internal"} 3x100`), false, ""},
	{"PubsubdRefusalsRise", load(`pubsubd_requests_refused_total{code="unauthorized"} 0x60 0+600x40`), true, on + `,code="unauthorized"`},
	{"PubsubdRefusalsRise", load(`pubsubd_requests_refused_total{code="unauthorized"} 0+600x100`), false, ""},
	{"PubsubdDropsEvents", load(`pubsubd_hook_dead_letters_total{reason="full"} 0+60x100`), true, on + `,reason="full"`},
	{"PubsubdDropsEvents", load(`pubsubd_hook_dead_letters_total{reason="stopped"} 0+60x100`, `pubsubd_hook_dead_letters_total{reason="failed"} 7x100`), false, ""},
	{"PubsubdKeysTooOld", load(`pubsubd_jwks_age_seconds{} 0+60x100`), true, on},
	{"PubsubdKeysTooOld", load(`pubsubd_jwks_age_seconds{} 300x100`), false, ""},
	{"PubsubdCannotWrite", load(`pubsubd_store_faulty{} 0x90 1x10`), true, on},
	{"PubsubdCannotWrite", load(`pubsubd_store_faulty{} 1x98 0 1`), false, ""},
	{"PubsubdStoreRefuses", load(`pubsubd_store_refused_total{reason="waiting"} 0+1x100`, `pubsubd_store_refused_total{reason="full"} 0x100`), true, on + `,reason="waiting"`},
	{"PubsubdStoreRefuses", load(`pubsubd_store_refused_total{reason="full"} 7x100`), false, ""},
	{"PubsubdLostTail", load(`pubsubd_store_lost_tails_total{} 1x100`, `process_start_time_seconds{} 5000x100`), true, on},
	{"PubsubdLostTail", load(`pubsubd_store_lost_tails_total{} 1x100`, `process_start_time_seconds{} 0x100`), false, ""},
	{"PubsubdLostTail", load(`pubsubd_store_lost_tails_total{} 0x100`, `process_start_time_seconds{} 5000x100`), false, ""},
	{"PubsubdRefusesAtLimit", load(`pubsubd_limited_total{limit="calls"} 0+1x100`), true, on + `,limit="calls"`},
	{"PubsubdRefusesAtLimit", load(`pubsubd_limited_total{limit="rates.polls.all"} 0+1x100`), true, on + `,limit="rates.polls.all"`},
	{"PubsubdRefusesAtLimit", load(`pubsubd_limited_total{limit="hooks.publish"} 0+1x100`), true, on + `,limit="hooks.publish"`},
	{"PubsubdRefusesAtLimit", load(`pubsubd_limited_total{limit="rates.polls.principal"} 0+9x100`, `pubsubd_limited_total{limit="topics.chat.rate"} 0+9x100`,
		`pubsubd_limited_total{limit="address_calls"} 0+9x100`, `pubsubd_limited_total{limit="pending_messages_per_session"} 0+9x100`, `pubsubd_limited_total{limit="calls"} 7x100`), false, ""},
	{"PubsubdCallsWait", waits(600, true), true, on + `,limit="calls"`},
	{"PubsubdCallsWait", waits(600, false), false, ""},
	{"PubsubdCallsWait", waits(6, true), false, ""},
	{"PubsubdClientsLimited", load(`pubsubd_limited_total{limit="rates.polls.address"} 0+120x100`), true, on + `,limit="rates.polls.address"`},
	{"PubsubdClientsLimited", load(`pubsubd_limited_total{limit="rates.polls.address"} 0+6x100`, `pubsubd_limited_total{limit="calls"} 0+600x100`), false, ""},
	{"PubsubdEndsConnections", load(`pubsubd_connections_ended_total{reason="slow_head"} 0+1200x100`), true, on + `,reason="slow_head"`},
	{"PubsubdEndsConnections", load(`pubsubd_connections_ended_total{reason="slow_head"} 0+60x100`, `pubsubd_connections_ended_total{reason="silent"} 0+60x100`), false, ""},
	{"PubsubdNearLimit", near(90, 100, 200), true, on + `,limit="sessions"`},
	{"PubsubdNearLimit", near(70, 180, 200), true, on + `,limit="topics"`},
	{"PubsubdNearLimit", near(70, 100, 360), true, on + `,limit="all_subscriptions"`},
	{"PubsubdNearLimit", near(70, 150, 300), false, ""},
	{"PubsubdFilesNearLimit", load(`process_open_fds{} 900x100`, `process_max_fds{} 1000x100`), true, on},
	{"PubsubdFilesNearLimit", load(`process_open_fds{} 700x100`, `process_max_fds{} 1000x100`), false, ""},
	{"PubsubdCertificateExpires", load(`pubsubd_certificate_expires_timestamp_seconds{} 1200000x100`), true, on}, // the trial ends at 6000
	{"PubsubdCertificateExpires", load(`pubsubd_certificate_expires_timestamp_seconds{} 2600000x100`), false, ""},
	{"PubsubdCertificateExpires", load(`pubsubd_certificate_expires_timestamp_seconds{} 0x100`), false, ""},
	{"PubsubdCertificateFails", load(`pubsubd_certificate_failures_total{} 0x60 1x40`), true, on},
	{"PubsubdCertificateFails", load(`pubsubd_certificate_failures_total{} 3x100`), false, ""},
	{"PubsubdMemoryNearBudget", load(`pubsubd_memory_bytes{kind="history"} 80x100`, `pubsubd_memory_bytes{kind="topics"} 15x100`, `pubsubd_memory_budget_bytes{} 100x100`), true, on},
	{"PubsubdMemoryNearBudget", load(`pubsubd_memory_bytes{kind="history"} 80x100`, `pubsubd_memory_bytes{kind="topics"} 5x100`, `pubsubd_memory_budget_bytes{} 100x100`), false, ""},
	{"PubsubdMemoryPresses", load(`pubsubd_memory_pressure{} 0x90 1x10`), true, on},
	{"PubsubdMemoryPresses", load(`pubsubd_memory_pressure{} 0x99 2`), false, ""},
	{"PubsubdDeliversLate", buckets(30), true, on + `,transport="longpoll"`},
	{"PubsubdDeliversLate", buckets(60), false, ""},
	{"PubsubdTakesTheLongWay", load(`pubsubd_calls_total{call="poll",way="lane"} 0+600x100`, `pubsubd_calls_total{call="poll",way="net/http"} 0+6000x100`), true, on},
	{"PubsubdTakesTheLongWay", load(calls, `pubsubd_calls_total{call="poll",way="net/http"} 0+60x100`), false, ""},
}

// Each alert fires when it should, and does not when it should not. Evaluated as
// Prometheus does: it fires for labels that have been there for all of its time.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 100_000)
	alerts := map[string]rulefmt.Rule{}
	for _, rule := range rules(t, "alerts.yaml") {
		alerts[rule.Alert] = rule
	}
	tried := map[string][]bool{}
	for _, c := range trials {
		t.Run(fmt.Sprint(c.alert, " ", c.fires), func(t *testing.T) {
			store := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(c.series, "\n", "\n  "))
			t.Cleanup(func() { _ = store.Close() })
			firing := fires(t, engine, store, alerts[c.alert], recorded(t))
			require.Equal(t, c.fires, len(firing) == 1, "%v", firing)
			if c.labels != "" {
				require.Equal(t, "{"+strings.ReplaceAll(sorted(c.labels), ",", ", ")+"}", firing[0])
			}
		})
		tried[c.alert] = append(tried[c.alert], c.fires)
	}
	for name := range alerts {
		require.Subset(t, tried[name], []bool{true, false}, name)
	}
}

func sorted(labels string) string {
	all := strings.Split(labels, ",")
	slices.Sort(all)
	return strings.Join(all, ",")
}

// lastMinute is when the series of trials end.
const lastMinute = 100

// fires returns the labels for which an alert fires at the last minute.
func fires(t *testing.T, engine *promql.Engine, store storage.Queryable, alert rulefmt.Rule, recorded map[string]string) []string {
	t.Helper()
	require.NotEmpty(t, alert.Expr)
	expression := alert.Expr
	for name, is := range recorded {
		expression = strings.ReplaceAll(expression, name, "("+is+")")
	}
	counts := map[string]int{}
	minutes := int(time.Duration(alert.For)/time.Minute) + 1
	for ago := range minutes {
		at := time.Unix(0, 0).Add(time.Duration(lastMinute-ago) * time.Minute)
		query, err := engine.NewInstantQuery(context.Background(), store, nil, expression, at)
		require.NoError(t, err)
		result := query.Exec(context.Background())
		vector, err := result.Vector()
		require.NoError(t, err)
		for _, s := range vector {
			counts[s.Metric.DropReserved(func(name string) bool { return name == model.MetricNameLabel }).String()]++
		}
		query.Close()
	}
	var firing []string
	for of, n := range counts {
		if n == minutes {
			firing = append(firing, of)
		}
	}
	return firing
}
