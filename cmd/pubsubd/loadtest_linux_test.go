package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Linux tells a child that its parent was killed.
func TestAStartedServerDoesNotOutliveAKilledLoadTest(t *testing.T) {
	endLoadTest(t, syscall.SIGKILL)
}

// Only on Linux is a process asked for its CPU.
func TestAProcessThatIsNotThereIsSaidBeforeTheTest(t *testing.T) {
	r := run(t, nil, "loadtest", "broadcast", "--clients=1", "--target=http://127.0.0.1:1", "--server-pid=999999999")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "--server-pid")
}
