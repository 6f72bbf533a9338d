package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/store"
)

// storeWith returns the folder of a log with four messages in three files: one and two,
// three, four. Its daemons stopped cleanly.
func storeWith(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "log")
	for _, texts := range [][]string{{"one", "two"}, {"three"}, {"four"}} {
		s := serveProcess(t, "--store", dir, "--history-age=1h")
		for _, text := range texts {
			s.post("/v1/topics/a/messages", `"`+text+`"`)
		}
		s.signal(syscall.SIGTERM)
		require.Zero(t, s.exit().ExitCode(), s.stderr)
	}
	return dir
}

// inspected returns what inspect --json prints.
func inspected(t *testing.T, dir string) (c store.Contents) {
	t.Helper()
	r := run(t, nil, "store", "inspect", dir, "--json")
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &c))
	return c
}

// history returns all that a daemon has of the topic a.
func (s *served) history() string {
	s.Helper()
	resp, err := http.Get(s.public + "/v1/topics/a/messages?limit=100")
	require.NoError(s, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return string(text)
}

// An operator looks into a log while its daemon runs, after it was killed, and after it has
// stopped cleanly.
func TestAnOperatorLooksIntoALog(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	s := serveProcess(t, "--store", dir)
	s.post("/v1/topics/a/messages", `{"n":1}`)
	s.post("/v1/topics/b/messages", `{"n":2}`)
	s.post("/v1/topics/a/messages", `{"n":3}`)
	look := func(daemon string, runs bool) {
		t.Helper()
		r := run(t, nil, "store", "inspect", dir)
		require.Zero(t, r.code, r.stderr)
		for _, words := range []string{"2, with 3 messages of 21 bytes", daemon, "recovers all entries\n", "segment", "1 to 3"} {
			require.Contains(t, r.stdout, words)
		}
		r = run(t, nil, "store", "verify", dir)
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "3 messages in 2 topics; a start recovers all entries\n")
		require.Regexp(t, `entries up to 3 \(newest message published at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\), `, r.stdout)
		r = run(t, nil, "store", "export", dir)
		require.Zero(t, r.code, r.stderr)
		require.Equal(t, 3, strings.Count(r.stdout, "\n"))
		require.Contains(t, r.stdout, `"data":{"n":3}}`+"\n")
		r = run(t, nil, "store", "repair", dir, "--yes")
		if runs {
			require.Equal(t, exitRunTime, r.code)
			require.Empty(t, r.stdout)
			require.Contains(t, r.stderr, "in use by another daemon or command")
			require.Contains(t, r.stderr, "stop it first")
			return
		}
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "Nothing to repair")
	}
	look("still runs, or was killed", true)
	s.signal(syscall.SIGKILL)
	s.exit()
	look("still runs, or was killed", false)
	s = s.successor("--store", dir)
	s.signal(syscall.SIGTERM)
	require.Zero(t, s.exit().ExitCode(), s.stderr)
	look("stopped cleanly", false)
	c := inspected(t, dir)
	require.True(t, c.Clean)
	require.NotEmpty(t, c.Epoch)
	require.EqualValues(t, 3, c.Last)
}

