package throttle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/webhook"
)

// modelled is a server whose back end has so many workers: more calls at a time only
// wait.
func modelled(workers int) measurer {
	return func(_ context.Context, cfg *Config, s Setting, _ loadtest.Progress) (Row, error) {
		busy := min(s.Calls, workers)
		served := milliseconds(cfg.CallTime) * max(1, float64(s.Calls)/float64(workers))
		return Row{Setting: s, Within: Times{Count: int64(busy * 11)}, Served: Times{Count: 1, MeanMS: served, P95MS: served * 1.1}}, nil
	}
}

func searching(t *testing.T, workers int, maxMean time.Duration) SearchResult {
	t.Helper()
	cfg := Default()
	cfg.MaxMean = maxMean
	r, err := search(t.Context(), cfg, quietProgress{}, modelled(workers))
	require.NoError(t, err)
	require.LessOrEqual(t, len(r.Trials), 15)
	tried := map[int]bool{}
	for _, trial := range r.Trials {
		require.False(t, tried[trial.Calls], "%d calls are tried twice", trial.Calls)
		tried[trial.Calls] = true
	}
	return r
}

// The back end's workers are what limits: fewer calls at a time leave some of them
// idle, and more only wait.
func TestASearchFindsTheKnee(t *testing.T) {
	for _, workers := range []int{1, 2, 5, 7, 24, 60, 97} {
		found := searching(t, workers, time.Minute)
		require.InDelta(t, workers, found.Calls, 1+0.1*float64(workers))
		require.LessOrEqual(t, found.Calls, workers+1)
		require.Zero(t, found.Verdict.ExitCode)
		tight := searching(t, workers, 5500*time.Millisecond)
		require.InDelta(t, workers, tight.Calls, 1+0.1*float64(workers), "with an objective that more would miss")
	}
}

// A back end without a limit serves as many as there are.
func TestASearchWithoutAKnee(t *testing.T) {
	require.GreaterOrEqual(t, searching(t, 1000, time.Minute).Calls, 95)
}

func TestASearchForWhatCannotBe(t *testing.T) {
	r := searching(t, 10, time.Second)
	require.Zero(t, r.Calls)
	require.Equal(t, loadtest.ExitMissed, r.Verdict.ExitCode)
	require.Contains(t, r.Verdict.Missed[0], "the service of calls took 5000 ms on average; at most 1000 ms is allowed")
	require.Equal(t, 1, r.Trials[len(r.Trials)-1].Calls)
}

// A promise that is broken counts as an objective that is missed, and a bound
// generator is said.
func TestWhatASearchIsTold(t *testing.T) {
	cfg := Default()
	cfg.MaxP95 = time.Minute
	model := modelled(20)
	r, err := search(t.Context(), cfg, quietProgress{}, func(ctx context.Context, c *Config, s Setting, p loadtest.Progress) (Row, error) {
		row, err := model(ctx, c, s, p)
		if s.Calls > 10 {
			row.verdict.Missed = []string{"a message was lost"}
		}
		row.verdict.GeneratorBound = []string{"late"}
		return row, err
	})
	require.NoError(t, err)
	require.Equal(t, 10, r.Calls)
	require.Equal(t, loadtest.ExitGeneratorBound, r.Verdict.ExitCode)

	broken := errors.New("broken")
	r, err = search(t.Context(), cfg, quietProgress{}, func(context.Context, *Config, Setting, loadtest.Progress) (Row, error) { return Row{}, broken })
	require.ErrorIs(t, err, broken)
	require.Empty(t, r.Trials)
}

func TestSearchesThatCannotBeMade(t *testing.T) {
	cfg := Default()
	cfg.Target, cfg.Secret = "http://127.0.0.1:1", webhook.NewSecret()
	_, err := Search(t.Context(), cfg, quietProgress{})
	require.ErrorAs(t, err, new(ConfigError))
	require.ErrorContains(t, err, "--target")
	require.ErrorContains(t, err, "--max-mean")
}
