package throttle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// A generator whose own answers come late measures itself.
func TestLateBackendsAreSaid(t *testing.T) {
	cfg := Default()
	judged := func(late time.Duration, busy float64) Verdict {
		b := &backend{late: stats.NewLatency()}
		b.late.Record(late)
		r := Row{Setting: Setting{1, 1}, Busy: busy, Completed: Times{Count: 1}}
		r.judge(&trial{cfg: &cfg, backend: b}, newBook(time.Second, time.Second))
		r.verdict.conclude()
		return r.verdict
	}
	require.Zero(t, judged(20*time.Millisecond, 0.5).ExitCode)
	late := judged(40*time.Millisecond, 0.5)
	require.Equal(t, loadtest.ExitGeneratorBound, late.ExitCode)
	require.Equal(t, []string{"1/1: the back end of the test answered 40.0 ms late on average; at most 25.0 ms is allowed: " + relief}, late.GeneratorBound)
	require.Equal(t, []string{"1/1: the generator was 95 % busy: " + relief}, judged(0, 0.95).GeneratorBound)
	cfg.CallTime = 100 * time.Millisecond
	require.Zero(t, judged(9*time.Millisecond, 0).ExitCode, "of short calls no more is asked than timers do")
	require.Equal(t, loadtest.ExitGeneratorBound, judged(12*time.Millisecond, 0).ExitCode)
}
