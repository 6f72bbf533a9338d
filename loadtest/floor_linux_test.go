package loadtest

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/floor"
)

func TestTheFloorIsMeasured(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"floor", "floor-stream"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			wantCleanForeign(t, dialect, func() string { return startFloor(t) })
		})
	}
}

func startFloor(t *testing.T) string {
	t.Helper()
	s, err := floor.Listen("127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- s.Serve() }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-ended)
	})
	return "http://" + s.Addr().String()
}

// A server's workers are children of the process that was named.
func TestDescendantsCount(t *testing.T) {
	child := exec.Command("sh", "-c", "sleep 60 & wait")
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		for _, pid := range family(child.Process.Pid)[1:] {
			p, _ := os.FindProcess(pid)
			_ = p.Kill()
		}
		_ = child.Wait()
	})
	require.Eventually(t, func() bool { return len(family(child.Process.Pid)) == 2 }, patience, 10*time.Millisecond)
	require.Subset(t, family(os.Getpid()), family(child.Process.Pid))
	require.Greater(t, processesResident(child.Process.Pid), int64(1000))
	require.Zero(t, processesResident(0))
}
