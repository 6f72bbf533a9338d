package checks

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A board is what of a dashboard is looked at here.
type board struct {
	UID, Title string
	Panels     []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ H, W, X, Y int }
		Targets                  []struct{ Expr, LegendFormat string }
	}
	Annotations struct{ List []struct{ Expr string } }
}

func dashboard(t *testing.T) board {
	t.Helper()
	text, err := os.ReadFile(deploy + "grafana/pubsubd.json")
	require.NoError(t, err)
	var b board
	require.NoError(t, json.NewDecoder(bytes.NewReader(text)).Decode(&b))
	return b
}

// interpolated is an expression as Grafana would send it.
func interpolated(expression string) string {
	return strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*").Replace(expression)
}

func TestThePanelsAreWhole(t *testing.T) {
	b := dashboard(t)
	require.Equal(t, "pubsubd", b.UID)
	ids, places := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, places[at], "%s lies over another", p.Title)
				places[at] = p.Title
			}
		}
		require.NotEmpty(t, p.Title)
		if p.Type != "row" {
			require.NotEmpty(t, p.Description, p.Title)
			require.NotEmpty(t, p.Targets, p.Title)
		}
	}
}

func TestEveryExpressionOfTheDashboardIsOfMetricsThatExist(t *testing.T) {
	d := serve(t, "--history-messages=1", `--auth-anonymous=[{"topics":[">"],"allow":["subscribe","publish"]}]`) // with it, credentials are counted
	d.live()
	asked := map[string]string{}
	b := dashboard(t)
	check := func(title, expression string) {
		for _, name := range metricsOf(t, interpolated(expression)) {
			asked[name] = title
		}
	}
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			require.Contains(t, target.Expr, `{job=~"$job",instance=~"$instance"`, p.Title)
			check(p.Title, target.Expr)
		}
	}
	for _, a := range b.Annotations.List {
		check("an annotation", a.Expr)
	}
	d.wantMetrics(asked)
}

// What an operator looks for is there.
func TestTheDashboardShowsWhatMatters(t *testing.T) {
	shown := map[string]bool{}
	for _, p := range dashboard(t).Panels {
		for _, target := range p.Targets {
			for _, name := range metricsOf(t, interpolated(target.Expr)) {
				shown[name] = true
			}
		}
	}
	for _, name := range []string{
		"pubsubd_messages_published_total", "pubsubd_frames_delivered_total", "pubsubd_publish_to_write_seconds_bucket",
		"pubsubd_sessions", "pubsubd_polls_parked", "pubsubd_subscriptions_behind", "pubsubd_session_queued_frames",
		"pubsubd_session_unacked_frames", "pubsubd_gaps_total", "pubsubd_requests_refused_total", "pubsubd_memory_bytes",
		"pubsubd_memory_budget_bytes", "pubsubd_certificate_expires_timestamp_seconds", "pubsubd_limit", "pubsubd_in_use", "pubsubd_limited_total", "pubsubd_waiting", "pubsubd_wait_seconds_bucket",
		"pubsubd_connections_ended_total", "pubsubd_hook_dead_letters_total", "pubsubd_calls_total", "process_cpu_seconds_total", "pubsubd_network_bytes_total",
		"pubsubd_presence_members", "pubsubd_presence_events_total", "pubsubd_credentials_refused_total",
		"pubsubd_store_sync_seconds_bucket", "pubsubd_store_commit_seconds_bucket", "pubsubd_store_bytes", "pubsubd_store_bytes_limit", "pubsubd_store_refused_total",
		"pubsubd_store_faulty", "pubsubd_store_segments", "pubsubd_store_checkpoints_total", "pubsubd_store_unsynced_seconds", "pubsubd_store_recovery_seconds", "pubsubd_store_lost_tails_total",
	} {
		require.True(t, shown[name], name)
	}
}
