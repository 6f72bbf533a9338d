package scenarios

import (
	"context"
	"errors"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

// fakeTest is one that comes to an end of its own at once.
type fakeTest struct {
	cfg  loadtest.Common
	ends func() (Outcome, error)
}

func (f *fakeTest) bind(*pflag.FlagSet)      {}
func (f *fakeTest) common() *loadtest.Common { return &f.cfg }
func (f *fakeTest) check() error             { return nil }
func (f *fakeTest) run(context.Context, loadtest.Progress) (Outcome, error) {
	return f.ends()
}

func judged(v loadtest.Verdict) func() (Outcome, error) {
	return func() (Outcome, error) {
		return Outcome{Result: &loadtest.Result{Scenario: "collab", Verdict: v}}, nil
	}
}

func suiteOf(ends ...func() (Outcome, error)) *Suite {
	s := &Suite{Name: "mine"}
	for _, end := range ends {
		s.Runs = append(s.Runs, &Run{Name: "r", Kind: Collab, test: &fakeTest{ends: end}})
	}
	return s
}

func codes(r Result) []int {
	var all []int
	for i := range r.Runs {
		all = append(all, r.Runs[i].ExitCode)
	}
	return append(all, r.ExitCode)
}

// A run that cannot be made, or that fails, does not keep the next from being
// made; the exit code is the worst.
func TestOneRunThatFailsDoesNotStopTheRest(t *testing.T) {
	well, bound := judged(loadtest.Verdict{}), judged(loadtest.Verdict{GeneratorBound: []string{"busy"}})
	missed := judged(loadtest.Verdict{Missed: []string{"1 of 5 deliveries lost"}})
	impossible := func() (Outcome, error) { return Outcome{}, errors.New("connection refused") }
	for _, c := range []struct {
		suite *Suite
		want  []int
	}{
		{suiteOf(well, well), []int{0, 0, 0}},
		{suiteOf(bound, well), []int{4, 0, 4}},
		{suiteOf(missed, bound, well), []int{3, 4, 0, 3}},
		{suiteOf(impossible, missed, well), []int{1, 3, 0, 1}},
	} {
		r, err := c.suite.Run(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, c.want, codes(r))
	}
	r, _ := suiteOf(impossible, well).Run(t.Context(), nil)
	require.Equal(t, "connection refused", r.Runs[0].Error)
	require.Nil(t, r.Runs[0].Result)
}

func TestAnInterruptedSuiteMakesNoMoreRuns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ends := func() (Outcome, error) { cancel(); return judged(loadtest.Verdict{})() }
	r, err := suiteOf(ends, judged(loadtest.Verdict{})).Run(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "not started: the test was interrupted", r.Runs[1].Error)
	require.Equal(t, []int{0, 1, 1}, codes(r))
}

func TestWhatIsChangedIsRemembered(t *testing.T) {
	s, err := Preset("silverlight3")
	require.NoError(t, err)
	require.NoError(t, s.Change("5", "rounds", "bursts"))
	require.NoError(t, s.Change("batch", "mode"))
	for _, r := range s.Runs {
		key := map[string]string{Collab: "rounds", BroadcastSearch: "bursts"}[r.Kind]
		require.Equal(t, []Change{{Key: key, From: "100", To: "5"}}, r.changes, "the mode is the same as before")
		r.Common().ServerCommand = []string{"serve"}
	}
	require.NoError(t, s.Check())
	require.ErrorContains(t, s.Change("1s", "warmup"), "--warmup: no run of silverlight3 has this parameter")
	require.ErrorContains(t, s.Change("five", "rounds"), `--rounds: "five": want a whole number`)
	require.NoError(t, s.Change("0", "rounds"))
	require.ErrorContains(t, s.Check(), "silverlight3: run collab-100x5-1s: --rounds: must be at least 1 and less than a million; got 0")
}
