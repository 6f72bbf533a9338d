package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

// Who says no budget has one that fits.
func TestTheBudgetIsHalfOfGOMEMLIMIT(t *testing.T) {
	s := serveProcessIn(t, []string{"GOMEMLIMIT=200MiB"})
	require.EqualValues(t, 100<<20, s.metric("pubsubd_memory_budget_bytes"))
	require.Contains(t, s.stderr.String(), "memory.budget is half of GOMEMLIMIT")
	require.EqualValues(t, 512<<20, serveProcess(t).metric("pubsubd_memory_budget_bytes"))
}
