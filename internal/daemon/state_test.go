package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func keptIn(path string) func(c *config.Config) {
	return func(c *config.Config) { c.StateFile = path }
}

// published publishes a message to topic a and returns its position.
func (d *running) published() wire.Position {
	d.Helper()
	p, err := d.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now())
	require.NoError(d, err)
	return p.Position
}

func (d *running) wantLogged(message string) {
	d.Helper()
	require.Len(d, d.logged.FilterMessageSnippet(message).All(), 1, message)
}

// filesIn lists a folder.
func filesIn(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAPlannedRestartKeepsTheEpoch(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "state")
	one := start(t, keptIn(path))
	one.wantLogged("no state file: a new epoch begins")
	had := one.published()
	last := one.published()
	require.Equal(t, []string{"state.lock"}, filesIn(t, folder), "a crash now leaves none")
	require.NoError(t, one.wait())
	one.wantLogged("the state was written")
	require.Equal(t, []string{"state", "state.lock"}, filesIn(t, folder))
	s, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), s.Mode(), "it holds payloads")

	two := start(t, keptIn(path))
	two.wantLogged("the state was restored")
	require.Equal(t, []string{"state.lock"}, filesIn(t, folder), "a crash now must not go on from there again")
	status, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?topic=" + had.String())
	require.Equal(t, 200, status)
	require.Contains(t, frames, `{"position":"`+last.String()+`"`)
	require.NotContains(t, frames, "gap")
	last.Offset++
	require.Equal(t, last, two.published())
	require.NoError(t, two.wait())
	require.Equal(t, []string{"state", "state.lock"}, filesIn(t, folder))
}

// The state file has no presence: it begins anew, and no other position notices.
func TestAPlannedRestartBeginsPresenceAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	withPresence := func(c *config.Config) {
		c.StateFile = path
		c.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a", Presence: true}}
	}
	one := start(t, withPresence)
	one.published()
	pattern := one.broker.PatternPosition(">")
	was, err := one.members.List("a", time.Now())
	require.NoError(t, err)
	require.NoError(t, one.broker.Tell(was.Position.Topic, "k", []byte("1"), time.Now()))
	require.NoError(t, one.wait())
	state, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(state), "_presence")

	two := start(t, withPresence)
	require.Equal(t, pattern, two.broker.PatternPosition(">"))
	_, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?hello=true&topic=" + pattern.String() + "&topic=" + was.Position.String())
	require.Contains(t, frames, `"reason":"restarted","after":"`+was.Position.String()+`"`)
	require.Equal(t, 1, strings.Count(frames, `"gap"`), frames)
	require.NoError(t, two.wait())
}

// A damaged state file is not used, but kept for inspection.
func TestADamagedStateFileIsMovedAside(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "state")
	require.NoError(t, os.WriteFile(path, []byte("listen:\n  public: :8080\n"), 0o600))
	require.NoError(t, os.WriteFile(path+".new", []byte("half of a st"), 0o644))
	d := start(t, keptIn(path))
	d.wantLogged("cannot be read and was moved aside")
	entry := d.logged.FilterMessageSnippet("moved aside").All()[0]
	require.Equal(t, zap.WarnLevel, entry.Level)
	require.Contains(t, entry.ContextMap()["error"], "line 1: this is not a state file of pubsubd")
	require.Equal(t, []string{"state.lock", "state.unreadable"}, filesIn(t, folder))
	aside, err := os.ReadFile(path + ".unreadable")
	require.NoError(t, err)
	require.Equal(t, "listen:\n  public: :8080\n", string(aside))
	require.NoError(t, d.wait())
	require.Equal(t, []string{"state", "state.lock", "state.unreadable"}, filesIn(t, folder))
}

func TestAnUnusableStateFileFailsTheStart(t *testing.T) {
	folder := t.TempDir()
	for path, why := range map[string]string{
		filepath.Join(folder, "none", "state"): "no such file or directory",
		folder:                                 "is not a regular file",
		"/proc/state":                          "state: ",
	} {
		cfg := config.Default()
		cfg.StateFile = path
		_, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "--state")
	}
	require.Empty(t, filesIn(t, folder))
}

// A daemon that cannot listen leaves the state file for the next one.
func TestAFailedListenLeavesTheStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	one := start(t, keptIn(path))
	had := one.published()
	require.NoError(t, one.wait())

	other := start(t, nil)
	cfg := config.Default()
	cfg.StateFile, cfg.Listen = path, config.Listen{Public: other.PublicAddr(), Admin: "127.0.0.1:0"}
	d, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.NoError(t, err)
	require.Error(t, d.Listen())

	require.Equal(t, had.Epoch, start(t, keptIn(path)).published().Epoch)
}

// A daemon is stopped before it serves. It leaves the state file untouched for the next
// daemon, and closes its listeners.
func TestAnEarlyStopLeavesTheStateFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "state")
	one := start(t, keptIn(path))
	had := one.published()
	require.NoError(t, one.wait())
	before, err := os.Stat(path)
	require.NoError(t, err)

	d := listening(t, path)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, d.Run(stopped))
	after, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "it was not removed and written again")
	for _, address := range []string{d.PublicAddr(), d.AdminAddr()} {
		_, err = net.Dial("tcp", address)
		require.Error(t, err, "nobody listens")
	}
	require.Equal(t, had.Epoch, start(t, keptIn(path)).published().Epoch)
}

// listening returns a daemon that has read the state and listens, but does not run.
func listening(t *testing.T, path string) *Daemon {
	t.Helper()
	cfg := config.Default()
	cfg.StateFile, cfg.Listen = path, config.Listen{Public: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	d, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.NoError(t, err)
	require.NoError(t, d.Listen())
	return d
}

// The folder of the state file is gone when the daemon ends.
func TestAnUnwritableStateFileIsAnError(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	d := start(t, keptIn(filepath.Join(folder, "state")))
	require.NoError(t, os.RemoveAll(folder))
	require.ErrorContains(t, d.wait(), "state: ")
	d.wantLogged("the state could not be written")
}

// If a state file stayed in place, a second daemon could resume from it.
func TestAnUnremovableStateFileIsNotServed(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "state")
	one := start(t, keptIn(path))
	require.NoError(t, one.wait())
	d := listening(t, path)
	require.NoError(t, os.Remove(path)) // to remove it again then fails
	require.ErrorContains(t, d.Run(t.Context()), "state: ")
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist, "nor is another written")
}

// An operator starts a second daemon with the state file of a running one. The second
// daemon says why it does not start, and does not touch the file.
func TestTwoDaemonsDoNotShareAStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	one := start(t, keptIn(path))
	wantRefused := func() {
		cfg := config.Default()
		cfg.StateFile = path
		_, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.ErrorContains(t, err, path+" is in use by another daemon")
		require.ErrorContains(t, err, "--state")
	}
	wantRefused()
	had := one.published()
	require.NoError(t, one.wait())
	require.Equal(t, had.Epoch, start(t, keptIn(path)).published().Epoch, "it is free once the first has ended")
}

// Each daemon in one folder has its own state file.
func TestDaemonsCanShareAFolderOfStateFiles(t *testing.T) {
	folder := t.TempDir()
	one, two := start(t, keptIn(filepath.Join(folder, "one"))), start(t, keptIn(filepath.Join(folder, "two")))
	require.NoError(t, one.wait())
	require.NoError(t, two.wait())
	require.Equal(t, []string{"one", "one.lock", "two", "two.lock"}, filesIn(t, folder))
}