// Each kind of damage: the daemon refuses to start, verify says where, and nothing is changed
// until the operator says yes. Then the daemon starts with what could be read.
func TestADamagedLogIsFoundAndRepaired(t *testing.T) {
	t.Parallel()
	find := func(t *testing.T, file, text string) (content []byte, i int) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		i = bytes.Index(content, []byte(text))
		require.NotEqual(t, -1, i)
		return content, i
	}
	flip := func(t *testing.T, file, text string) {
		content, i := find(t, file, text)
		content[i] ^= 1
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, files []string)
		file   int
		why    string
		keeps  []string
	}{
		"a changed message":    {func(t *testing.T, files []string) { flip(t, files[0], "two") }, 0, "its checksum does not match", []string{"one", "three", "four"}},
		"a changed header":     {func(t *testing.T, files []string) { flip(t, files[1], "pubsub") }, 1, "does not begin with", []string{"one", "two", "four"}},
		"a missing file":       {func(t *testing.T, files []string) { require.NoError(t, os.Remove(files[1])) }, 0, "continues after entry 3", []string{"one", "two", "four"}},
		"a missing first file": {func(t *testing.T, files []string) { require.NoError(t, os.Remove(files[0])) }, 1, "is missing", []string{"three", "four"}},
		"a short file": {func(t *testing.T, files []string) {
			content, i := find(t, files[0], "two")
			require.NoError(t, os.WriteFile(files[0], content[:i], 0o600))
		}, 0, "the file has only", []string{"one", "three", "four"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := storeWith(t)
			var files []string
			for _, f := range inspected(t, dir).Files {
				if f.Kind == store.KindSegment {
					files = append(files, filepath.Join(dir, f.Name))
				}
			}
			require.Len(t, files, 3)
			c.damage(t, files)
			start := run(t, nil, "serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--store", dir)
			require.Equal(t, exitRunTime, start.code)
			before := inspected(t, dir)
			require.Contains(t, before.Refused, "pubsubd store repair")
			require.Contains(t, start.stderr, before.Refused)

			r := run(t, nil, "store", "verify", dir)
			require.Equal(t, exitRunTime, r.code)
			require.Empty(t, r.stdout)
			require.Contains(t, r.stderr, filepath.Base(files[c.file])+", byte ")
			require.Contains(t, r.stderr, c.why)
			require.Equal(t, exitRunTime, run(t, nil, "store", "verify", dir, "--json").code)
			r = run(t, nil, "store", "inspect", dir)
			require.Zero(t, r.code, r.stderr)
			require.Contains(t, r.stdout, "is refused: ")
			r = run(t, nil, "store", "export", dir)
			require.Equal(t, exitRunTime, r.code)
			require.Empty(t, r.stdout)
			r = run(t, nil, "store", "repair", dir)
			require.Equal(t, exitUsage, r.code)
			require.Contains(t, r.stdout, "Keeps: ")
			require.Contains(t, r.stderr, "--yes")
			require.Equal(t, before, inspected(t, dir), "nothing was changed")

			r = run(t, nil, "store", "repair", dir, "--yes")
			require.Zero(t, r.code, r.stderr)
			after := inspected(t, dir)
			require.Empty(t, after.Refused)
			require.Equal(t, before.Messages, after.Messages)
			require.Equal(t, before.Epoch, after.Epoch)
			for _, f := range before.Files {
				if f.Kind == store.KindSegment {
					require.FileExists(t, filepath.Join(dir, f.Name+".old"))
				}
			}
			s := serveProcess(t, "--store", dir, "--history-age=1h")
			history := s.history()
			require.Contains(t, history, `"reason":"lost"`)
			for _, text := range []string{"one", "two", "three", "four"} {
				require.Equal(t, strings.Contains(strings.Join(c.keeps, " "), text), strings.Contains(history, `"`+text+`"`), "%s: %s", text, history)
			}
		})
	}
}

// A backup is restored. Clients that have newer messages get a gap, and new messages come after
// it.
func TestARestoredBackupUsesNoOffsetTwice(t *testing.T) {
	t.Parallel()
	dir := storeWith(t)
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(dir)))
	s := serveProcess(t, "--store", dir)
	newer := s.post("/v1/topics/a/messages", `"newer"`)
	s.signal(syscall.SIGKILL)
	s.exit()
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Rename(backup, dir))
	r := run(t, nil, "store", "repair", dir, "--restored")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stdout, "Damage: none\nKeeps: 4 messages")
	require.Contains(t, r.stdout, "Drops: nothing.")
	r = run(t, nil, "store", "repair", dir, "--restored", "--yes")
	require.Zero(t, r.code, r.stderr)

	s = serveProcess(t, "--store", dir, "--history-age=1h")
	s.post("/v1/topics/a/messages", `"after"`)
	var published struct{ Position string }
	require.NoError(t, json.Unmarshal([]byte(newer), &published))
	resp, err := http.Get(s.public + "/v1/topics/a/messages?limit=100&after=" + published.Position)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NotContains(t, string(text), `"data":"four"`)
	require.Contains(t, string(text), `"reason":"lost"`)
	require.Contains(t, string(text), `"data":"after"`)
	require.Contains(t, s.history(), `"data":"four"`)
}

