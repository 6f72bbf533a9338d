package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

func wantGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "run with -update if it is meant")
}

func TestFlagsThatCannotBeObeyed(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"long-poll-5000"}, {"-no-such-flag"}} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, "%q", args)
	}
}

func TestAQuickRunIsOneRound(t *testing.T) {
	o, err := parse([]string{"-quick", "-rounds", "4"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 1, o.rounds)
}

func TestAQuickRunDoesNotTouchWhatIsKept(t *testing.T) {
	quick, err := parse([]string{"-quick"}, io.Discard)
	require.NoError(t, err)
	full, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.NotEqual(t, full.out, quick.out)
	require.NotEqual(t, full.work, quick.work)
}

func TestRemainingTimeLearnsFromWhatIsDone(t *testing.T) {
	s := step{scenario: scenario{lasts: 10 * time.Second}}
	p := newPace([]step{s, s, s})
	require.Equal(t, 30*time.Second, p.left())
	p.done(s, 20*time.Second)
	require.Equal(t, 40*time.Second, p.left())
}
