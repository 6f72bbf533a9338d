//go:build unix

package listen

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// By default clients get fewer connections than there are files, so that other parts of
// the daemon have files too.
func TestConnectionsLeaveFilesToOthers(t *testing.T) {
	for files, want := range map[OpenFiles]int{64: 48, 1024: 768, 20_000: 19_432, 1_048_576: 1_031_936, 0: 0} {
		require.Equal(t, want, files.Connections(0), fmt.Sprint(files))
		require.Equal(t, 7, files.Connections(7))
	}
	var limit syscall.Rlimit
	files := OpenFilesLimit()
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.Equal(t, limit.Max, limit.Cur, "the soft limit is the hard one")
	require.Contains(t, []OpenFiles{0, OpenFiles(limit.Max)}, files)
}
