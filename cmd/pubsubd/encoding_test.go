package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/encoding"
)

// The real daemon, started by the command, sends objects back whole, and is told
// apart from its clients by its CPU.
func TestTheEncodingsAreCompared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, page, chart := filepath.Join(dir, "encoding.json"), filepath.Join(dir, "encoding.html"), filepath.Join(dir, "encoding.svg")
	args := []string{"loadtest", "encoding", "--clients=4", "--duration=100ms", "--rounds=1", "--objects=20,40",
		"--json", file, "--html", page, "--svg", chart}
	measured(t, nil, args, func(t require.TestingT, r ran) {
		require.Zero(t, r.code, "%s\n%s", r.stdout, r.stderr)
		require.Contains(t, r.stdout, "verdict   ok")
		require.Contains(t, r.stderr, "started a server as process")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var result encoding.Result
		require.NoError(t, json.Unmarshal(text, &result))
		require.Equal(t, "v0.0.0-test", result.Parameters.Build)
		require.Empty(t, result.Missing)
		for _, name := range []string{encoding.JSON, encoding.GzipJSON, encoding.CBOR} {
			row := result.Row(40, name)
			require.NotNil(t, row, name)
			require.Positive(t, row.All.Trips)
			if runtime.GOOS == "linux" { // elsewhere the CPU of threads and of other processes is not known
				require.Positive(t, row.All.Server)
				require.Positive(t, row.All.Parse)
			}
		}
		require.Len(t, result.Shapes, 9)
	})
	for _, made := range []string{page, chart} {
		text, err := os.ReadFile(made)
		require.NoError(t, err)
		require.Contains(t, string(text), "</svg>")
	}
}

func TestEncodingCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, arg := range []string{
		"--clients=0", "--duration=0s", "--rounds=0", "--objects=20,20", "--target=localhost", "--server-pid=1",
		"--json=/there/is/no/such/folder/x", "--html=/there/is/no/such/folder/x", "--svg=/there/is/no/such/folder/x", "more",
	} {
		r := run(t, nil, "loadtest", "encoding", arg)
		require.Equal(t, exitUsage, r.code, "%s\n%s", arg, r.stderr)
	}
}
