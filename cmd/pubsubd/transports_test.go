package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/loadtest/transports"
)

// Every transport of the real daemon, and both floors, in every format and both
// ways: a few messages, of which none may be missing.
func TestTransportsAreMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, svg, html := filepath.Join(dir, "t.json"), filepath.Join(dir, "t.svg"), filepath.Join(dir, "t.html")
	messages := 1500 / exhaustive.Step(5)
	r := run(t, nil, "loadtest", "transports", fmt.Sprintf("--messages=%d", messages), "--repeats=1", "--clients=2", "--json", file, "--svg", svg, "--html", html)
	require.Zero(t, r.code, "%s\n%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "many ÷ one per poll, CBOR")
	require.Contains(t, r.stdout, "verdict   ok")
	require.Contains(t, r.stderr, fmt.Sprintf("--history-messages=%d", messages+1))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var result transports.Result
	require.NoError(t, json.Unmarshal(text, &result))
	require.Len(t, result.Rows, 5*2*2+2+2+2+1)
	for _, row := range result.Rows {
		require.Positive(t, row.PerSecond.Mean, "%+v", row)
		require.Greater(t, row.BytesIn, 200.0, "%+v", row)
	}
	for _, path := range []string{svg, html} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(page), "bare loop")
	}
}

// A subject that cannot be measured is said, and fails the test; the floor does not
// need it.
func TestATransportThatIsNotThere(t *testing.T) {
	d := serveProcess(t)
	r := run(t, nil, "loadtest", "transports", "--messages=100", "--repeats=1", "--ways=filled", "--formats=cbor",
		"--transports=batch,tcp", "--target", d.public, "--target-tcp=127.0.0.1:1", "--quiet")
	require.Equal(t, exitRunTime, r.code, "%s\n%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "tcp cbor filled: connect")
	require.Contains(t, r.stdout, "verdict   FAILED")
}

func TestTransportsCommandLinesThatCannotBeObeyed(t *testing.T) {
	for _, arg := range []string{"--clients=0", "--messages=2000000", "--transports=pigeon", "--ways=", "--target-tcp=h:1", "--svg=/there/is/no/such/folder/x", "extra"} {
		r := run(t, nil, "loadtest", "transports", arg)
		require.Equal(t, exitUsage, r.code, "%s\n%s", arg, r.stderr)
	}
}
