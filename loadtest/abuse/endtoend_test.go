//go:build long

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// buildDaemon builds the real one.
func buildDaemon(t *testing.T) string {
	file := filepath.Join(t.TempDir(), "pubsubd")
	said, err := exec.Command("go", "build", "-o", file, "../../cmd/pubsubd").CombinedOutput()
	require.NoError(t, err, "%s", said)
	return file
}

// A quick run attacks the real daemon and the sink in five ways. What is not
// demanded here is speed, of which a machine that tests has none to give.
func TestVictimsOfARealDaemonLoseNothing(t *testing.T) {
	folder := t.TempDir()
	var out, log bytes.Buffer
	code := start(t.Context(), []string{
		"-pubsubd", buildDaemon(t), "-quick", "-lasts", "2s", "-settle", "100ms", "-only", "slow-heads,guesses,signatures,large-commands,unread-session-h2", "-out", folder,
		"-config", fewMisses(t, 1, 5),
	}, nil, &out, &log)
	require.Contains(t, []int{0, exitMissed}, code, "%s", log.String())
	text, err := os.ReadFile(filepath.Join(folder, jsonName))
	require.NoError(t, err)
	var r Result
	require.NoError(t, json.Unmarshal(text, &r))
	for _, v := range []Verdict{r.nothingLost(), r.withinBudget(), r.carriedOut()} {
		require.True(t, v.Met, "%s: %s", v.Demand, v.Found)
	}
	require.Len(t, r.Attacks, 5)
	require.Positive(t, r.Attacks[0].Live.Server.CPUSeconds)
	for _, a := range r.Attacks {
		require.Zero(t, a.Live.Server.Refused["wrong_host"], a.Name)
		for _, p := range []Phase{a.Sink, a.Live} {
			require.Equal(t, int64(2*r.Victims), p.Victims.Delivered, a.Name)
			require.Positive(t, p.Server.ResidentBytes, a.Name)
		}
	}
	require.Positive(t, r.Attacks[1].Live.Server.Refused["session_unknown"])
	require.Positive(t, r.Attacks[1].Live.Server.Limited["rates.misses.address"])
	require.Positive(t, r.Attacks[1].Live.Raid.Answers["429"])
	raid := r.Attacks[1].Live.Raid
	require.LessOrEqual(t, float64(raid.Answers["404"]), 5+1+raid.Seconds, "who goes on is held back")
	require.Empty(t, r.Attacks[1].Sink.Server.Refused, "the sink was attacked, not the daemon")
	require.Positive(t, r.Attacks[2].Live.Server.Refused["unauthorized"])
	require.Positive(t, r.Attacks[3].Live.Server.Refused["too_many_subscriptions"])
	kept, err := os.ReadFile(filepath.Join(folder, textName))
	require.NoError(t, err)
	require.Equal(t, string(kept), out.String())
}

// fewMisses are the settings for an attack, but that an address may miss no more: the
// slowest machine gets there.
func fewMisses(t *testing.T, perSecond, burst int) (file string) {
	const usual = "misses:\n    address: 5/s burst 50\n"
	require.Contains(t, string(limits), usual)
	fewer := strings.Replace(string(limits), usual, fmt.Sprintf("misses:\n    address: %d/s burst %d\n", perSecond, burst), 1)
	file = filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(file, []byte(fewer), 0o600))
	return file
}