// A crash does not damage a log, and a repair does not disturb a daemon.
func TestWhatARepairLeavesAlone(t *testing.T) {
	t.Parallel()
	dir := storeWith(t)
	s := serveProcess(t, "--store", dir)
	s.post("/v1/topics/a/messages", `"five"`)
	s.signal(syscall.SIGKILL)
	s.exit()
	files := inspected(t, dir).Files
	files = slices.DeleteFunc(files, func(f store.FileContents) bool { return f.Kind != store.KindSegment })
	newest := filepath.Join(dir, files[len(files)-1].Name)
	info, err := os.Stat(newest)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(newest, info.Size()-1))
	r := run(t, nil, "store", "verify", dir)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "of an entry that no client has seen")

	s = s.successor("--store", dir)
	first := filepath.Join(dir, files[0].Name)
	content, err := os.ReadFile(first)
	require.NoError(t, err)
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(first, content, 0o600))
	r = run(t, nil, "store", "repair", dir, "--yes")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "in use by another daemon")
	require.NoFileExists(t, first+".old")

	other := storeWith(t)
	name := inspected(t, other).Files[0].Name
	require.NoError(t, os.Rename(filepath.Join(other, name), first))
	s.signal(syscall.SIGKILL)
	s.exit()
	r = run(t, nil, "store", "repair", dir, "--yes")
	require.Equal(t, exitRunTime, r.code)
	require.Contains(t, r.stderr, "belongs to another log")
}

// The error names a folder that has no log, and the command creates no folder.
func TestAFolderWithoutALog(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	for _, command := range []string{"inspect", "verify", "repair", "export"} {
		r := run(t, nil, "store", command, none)
		require.Equal(t, exitRunTime, r.code, command)
		require.Contains(t, r.stderr, "store.dir")
		r = run(t, nil, "store", command, t.TempDir())
		require.Equal(t, exitRunTime, r.code, command)
		require.Contains(t, r.stderr, "has no log")
		require.Equal(t, exitUsage, run(t, nil, "store", command).code, command)
	}
	require.NoDirExists(t, none)
}

// A backup is made as deploy/README.md says, again and again while a client publishes. Each is
// whole, and starts after repair --restored. A copy of it that was cut short is noticed.
func TestABackupUnderPublishesStarts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	s := serveProcess(t, "--store", dir, "--store-bytes=64MiB", "--history-messages=10")
	ctx, stop := context.WithCancel(t.Context())
	var publisher sync.WaitGroup
	publisher.Go(func() {
		text := `"` + strings.Repeat("x", 60_000) + `"`
		for ctx.Err() == nil {
			resp, err := http.Post(s.public+"/v1/topics/a/messages", "application/json", strings.NewReader(text))
			if err == nil {
				resp.Body.Close()
			}
		}
	})
	t.Cleanup(func() { stop(); publisher.Wait() })
	mark := filepath.Join(dir, "mark")
	for n := range 1 + 2/exhaustive.Step(3) {
		before, _ := os.Stat(mark)
		require.Eventually(t, func() bool {
			now, err := os.Stat(mark)
			return err == nil && !os.SameFile(before, now)
		}, time.Minute, 10*time.Millisecond)
		backup := filepath.Join(filepath.Dir(dir), fmt.Sprint("backup", n))
		for linkAll(dir, backup) != nil {
			require.NoError(t, os.RemoveAll(backup)) // a checkpoint has removed a file
		}
		r := run(t, nil, "store", "verify", backup)
		require.Zero(t, r.code, r.stderr)
		restored := backup + ".restored"
		require.NoError(t, os.CopyFS(restored, os.DirFS(backup)))
		r = run(t, nil, "store", "verify", restored)
		require.Zero(t, r.code, r.stderr)
		r = run(t, nil, "store", "repair", restored, "--restored", "--yes")
		require.Zero(t, r.code, r.stderr)
		after := serveProcess(t, "--store", restored)
		after.post("/v1/topics/a/messages", `"after"`)
		after.signal(syscall.SIGTERM)
		require.Zero(t, after.exit().ExitCode(), after.stderr)
		newest := ""
		for _, f := range inspected(t, restored).Files {
			if f.Kind == store.KindSegment {
				newest = filepath.Join(restored, f.Name)
			}
		}
		info, err := os.Stat(newest)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(newest, info.Size()-1))
		r = run(t, nil, "store", "verify", restored)
		require.Equal(t, exitRunTime, r.code, r.stdout)
		require.Contains(t, r.stderr, "the log ends early")
	}
}

// linkAll does what cp -al does.
func linkAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
