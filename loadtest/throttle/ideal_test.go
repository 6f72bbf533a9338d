package throttle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The article's experiment: 12 calls a user, of which the last ends with the run,
// just after it.
func TestTheIdealOfTheArticle(t *testing.T) {
	cfg := Default()
	require.Equal(t, Ideal{Within: 1100, Completed: 1200, MeanMS: 5000}, cfg.ideal())
	require.Equal(t, 1100, cfg.most(Setting{100, 100}))
	require.Equal(t, 16*11, cfg.most(Setting{100, 16}))
	require.Equal(t, 10*11, cfg.most(Setting{10, 16}))
	cfg.BackendWorkers = 4
	require.Equal(t, 4*11, cfg.most(Setting{100, 100}))
}

func TestTheIdealOfUsersThatComeAndPause(t *testing.T) {
	cfg := Default()
	cfg.Users, cfg.Step = 4, Step{2, 30 * time.Second}
	require.Equal(t, Ideal{Within: 2*11 + 2*5, Completed: 2*12 + 2*6, MeanMS: 5000}, cfg.ideal())
	cfg.Step, cfg.Users, cfg.Think, cfg.Duration = Step{}, 200, 5*time.Second, time.Hour
	require.InEpsilon(t, 200*360, cfg.ideal().Completed, 0.02, "ten seconds a round, on average")
	require.Equal(t, cfg.ideal(), cfg.ideal(), "the same pauses again")
}

func TestSettingsAndStepsAreRead(t *testing.T) {
	s, err := ParseSetting("10/16")
	require.NoError(t, err)
	require.Equal(t, Setting{10, 16}, s)
	require.Equal(t, "10/16", s.String())
	for _, text := range []string{"", "10", "0/1", "1/0", "a/b", "1/2/3"} {
		_, err := ParseSetting(text)
		require.ErrorContains(t, err, "such as 10/16", text)
	}
	step, err := ParseStep("10/5s")
	require.NoError(t, err)
	require.Equal(t, Step{10, 5 * time.Second}, step)
	require.Equal(t, "10/5s", step.String())
	require.Equal(t, []time.Duration{0, 0, 5 * time.Second, 10 * time.Second}, []time.Duration{step.begin(0), step.begin(9), step.begin(10), step.begin(25)})
	for _, text := range []string{"10", "0/5s", "10/0s", "x/5s", "10/x"} {
		_, err := ParseStep(text)
		require.ErrorContains(t, err, "such as 10/5s", text)
	}
	none, err := ParseStep("")
	require.NoError(t, err)
	require.Empty(t, none.String())
	require.Zero(t, none.begin(99))
}

// What is read is written as it can be read again.
func FuzzSettingsAndSteps(f *testing.F) {
	for _, text := range []string{"10/16", "010/+16", "1/0", "/", "10/5s", "2/1h3m", "9223372036854775807/1ns"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSetting(text); err == nil {
			again, err := ParseSetting(s.String())
			require.NoError(t, err)
			require.Equal(t, s, again)
		}
		if s, err := ParseStep(text); err == nil {
			again, err := ParseStep(s.String())
			require.NoError(t, err)
			require.Equal(t, s, again)
			require.GreaterOrEqual(t, s.begin(3), time.Duration(0))
		}
	})
}
