package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

func TestATestOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"broadcast": {"broadcast", "--clients=21", "--period=500ms", "--bursts=3"},
		"steady":    {"collab", "--pattern=steady", "--topics=5", "--period=100ms", "--warmup=100ms", "--duration=500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, nil, append(append([]string{"loadtest"}, args...), "--settle=10ms", "--processes=2", "--json=-")...)
			result := wantCarried(t, r, r.stdout)
			require.Len(t, result.Agents, 2)
			require.NotEqual(t, result.Agents[0].PID, result.Agents[1].PID)
			require.Equal(t, result.Parameters.Clients, result.Agents[0].Clients+result.Agents[1].Clients)
			require.Positive(t, result.Deliveries.Expected)
			require.Equal(t, result.Deliveries.Expected, result.Deliveries.Delivered)
			require.Zero(t, result.Deliveries.Duplicates+result.Deliveries.Disordered)
			for _, a := range result.Agents {
				require.True(t, a.Started)
				wantGone(t, a.PID)
			}
		})
	}
}

// The point of it: more clients than one process may have open files.
func TestMoreClientsThanOneProcessHasOpenFiles(t *testing.T) {
	t.Parallel()
	s := serveProcess(t)
	const clients = 300
	limited := func(args ...string) ran {
		script := `ulimit -n 250 && exec "$0" "$@"`
		return runCommand(t, exec.CommandContext(t.Context(), "sh", append([]string{"-c", script, binary, "loadtest", "broadcast",
			fmt.Sprintf("--clients=%d", clients), "--target", s.public, "--period=500ms", "--bursts=2", "--settle=0s", "--json=-"}, args...)...))
	}
	r := limited()
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "the limit in force is 250")
	r = limited("--processes=3")
	require.EqualValues(t, 4*clients, wantCarried(t, r, r.stdout).Deliveries.Delivered)
}

// startAgent starts one with the given token, and returns it and its address.
func startAgent(t *testing.T, token string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "loadtest", "agent", "--listen=127.0.0.1:0")
	cmd.Env = []string{loadtest.AgentTokenVariable + "=" + token}
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.NotContains(t, line, token)
	_, address, ok := strings.Cut(strings.TrimSpace(line), "listens on ")
	require.True(t, ok, line)
	return cmd, address
}

func TestAgentsOfTheCommandLine(t *testing.T) {
	t.Parallel()
	const token = "not-to-be-seen"
	_, one := startAgent(t, token)
	cmd, two := startAgent(t, token)
	agents := "--agents=" + one + "," + two
	know := []string{loadtest.AgentTokenVariable + "=" + token}

	r := run(t, []string{loadtest.AgentTokenVariable + "=a-guess"}, "loadtest", "broadcast", "--clients=4", agents)
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "wrong token")
	require.NotContains(t, r.stderr, "a-guess")

	file := filepath.Join(t.TempDir(), "result.json")
	r = run(t, know, "loadtest", "broadcast", "--clients=4", "--period=500ms", "--bursts=2", "--settle=0s", "--json="+file, agents)
	wantCarried(t, r, written(t, file))
	require.Contains(t, r.stdout, "agent 2")
	require.Contains(t, r.stdout, "16 of 16")
	require.NotContains(t, r.stdout+r.stderr, token)

	// One of them is killed in the middle: the test has failed, and says who.
	require.NoError(t, os.Remove(file))
	killed := exec.CommandContext(t.Context(), binary, "loadtest", "broadcast", "--clients=4", "--period=100ms", "--bursts=10000", "--json="+file, agents)
	killed.Env = know
	var stdout, stderr bytes.Buffer
	progress, err := killed.StderrPipe()
	require.NoError(t, err)
	killed.Stdout = &stdout
	require.NoError(t, killed.Start())
	for lines := bufio.NewScanner(progress); lines.Scan(); {
		stderr.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "broadcast") && cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	}
	var exit *exec.ExitError
	require.ErrorAs(t, killed.Wait(), &exit)
	require.Equal(t, exitRunTime, exit.ExitCode())
	require.Contains(t, stdout.String(), "agent "+two+" cannot be reached", stderr.String())
	require.FileExists(t, file)
}

func TestAnAgentThatAnybodyCouldCommandDoesNotListen(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.com:0", "9000"} {
		r := run(t, nil, "loadtest", "agent", "--listen", listen)
		require.Equal(t, exitUsage, r.code, "%s: %s", listen, r.stderr)
		require.Contains(t, r.stderr, "--listen")
	}
	require.Error(t, checkAgentListen("0.0.0.0:0", ""))
	require.NoError(t, checkAgentListen("0.0.0.0:0", "token"))
	for _, loopback := range []string{"127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0"} {
		require.NoError(t, checkAgentListen(loopback, ""))
	}
}

// However a coordinator ends, its agents do not stay.
func TestAgentsDoNotOutliveTheirCoordinator(t *testing.T) {
	cmd, output := startLoadTest(t, "--processes=2", "--bursts=10000")
	var pids [2]int
	lines := bufio.NewReader(output)
	for i := range pids {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		_, err = fmt.Sscanf(line, "started an agent as process %d at", &pids[i])
		require.NoError(t, err, line)
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = lines.WriteTo(&bytes.Buffer{}) }()
	_ = cmd.Wait()
	for _, pid := range pids {
		wantGone(t, pid)
	}
	select {
	case <-drained:
	case <-time.After(patience):
		require.Fail(t, "somebody still holds its output")
	}
}
