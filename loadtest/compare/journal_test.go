package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func open(t *testing.T, folder, build string, resume bool) *journal {
	t.Helper()
	j, err := openJournal(folder, build, resume)
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.close() })
	return j
}

func TestAnInterruptedComparisonGoesOn(t *testing.T) {
	folder := t.TempDir()
	done, failed := Measurement{Scenario: "collab", Server: "nchan", Round: 1, Build: "v1"}, Measurement{Scenario: "collab", Server: "floor", Round: 1, Build: "v1", Error: "refused"}
	j := open(t, folder, "v1", false)
	require.NoError(t, j.add(done))
	require.NoError(t, j.add(failed))
	_, err := j.file.WriteString(`{"scenario":"coll`) // killed while it wrote
	require.NoError(t, err)

	again := open(t, folder, "v1", true)
	require.True(t, again.has(done))
	require.False(t, again.has(failed), "what failed is made again")
	other := done
	other.Args = "--clients 1"
	require.False(t, again.has(other), "what is measured otherwise is another measurement")
	require.Empty(t, open(t, folder, "v2", true).kept, "of another build")
}

func TestANewComparisonForgetsTheOld(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, open(t, folder, "v1", false).add(Measurement{Build: "v1"}))
	require.Empty(t, open(t, folder, "v1", false).kept)
	text, err := os.ReadFile(filepath.Join(folder, "measurements.jsonl"))
	require.NoError(t, err)
	require.Empty(t, text)
}
