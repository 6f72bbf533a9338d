package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/metrics"
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
	one.wantLogged("the log on disk was closed")

	two := start(t, loggedIn(dir))
	two.wantLogged("the log on disk was read: nothing is lost")
	status, frames := two.get("http://" + two.PublicAddr() + "/v1/poll?topic=" + had.String())
	require.Equal(t, 200, status)
	require.Contains(t, frames, `{"position":"`+last.String()+`"`)
	require.NotContains(t, frames, "gap")
	next := two.published()
	require.Equal(t, last.Epoch, next.Epoch)
	require.Greater(t, next.Offset, last.Offset)
}

// A byte of the log changes while no daemon runs. The start is refused in words: which file,
// where, and what to do. Nothing listens, and nothing was changed.
func TestADamagedLogRefusesTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	one := start(t, loggedIn(dir))
	for range 10 {
		one.published()
	}
	require.NoError(t, one.wait())
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	whole, err := os.ReadFile(files[0])
	require.NoError(t, err)
	whole[len(whole)/4*3] ^= 1
	require.NoError(t, os.WriteFile(files[0], whole, 0o600))
	before := filesIn(t, dir)

	for range 2 { // the second start says the same
		cfg := config.Default()
		cfg.Listen = config.Listen{Public: "127.0.0.1:0", Admin: "127.0.0.1:0"}
		loggedIn(dir)(&cfg)
		d, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.NoError(t, err)
		require.NoError(t, d.Listen())
		err = d.Run(t.Context())
		require.ErrorContains(t, err, "store: "+filepath.Base(files[0])+" has a bad record at byte ")
		require.ErrorContains(t, err, "pubsubd store repair")
		for _, address := range []string{d.PublicAddr(), d.AdminAddr()} {
			_, err = net.Dial("tcp", address)
			require.Error(t, err, "nobody listens")
		}
		require.Equal(t, before, filesIn(t, dir))
	}
}

// A second daemon with the folder of a running one does not start. It is free afterwards.
func TestTwoDaemonsDoNotShareALog(t *testing.T) {
	for _, in := range []func(dir string) func(*config.Config){loggedIn, keptIn} {
		dir := filepath.Join(t.TempDir(), "store")
		one := start(t, in(dir))
		had := one.published()
		cfg := config.Default()
		in(dir)(&cfg)
		_, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.ErrorContains(t, err, dir+" is in use by another daemon or command")
		require.ErrorContains(t, err, "give each daemon its own store.dir")
		require.NoError(t, one.wait())
		require.Equal(t, had.Epoch, start(t, in(dir)).published().Epoch)
	}
}

func TestAFolderThatCannotBeUsedFailsTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, "/proc/store"} {
		cfg := config.Default()
		loggedIn(dir)(&cfg)
		_, err := New(cfg, zap.NewNop(), metrics.New("test"))
		require.ErrorContains(t, err, "store: ")
		require.ErrorContains(t, err, "store.dir must name a folder that the daemon can write to")
	}
}

// While the log is read, /readyz says how much of it was.
func TestReadinessSaysHowMuchOfTheLogWasRead(t *testing.T) {
	r := &diskRunner{log: zap.NewNop(), progress: func(why string) {
		require.Equal(t, "starting: the daemon has read 25 % of the log on disk (4096 MiB)", why)
	}}
	r.tell(1<<30, 4<<30)
}

// The log ends while the daemon serves. The daemon is not ready any more and refuses publishes,
// both with the reason, but still serves those who read. Its end returns the error.
func TestALogThatEndsMakesTheDaemonNotReady(t *testing.T) {
	broken := make(chan struct{})
	d := startWith(t, loggedIn(t.TempDir()), func(d *Daemon) {
		r := d.runner.(*walRunner)
		feed := r.run
		r.run = func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			go func() { <-broken; cancel() }()
			_ = feed(ctx) // it was told to end
			return errors.New("the majority is gone")
		}
	})
	had := d.published()
	close(broken)
	require.Eventually(t, func() bool { return d.whyNotReady() != "" }, surely, 10*time.Millisecond)
	status, why := d.get("http://" + d.AdminAddr() + "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, why, "the log has ended: the majority is gone")
	d.wantLogged("the log has ended: publishes are refused until the daemon is restarted")
	require.EqualValues(t, 1, d.metric("pubsubd_store_faulty"))

	resp, err := http.Post("http://"+d.PublicAddr()+"/v1/topics/a/messages", "application/json", strings.NewReader("2"))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	said, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(said), "the server's log has ended")
	status, frames := d.get("http://" + d.PublicAddr() + "/v1/poll?topic=a@oldest")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, frames, had.String())
	require.ErrorContains(t, d.wait(), "the majority is gone")
}

// Metrics tell what the log does. Without a log they are 0.
func TestMetricsOfTheLog(t *testing.T) {
	none := start(t, nil)
	none.published()
	require.EqualValues(t, 0, none.metric("pubsubd_store_bytes"))
	require.EqualValues(t, 0, none.metric("pubsubd_store_entries_total"))

	dir := filepath.Join(t.TempDir(), "store")
	d := start(t, func(c *config.Config) { c.Store = config.Store{Dir: dir, Sync: "always", Bytes: 1 << 30} })
	at := d.published()
	for sample, want := range map[string]float64{
		"pubsubd_store_entries_total":                     1,
		"pubsubd_store_commit_seconds_count":              1,
		"pubsubd_store_segments":                          1,
		"pubsubd_store_bytes_limit":                       1 << 30,
		"pubsubd_store_last_offset":                       float64(at.Offset),
		"pubsubd_store_unsynced_seconds":                  0,
		"pubsubd_store_faulty":                            0,
		"pubsubd_store_lost_tails_total":                  0,
		`pubsubd_store_refused_total{reason="full"}`:      0,
		`pubsubd_store_checkpoints_total{outcome="made"}`: 0,
	} {
		require.Equal(t, want, d.metric(sample), sample)
	}
	require.Greater(t, d.metric("pubsubd_store_lease_offset"), float64(at.Offset))
	require.Positive(t, d.metric("pubsubd_store_sync_seconds_count"))
	require.Positive(t, d.metric("pubsubd_store_bytes"))
	require.Positive(t, d.metric("pubsubd_store_reserve_bytes"))
	require.Positive(t, d.metric("pubsubd_store_written_bytes_total"))
	require.Positive(t, d.metric("pubsubd_store_recovery_seconds"))
}
