package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/soak"
)

// The real daemon keeps its promises for some seconds in which it is stopped and
// killed, and connections are cut.
func TestASoakFindsNoFault(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "soak.json")
	r := run(t, nil, "loadtest", "soak", "--duration=5s", "--restart=1s", "--settle=1m", "--topics=10", "--subscribers=32", "--rate=100", "--seed=5", "--json", file)
	require.Zero(t, r.code, "%s\n%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "verdict  ok")
	require.Contains(t, r.stderr, "seed 5")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var result soak.Result
	require.NoError(t, json.Unmarshal(text, &result))
	require.True(t, result.Settled)
	require.Empty(t, result.Faults)
	staged := map[string]int64{}
	for _, c := range append(result.Staged, result.Found...) {
		staged[c.What] = c.N
	}
	for _, what := range []string{"messages published", "connections reset", "connections without HTTP", "deliveries checked"} {
		require.Positive(t, staged[what], what)
	}
	require.Positive(t, staged["kills"]+staged["restarts without"]+staged["restarts with the state file"])
}

// An interrupted soak ends with its report, and leaves no server behind.
func TestAnInterruptedSoakReports(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	var report strings.Builder
	cmd := exec.CommandContext(t.Context(), binary, "loadtest", "soak", "--duration=1h", "--topics=3", "--subscribers=4", "--rate=20")
	cmd.Stdout, cmd.Stderr = &report, write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	line, err := bufio.NewReader(read).ReadString('\n')
	require.NoError(t, err)
	var seed, server int
	_, err = fmt.Sscanf(line, "seed %d; started a server as process %d", &seed, &server)
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	require.NoError(t, cmd.Wait(), &report)
	require.Contains(t, report.String(), "interrupted")
	wantGone(t, server)
}

func TestSoakCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, arg := range []string{"--duration=0s", "--topics=0", "--subscribers=1000000", "--rate=-1", "--json=/there/is/no/such/folder/x"} {
		r := run(t, nil, "loadtest", "soak", arg)
		require.Equal(t, exitUsage, r.code, "%s\n%s", arg, r.stderr)
	}
}
