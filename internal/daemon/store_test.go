package daemon

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
)

func loggedIn(dir string) func(c *config.Config) {
	return func(c *config.Config) { c.Store.Dir = dir }
}

// A daemon with a log ends in order. The next one continues: same epoch, no gap.
func TestARestartWithALogKeepsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	one := start(t, loggedIn(dir))
	had := one.published()
	last := one.published()
	require.NoError(t, one.wait())
	one.wantLogged("the log was closed")

	two := start(t, loggedIn(dir))
	two.wantLogged("the log was read: nothing is lost")
	status, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?topic=" + had.String())
	require.Equal(t, 200, status)
	require.Contains(t, frames, `{"position":"`+last.String()+`"`)
	require.NotContains(t, frames, "gap")
	next := two.published()
	require.Equal(t, last.Epoch, next.Epoch)
	require.Greater(t, next.Offset, last.Offset)
}

// A daemon that had a state file gets a log. The first start takes the state over, once.
func TestALogTakesOverAStateFileOnce(t *testing.T) {
	folder := t.TempDir()
	path, dir := filepath.Join(folder, "state"), filepath.Join(folder, "store")
	both := func(c *config.Config) { c.StateFile, c.Store.Dir = path, dir }
	one := start(t, keptIn(path))
	had := one.published()
	last := one.published()
	require.NoError(t, one.wait())

	two := start(t, both)
	two.wantLogged("the state was restored: the epoch goes on")
	require.Equal(t, []string{"state.lock", "store"}, filesIn(t, folder))
	_, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?topic=" + had.String())
	require.Contains(t, frames, `{"position":"`+last.String()+`"`)
	require.NotContains(t, frames, "gap")
	third := two.published()
	require.Equal(t, had.Epoch, third.Epoch)
	require.Greater(t, third.Offset, last.Offset)
	require.NoError(t, two.wait())
	require.Equal(t, []string{"state.lock", "store"}, filesIn(t, folder), "no state file is written")

	// Someone runs the daemon without the log, which leaves another state file.
	away := start(t, keptIn(path))
	away.published()
	require.NoError(t, away.wait())

	three := start(t, both)
	three.wantLogged("the state file was not read, because store.dir has a log, and was moved aside")
	require.Equal(t, []string{"state.lock", "state.unused", "store"}, filesIn(t, folder))
	_, frames = three.get("http://" + three.PublicAddr() + "/v1/poll?topic=" + last.String())
	require.Contains(t, frames, `{"position":"`+third.String()+`"`)
	require.NotContains(t, frames, "gap")
}
