package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// metric returns one sample of /metrics, by name and labels as written there.
func (s *served) metric(sample string) (value float64) {
	s.Helper()
	resp, err := http.Get(s.admin + "/metrics")
	require.NoError(s, err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), sample+" "); ok {
			_, err := fmt.Sscan(text, &value)
			require.NoError(s, err)
			return value
		}
	}
	require.Fail(s, "no such sample", sample)
	return 0
}

// busy is the share of a core that the process uses over a while.
func (s *served) busy(while time.Duration) float64 {
	s.Helper()
	began, cpu := time.Now(), s.metric("process_cpu_seconds_total")
	time.Sleep(while) // the interval that is measured
	return (s.metric("process_cpu_seconds_total") - cpu) / time.Since(began).Seconds()
}

// A budget far above GOMEMLIMIT is filled. The daemon has said so at its start, cuts
// histories short before the collector runs without end, refuses no publish, and lets
// sessions in again.
func TestAProcessStaysWithinGOMEMLIMIT(t *testing.T) {
	t.Parallel()
	const limit, mib = 96 << 20, 1 << 20
	posts := 600 / exhaustive.Step(2) // the fewer are 150 MiB
	s := serveProcessIn(t, []string{"GOMEMLIMIT=96MiB"}, "--memory-budget=256MiB", "--history-bytes=256MiB",
		"--history-messages=1000000", "--history-age=1h", "--message-bytes=1MiB")
	s.waitForLog("more than three quarters of GOMEMLIMIT")
	body := `"` + strings.Repeat("x", mib/2) + `"`
	most := 0.0
	for i := range posts {
		s.post(fmt.Sprintf("/v1/topics/a.%d/messages", i%50), body)
		if i%20 == 0 {
			most = max(most, s.metric("process_resident_memory_bytes"))
		}
	}
	require.Less(t, most, 1.5*limit, "the binary itself, and what comes between two looks, besides")
	require.Positive(t, s.metric(`pubsubd_history_evicted_total{reason="memory"}`))
	require.Greater(t, s.metric(`pubsubd_memory_bytes{kind="history"}`), 0.25*limit, "no more than needed went")
	s.waitForMetric("pubsubd_memory_pressure 0")
	s.post("/v1/sessions", `{"topics":["a.1"]}`)
	require.Eventually(t, func() bool { return s.busy(time.Second) < 0.5 }, patience, time.Millisecond, "the collector has ended")
}

// Without a setting, the daemon chooses a budget that fits.
func TestTheBudgetIsHalfOfGOMEMLIMIT(t *testing.T) {
	s := serveProcessIn(t, []string{"GOMEMLIMIT=200MiB"})
	require.EqualValues(t, 100<<20, s.metric("pubsubd_memory_budget_bytes"))
	s.waitForLog("memory.budget is half of GOMEMLIMIT")
	require.EqualValues(t, 512<<20, serveProcess(t).metric("pubsubd_memory_budget_bytes"))
}
