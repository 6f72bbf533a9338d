package store

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A disk is a folder with a log, and the daemons that use it one after the other.
type disk struct {
	*testing.T
	dir    string
	cfg    WALConfig
	config broker.Config

	*broker.Broker
	wal   *WAL
	found Recovery
}

func newDisk(t *testing.T) *disk {
	d := &disk{T: t, dir: filepath.Join(t.TempDir(), "log"), config: broker.Config{HistoryAge: time.Hour, IdempotencyWindow: time.Hour}}
	files, err := OpenDir(d.dir)
	require.NoError(t, err)
	d.cfg = WALConfig{
		FS: files, BootID: "boot 1", Seed: func() uint64 { return 42 }, Logger: zaptest.NewLogger(t),
		Recovered: func(r Recovery) { d.found = r },
	}
	t.Cleanup(d.kill)
	return d
}

// start starts a daemon.
func (d *disk) start() error {
	d.Broker = broker.NewWithLog(d.config, metrics.New("test"), time.Now(), func(b *broker.Broker) broker.Log {
		d.wal = NewWAL(d.cfg, b)
		return d.wal
	})
	return d.wal.open(func(e broker.Entry) error {
		_, err := d.Apply(e)
		return err
	}, time.Now())
}

func (d *disk) mustStart() {
	d.Helper()
	require.NoError(d, d.start())
}

// run runs a daemon until the test ends it.
func (d *disk) run() (end func() error) {
	d.Helper()
	recovered, ended := make(chan struct{}), make(chan error, 1)
	cfg := d.cfg
	cfg.Recovered = func(r Recovery) {
		d.found = r
		close(recovered)
	}
	d.Broker = broker.NewWithLog(d.config, metrics.New("test"), time.Now(), func(b *broker.Broker) broker.Log {
		d.wal = NewWAL(cfg, b)
		return d.wal
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- d.Feed(ctx) }()
	select {
	case <-recovered:
	case err := <-ended:
		require.NoError(d, err)
	}
	return func() error {
		cancel()
		return <-ended
	}
}

// kill ends the daemon at once.
func (d *disk) kill() {
	if d.wal != nil {
		d.wal.abandon()
	}
}

// powerOff ends the daemon and its kernel. The disk has kept everything.
func (d *disk) powerOff() {
	d.kill()
	d.cfg.BootID += "+"
}

func entryOf(op broker.Op, topic, data string) broker.Entry {
	return broker.Entry{Op: op, Message: &wire.Message{Position: wire.Position{Topic: topic}, Data: []byte(data), Time: time.Now().UnixMilli()}, State: &broker.State{}}
}

// do appends entries, and returns the results.
func (d *disk) do(entries ...broker.Entry) (results []broker.Result) {
	d.Helper()
	d.wal.Append(entries, func(r []broker.Result) { results = r })
	for d.wal.step(time.Now()) {
	}
	require.Len(d, results, len(entries))
	return results
}

// publish publishes a message, and returns its offset.
func (d *disk) publish(topic, data string) uint64 {
	d.Helper()
	r := d.do(entryOf(broker.OpPublish, topic, data))[0]
	require.NoError(d, r.Err)
	return r.Position.Offset
}

// wantRefused publishes in vain, and returns the problem.
func (d *disk) wantRefused(topic string) *wire.Problem {
	d.Helper()
	problem := d.wantProblem(topic)
	require.Equal(d, wire.CodeOverloaded, problem.Code)
	return problem
}

func (d *disk) wantProblem(topic string) *wire.Problem {
	d.Helper()
	r := d.do(entryOf(broker.OpPublish, topic, `"refused"`))[0]
	var problem *wire.Problem
	require.ErrorAs(d, r.Err, &problem)
	require.Positive(d, problem.RetryAfterMS)
	return problem
}

// wantTopic compares what a topic has, as "1 2 gap(lost 2-9) 10".
func (d *disk) wantTopic(topic, want string) {
	d.Helper()
	require.Equal(d, want, readTopic(d.T, d.Broker, topic+"@EPOCH:0", 1000))
}

// checkpoint makes a checkpoint.
func (d *disk) checkpoint() {
	d.wal.wantCheckpoint()
	for d.wal.checkpointStep(time.Now()) {
	}
	require.False(d, d.wal.wanted, "the checkpoint was made")
}

// files returns the names of all files of the log, without the zeros, the mark and the reserve.
func (d *disk) files() string {
	d.Helper()
	names, err := d.cfg.FS.List()
	require.NoError(d, err)
	var short []string
	for _, name := range names {
		if !strings.HasSuffix(name, ".lock") && name != markName && name != reserveName {
			short = append(short, strings.TrimLeft(name, "0"))
		}
	}
	return strings.Join(short, " ")
}

func (d *disk) read(name string) []byte {
	d.Helper()
	b, err := os.ReadFile(filepath.Join(d.dir, name))
	require.NoError(d, err)
	return b
}

func (d *disk) write(name string, b []byte) {
	d.Helper()
	require.NoError(d, os.WriteFile(filepath.Join(d.dir, name), b, 0o600))
}

func segmentName(number uint64) string { return fileName(number, segmentSuffix) }

// faultyFS fails calls.
type faultyFS struct {
	FS
	fail func(call, name string) error
	room int // larger writes fail; 0: none

	space int64 // of all files; 0: not bounded
}

func (f *faultyFS) Create(name string) (FileWriter, error) {
	if err := f.fail("create", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f, name}, nil
}

func (f *faultyFS) SyncDir() error {
	if err := f.fail("syncdir", ""); err != nil {
		return err
	}
	return f.FS.SyncDir()
}

// used returns how much of the space all files take.
func (f *faultyFS) used() (bytes int64, err error) {
	names, err := f.List()
	for _, name := range names {
		file, openErr := f.Open(name)
		if openErr != nil {
			return 0, openErr
		}
		size, sizeErr := file.Size()
		bytes, err = bytes+size, cmp.Or(err, sizeErr, file.Close())
	}
	return bytes, err
}

type faultyFile struct {
	FileWriter
	fs   *faultyFS
	name string
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.fs.fail("write", f.name); err != nil {
		n, _ := f.FileWriter.Write(p[:len(p)/2])
		return n, err
	}
	if room := f.fs.room; room > 0 && len(p) > room {
		return 0, syscall.ENOSPC
	}
	if space := f.fs.space; space > 0 {
		used, err := f.fs.used()
		if err != nil {
			return 0, err
		}
		if left := max(space-used, 0); left < int64(len(p)) {
			n, _ := f.FileWriter.Write(p[:left])
			return n, syscall.ENOSPC
		}
	}
	return f.FileWriter.Write(p)
}

func (f *faultyFile) Sync() error {
	if err := f.fs.fail("sync", f.name); err != nil {
		return err
	}
	return f.FileWriter.Sync()
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.fs.fail("truncate", f.name); err != nil {
		return err
	}
	return f.FileWriter.Truncate(size)
}

// withFaults makes calls fail while they are in failing.
func (d *disk) withFaults() (failing map[string]error) {
	failing = make(map[string]error)
	d.cfg.FS = &faultyFS{FS: d.cfg.FS, fail: func(call, name string) error {
		if err := failing[call]; err != nil {
			return &os.PathError{Op: call, Path: filepath.Join(d.dir, name), Err: err}
		}
		return nil
	}}
	return failing
}
