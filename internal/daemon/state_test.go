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
	"github.com/pubsubd/pubsubd/internal/store"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// keptIn has a daemon keep its topics in a folder, over planned restarts.
func keptIn(dir string) func(c *config.Config) {
	return func(c *config.Config) { c.Store.Dir, c.Store.Sync = dir, store.SyncStop }
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
	dir := t.TempDir()
	one := start(t, keptIn(dir))
	had := one.published()
	last := one.published()
	require.Equal(t, []string{"store.lock", "used"}, filesIn(t, dir), "a crash now leaves no state")
	require.NoError(t, one.wait())
	one.wantLogged("the state was written")
	files := filesIn(t, dir)
	require.Equal(t, []string{"00000000000000000002.checkpoint", "store.lock"}, files)
	s, err := os.Stat(filepath.Join(dir, files[0]))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), s.Mode(), "it holds payloads")

	two := start(t, keptIn(dir))
	two.wantLogged("the log on disk was read: nothing is lost")
	require.Equal(t, []string{"store.lock", "used"}, filesIn(t, dir), "a crash now must not go on from there again")
	status, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?topic=" + had.String())
	require.Equal(t, 200, status)
	require.Contains(t, frames, `{"position":"`+last.String()+`"`)
	require.NotContains(t, frames, "gap")
	last.Offset++
	require.Equal(t, last, two.published())
	require.NoError(t, two.wait())
	require.Equal(t, []string{"00000000000000000003.checkpoint", "store.lock"}, filesIn(t, dir))
}

// A daemon crashes. The next one says so, and begins a new epoch.
func TestACrashLosesTheState(t *testing.T) {
	dir := t.TempDir()
	one := start(t, keptIn(dir))
	had := one.published()
	require.NoError(t, one.wait())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "used"), nil, 0o600)) // as if it had started again, and crashed

	two := start(t, keptIn(dir))
	two.wantLogged("the last daemon did not write the topics at its end")
	_, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?hello=true&topic=" + had.String())
	require.Contains(t, frames, `"reason":"restarted"`)
	require.Equal(t, []string{"store.lock", "used"}, filesIn(t, dir))
	require.NoError(t, two.wait())
}

// The state has no presence: it begins anew, and no other position notices.
func TestAPlannedRestartBeginsPresenceAnew(t *testing.T) {
	dir := t.TempDir()
	withPresence := func(c *config.Config) {
		keptIn(dir)(c)
		c.Broker.Rules = []broker.Rule{{Name: "a", Pattern: "a", Presence: true}}
	}
	one := start(t, withPresence)
	one.published()
	pattern := one.broker.PatternPosition(">")
	was, err := one.members.List("a", time.Now())
	require.NoError(t, err)
	require.NoError(t, one.broker.Tell(was.Position.Topic, "k", []byte("1"), time.Now()))
	require.NoError(t, one.wait())
	state, err := os.ReadFile(filepath.Join(dir, "00000000000000000001.checkpoint"))
	require.NoError(t, err)
	require.NotContains(t, string(state), "_presence")

	two := start(t, withPresence)
	require.Equal(t, pattern, two.broker.PatternPosition(">"))
	_, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?hello=true&topic=" + pattern.String() + "&topic=" + was.Position.String())
	require.Contains(t, frames, `"reason":"restarted","after":"`+was.Position.String()+`"`)
	require.Equal(t, 1, strings.Count(frames, `"gap"`), frames)
	require.NoError(t, two.wait())
}

// A byte of the state changes while no daemon runs. The start is refused in words, and
// changes nothing.
func TestADamagedStateRefusesTheStart(t *testing.T) {
	dir := t.TempDir()
	one := start(t, keptIn(dir))
	one.published()
	require.NoError(t, one.wait())
	name := filesIn(t, dir)[0]
	whole, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	whole[len(whole)/2] ^= 1
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), whole, 0o600))
	err = listening(t, dir).Run(t.Context())
	require.ErrorContains(t, err, "store: "+name+" has a bad record at byte ")
	require.ErrorContains(t, err, "pubsubd store repair")
	require.Equal(t, []string{name, "store.lock"}, filesIn(t, dir))
}

// A daemon that cannot listen leaves the state for the next one.
func TestAFailedListenLeavesTheState(t *testing.T) {
	path := t.TempDir()
	one := start(t, keptIn(path))
	had := one.published()
	require.NoError(t, one.wait())

	other := start(t, nil)
	cfg := config.Default()
	keptIn(path)(&cfg)
	cfg.Listen = config.Listen{Public: other.PublicAddr(), Admin: "127.0.0.1:0"}
	d, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.NoError(t, err)
	require.Error(t, d.Listen())

	require.Equal(t, had.Epoch, start(t, keptIn(path)).published().Epoch)
}

// A daemon is stopped before it serves. It leaves the state untouched for the next
// daemon, and closes its listeners.
func TestAnEarlyStopLeavesTheState(t *testing.T) {
	path := t.TempDir()
	one := start(t, keptIn(path))
	had := one.published()
	require.NoError(t, one.wait())
	file := filepath.Join(path, filesIn(t, path)[0])
	before, err := os.Stat(file)
	require.NoError(t, err)

	d := listening(t, path)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, d.Run(stopped))
	after, err := os.Stat(file)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "it was not removed and written again")
	for _, address := range []string{d.PublicAddr(), d.AdminAddr()} {
		_, err = net.Dial("tcp", address)
		require.Error(t, err, "nobody listens")
	}
	require.Equal(t, had.Epoch, start(t, keptIn(path)).published().Epoch)
}

// listening returns a daemon that listens, but does not run.
func listening(t *testing.T, path string) *Daemon {
	t.Helper()
	cfg := config.Default()
	keptIn(path)(&cfg)
	cfg.Listen = config.Listen{Public: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	d, err := New(cfg, zap.NewNop(), metrics.New("test"))
	require.NoError(t, err)
	require.NoError(t, d.Listen())
	return d
}

// The folder of the state is gone when the daemon ends.
func TestAnUnwritableStateIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	d := start(t, keptIn(dir))
	require.NoError(t, os.RemoveAll(dir))
	require.ErrorContains(t, d.wait(), "the next start begins a new epoch")
	d.wantLogged("the log on disk could not be closed")
}

// The file that says that the state is used cannot be made. A daemon that served would leave
// the state for another one.
func TestAStateThatCannotBeMarkedIsNotServed(t *testing.T) {
	dir := t.TempDir()
	one := start(t, keptIn(dir))
	require.NoError(t, one.wait())
	d := listening(t, dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "used"), 0o700))
	require.ErrorContains(t, d.Run(t.Context()), "used is not a regular file: put a regular file in its place, or move it away")
}
