//go:build unix

package daemon

import (
	"bytes"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// startGroup runs a program in its own process group. stop kills the whole group.
func startGroup(t *testing.T, path string, arguments ...string) (stop func()) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(path, arguments...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = surely // a process that left the group may keep the output open
	require.NoError(t, cmd.Start())
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %s", path, &said)
		}
	}
}
