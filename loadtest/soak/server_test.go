package soak

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that does not come up says why, and is gone.
func TestAServerThatDoesNotStartSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		command []string
		says    string
	}{
		"no such program": {[]string{"/there/is/no/such/program"}, "/there/is/no/such/program"},
		"ends at once":    {[]string{"sh", "-c", "echo 'no luck' >&2; exit 7", "sh"}, "no luck"},
		"odd addresses": {[]string{"sh", "-c", `while [ "$1" != --addresses-file ]; do shift; done; echo '{}' > "$2"; exec sleep 60`, "sh"},
			"names no public address"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := startServer(context.Background(), t.TempDir(), c.command)
			require.ErrorContains(t, err, c.says)
			require.True(t, s == nil || s.isGone())
		})
	}
}

func TestAnAlarmIsHeard(t *testing.T) {
	var said tail
	_, _ = said.Write([]byte(`{"level":"warn","msg":"all is well"}` + "\n"))
	require.Empty(t, said.alarm())
	_, _ = said.Write([]byte("WARNING: DATA RACE\nWrite at 0x00c0\n"))
	require.Contains(t, said.alarm(), "Write at")
	_, _ = said.Write(make([]byte, 2*tailBytes))
	require.Len(t, said.kept, tailBytes)
}
