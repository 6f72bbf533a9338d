package loadtest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// good is a result without fault.
func good() Result {
	return Result{
		Deliveries: Deliveries{Expected: 100, Delivered: 100},
		Bursts:     &Bursts{Total: 10, InTime: 10},
		Latency:    stats.Summary{P99MS: 40},
		Generator: Generator{
			Thread:         Thread{Busy: 0.3, BusyInBursts: 0.6, WaitedInBursts: 0.35},
			LagThresholdMS: 10,
			ScheduleLag:    stats.Summary{P99MS: 1},
		},
	}
}

func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Result)
		exit   int
		bound  bool
	}{
		"all fine, though busy in bursts": {func(*Result) {}, ExitOK, false},
		"an error":                        {func(r *Result) { r.Errors = []Failure{{Kind: "k", Count: 1}} }, ExitFailed, false},
		"an error and loss": {func(r *Result) {
			r.Errors = []Failure{{Kind: "k", Count: 1}}
			r.Deliveries.Lost = 1
		}, ExitFailed, false},
		"nothing published":       {func(r *Result) { r.Deliveries = Deliveries{} }, ExitFailed, false},
		"loss":                    {func(r *Result) { r.Deliveries.Lost = 1 }, ExitMissed, false},
		"loss as allowed":         {func(r *Result) { r.Deliveries.Lost, r.Parameters.MaxLoss = 1, 1 }, ExitOK, false},
		"loss beyond the allowed": {func(r *Result) { r.Deliveries.Lost, r.Parameters.MaxLoss = 2, 1 }, ExitMissed, false},
		"a duplicate":             {func(r *Result) { r.Deliveries.Duplicates = 1 }, ExitMissed, false},
		"disorder":                {func(r *Result) { r.Deliveries.Disordered = 1 }, ExitMissed, false},
		"another epoch":           {func(r *Result) { r.Deliveries.EpochChanges = 1 }, ExitMissed, false},
		"a gap that lost nothing": {func(r *Result) { r.Deliveries.Gaps = map[string]int64{"slow": 1} }, ExitOK, false},
		"p99 at the objective":    {func(r *Result) { r.Parameters.MaxP99MS = 40 }, ExitOK, false},
		"p99 over it":             {func(r *Result) { r.Parameters.MaxP99MS = 39 }, ExitMissed, false},
		"late and busy in bursts": {func(r *Result) { r.Bursts.InTime = 9 }, ExitMissed, true},
		"late, not busy": {func(r *Result) {
			r.Bursts.InTime = 9
			r.Generator.Thread.WaitedInBursts = 0.1
		}, ExitMissed, false},
		"busy":                {func(r *Result) { r.Generator.Thread.Busy = 0.91 }, ExitGeneratorBound, true},
		"waiting for a core":  {func(r *Result) { r.Generator.Thread.Waited = 0.61 }, ExitGeneratorBound, true},
		"behind its schedule": {func(r *Result) { r.Generator.ScheduleLag.P99MS = 10.1 }, ExitGeneratorBound, true},
		"busy and lossy": {func(r *Result) {
			r.Generator.Thread.Busy = 0.91
			r.Deliveries.Lost = 1
		}, ExitMissed, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			c.change(&r)
			r.judge()
			require.Equal(t, c.exit, ExitCode(r), "%+v", r.Verdict)
			require.Equal(t, c.exit, r.Verdict.ExitCode)
			require.Equal(t, c.bound, r.GeneratorBound())
			require.Equal(t, c.exit == ExitFailed || c.exit == ExitMissed, len(r.Failed()) > 0)
		})
	}
}

func TestLagThreshold(t *testing.T) {
	require.Equal(t, 10*time.Millisecond, lagThreshold(time.Second, 5*time.Millisecond), "never tighter")
	require.Equal(t, 50*time.Millisecond, lagThreshold(time.Second, 100*time.Millisecond), "half of the latency")
	require.Equal(t, 100*time.Millisecond, lagThreshold(time.Second, time.Minute), "a tenth of the period")
	require.Equal(t, 30*time.Second, lagThreshold(0, time.Minute), "no period")
}

func TestAServerThatIsFoundDeadAfterTheTestFailsIt(t *testing.T) {
	r := good()
	r.Scenario = "broadcast"
	r.judge()
	require.NoError(t, r.alsoFailed(nil, nil))
	require.Equal(t, ExitOK, r.Verdict.ExitCode)
	dead := errors.New("exit status 2")
	require.ErrorIs(t, r.alsoFailed(nil, dead), dead)
	require.Equal(t, ExitFailed, r.Verdict.ExitCode)
	require.Equal(t, []string{"server: 1, the first: exit status 2"}, r.Verdict.Failed)
}
