package main

import (
	"flag"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The test binary is also the roles that a run starts.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
	}
	leaktest.Main(m)
}

func TestFlagsThatCannotBeObeyed(t *testing.T) {
	for _, args := range [][]string{
		{"stray"}, {"-no-such-flag"}, {"-only", "nothing"}, {"-victims", "0"}, {"-victims", "100000"},
		{"-lasts", "1500ms"}, {"-lasts", "0s"}, {"-settle", "-1s"}, {"-memory-limit", "0"}, {"-config", "no-such-file"},
	} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, "%q", args)
	}
}

func TestAQuickRunIsSmallAndDoesNotTouchWhatIsKept(t *testing.T) {
	quick, err := parse([]string{"-quick"}, io.Discard)
	require.NoError(t, err)
	full, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, keptResults, full.out)
	require.Equal(t, quickResults, quick.out)
	require.Less(t, quick.count, full.count)
	require.Less(t, quick.lasts, full.lasts)
	said, err := parse([]string{"-quick", "-victims", "70", "-lasts", "2s", "-out", "x"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 70, said.count)
	require.Equal(t, 2*time.Second, said.lasts)
	require.Equal(t, "x", said.out)
}

func TestAttacksAreChosenByName(t *testing.T) {
	o, err := parse([]string{"-only", "topics,guesses"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.attacks, 2)
	require.Equal(t, "topics", o.attacks[0].name)
}
