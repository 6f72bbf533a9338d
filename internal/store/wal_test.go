package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

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

// do appends entries, and returns the results.
func (d *disk) do(entries ...broker.Entry) (results []broker.Result) {
	d.Helper()
	d.wal.Append(entries, func(r []broker.Result) { results = r })
	for d.wal.step(time.Now()) {
	}
	require.Len(d, results, len(entries))
	return results
}

func entryOf(op broker.Op, topic, data string) broker.Entry {
	return broker.Entry{Op: op, Message: &wire.Message{Position: wire.Position{Topic: topic}, Data: []byte(data), Time: time.Now().UnixMilli()}, State: &broker.State{}}
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
	r := d.do(entryOf(broker.OpPublish, topic, `"refused"`))[0]
	var problem *wire.Problem
	require.ErrorAs(d, r.Err, &problem)
	require.Equal(d, wire.CodeOverloaded, problem.Code)
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

// files returns the names of all files of the log, without the zeros.
func (d *disk) files() string {
	d.Helper()
	names, err := d.cfg.FS.List()
	require.NoError(d, err)
	var short []string
	for _, name := range names {
		if !strings.HasSuffix(name, ".lock") {
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

// A daemon stops and starts again: topics, deletions, keys and the epoch are as before, and
// the offsets continue.
func TestALogContinuesAfterAnEnd(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	require.EqualValues(t, 1, d.publish("a", "1"))
	require.EqualValues(t, 2, d.publish("b", "2"))
	keyed := entryOf(broker.OpPublish, "a", "3")
	keyed.Key = broker.Key{Scope: broker.Digest{1}}
	d.do(keyed, entryOf(broker.OpDelete, "b", ""), entryOf(broker.OpPublish, "c", "5"))
	forget := entryOf(broker.OpForget, "gone", "")
	forget.State.Lost = 4
	require.EqualValues(t, 6, d.do(forget)[0].Position.Offset)
	epoch, pattern := d.Epoch("a"), d.PatternPosition(">")
	require.NoError(t, d.wal.close(time.Now()))

	d.cfg.BootID = "boot 2"
	d.mustStart()
	require.True(t, d.found.Clean)
	require.Zero(t, d.found.Lost)
	require.EqualValues(t, 6, d.found.Last)
	require.Equal(t, epoch, d.Epoch("a"))
	require.Equal(t, pattern, d.PatternPosition(">"))
	d.wantTopic("a", "1 3")
	d.wantTopic("b", "gap(deleted 0-4)")
	require.EqualValues(t, 7, d.publish("a", "7"))
	d.wantTopic("a", "1 3 7")
	require.NoError(t, d.wal.close(time.Now()))
	require.Equal(t, "1.log 7.log", d.files())
}

// Only one daemon can use a folder.
func TestOneDaemonHoldsTheLog(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	first := d.wal
	require.ErrorContains(t, d.start(), "is in use by another daemon or command")
	first.abandon()
	d.mustStart()
}

// A daemon is killed. What was written is there, whatever the mode: the kernel has it. A
// partial record at the end was never visible.
func TestAKillLosesNothing(t *testing.T) {
	for _, mode := range []SyncMode{SyncAlways, SyncEverySecond, SyncNever} {
		d := newDisk(t)
		d.cfg.Sync = mode
		d.mustStart()
		for i := range 20 {
			d.publish("a", fmt.Sprint(i))
		}
		d.kill()
		whole := d.read(segmentName(1))
		d.mustStart()
		require.False(t, d.found.Clean)
		require.Zero(t, d.found.Lost)
		number := d.publish("a", "20")
		require.EqualValues(t, 1+1<<20, number, "no number below the lease may be used again")
		d.kill()

		next := d.read(segmentName(number))
		d.write(segmentName(number), next[:len(next)-1])
		d.mustStart()
		require.Zero(t, d.found.Lost)
		require.EqualValues(t, 20, d.found.Last)
		require.Equal(t, segmentName(number), d.found.CutFile)
		again := d.publish("a", "again")
		require.Greater(t, again, number)
		d.wantTopic("a", fmt.Sprint("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 ", again))
		d.kill()
		require.Equal(t, whole, d.read(segmentName(1)), "old files are not changed")
	}
}

// After a loss of power, messages of the last second may be missing: every topic announces
// one gap, also one that the log does not know. Nobody gets a number that was used.
func TestALossOfPowerIsAnnounced(t *testing.T) {
	d := newDisk(t)
	d.cfg.leaseNumbers = 100
	d.mustStart()
	d.publish("a", "1")
	d.publish("a", "2")
	d.powerOff()
	whole := d.read(segmentName(1))
	d.write(segmentName(1), append(whole[:len(whole)-30], make([]byte, 30)...))
	d.mustStart()
	require.EqualValues(t, 100, d.found.Lost)
	require.EqualValues(t, 1, d.found.Last)
	d.wantTopic("a", "1 gap(lost 1-100)")
	require.Equal(t, "gap(lost 2-100)", readTopic(t, d.Broker, "a@EPOCH:2", 10), "of a client that had seen 2")
	require.EqualValues(t, 101, d.publish("a", "3"))
	require.EqualValues(t, 102, d.publish("b", "1"))
	require.Equal(t, "gap(lost 1-100) 102", readTopic(t, d.Broker, "b@EPOCH:1", 10))

	// The next start knows it, too, even if it comes at once.
	for range 3 {
		d.kill()
		d.mustStart()
		require.Zero(t, d.found.Lost)
		d.wantTopic("a", "1 gap(lost 1-100) 101")
	}
	d.checkpoint()
	d.kill()
	d.mustStart()
	d.wantTopic("a", "1 gap(lost 1-100) 101")
	require.Equal(t, "gap(lost 1-100) 102", readTopic(t, d.Broker, "b@EPOCH:1", 10))
}

// With "always", nobody saw what the disk does not have: a loss of power loses nothing.
func TestAlwaysLosesNothing(t *testing.T) {
	d := newDisk(t)
	d.cfg.Sync, d.cfg.leaseNumbers = SyncAlways, 100
	d.mustStart()
	d.publish("a", "1")
	d.powerOff()
	d.mustStart()
	require.Zero(t, d.found.Lost)
	require.EqualValues(t, 101, d.publish("a", "2"))
	d.wantTopic("a", "1 101")
}

// What was durable and cannot be read was damaged. The daemon does not start, says what to
// do, and changes nothing.
func TestDamageRefusesTheStart(t *testing.T) {
	begin := func(t *testing.T) *disk {
		d := newDisk(t)
		d.cfg.segmentBytes = 350 // two messages
		d.mustStart()
		for range 6 {
			d.publish("a", strings.Repeat("1", 100))
			d.wal.syncStep(time.Now())
		}
		require.Equal(t, "1.log 3.log 5.log", d.files())
		return d
	}
	wantRefused := func(d *disk, want ...string) {
		d.Helper()
		before := d.files()
		err := d.start()
		require.Error(d, err)
		for _, want := range want {
			require.ErrorContains(d, err, want)
		}
		require.Equal(d, before, d.files())
	}
	flip := func(d *disk, name string, i int) {
		b := d.read(name)
		b[(i+len(b))%len(b)] ^= 1
		d.write(name, b)
	}
	for name, crash := range map[string]func(*disk){
		"killed": (*disk).kill, "without power": (*disk).powerOff,
		"in order": func(d *disk) { require.NoError(d, d.wal.close(time.Now())); d.cfg.BootID += "+" },
	} {
		t.Run("in the middle, "+name, func(t *testing.T) {
			d := begin(t)
			crash(d)
			flip(d, segmentName(3), 200)
			wantRefused(d, segmentName(3)+" has a bad record at byte ", "its checksum does not match", "Entries up to 2 can be read", "store repair")
		})
		t.Run("a missing file, "+name, func(t *testing.T) {
			d := begin(t)
			crash(d)
			require.NoError(t, os.Remove(filepath.Join(d.dir, segmentName(3))))
			wantRefused(d, segmentName(1), "the file ends after entry 2, but "+segmentName(5)+" continues after entry 4")
		})
		t.Run("a missing first file, "+name, func(t *testing.T) {
			d := begin(t)
			crash(d)
			require.NoError(t, os.Remove(filepath.Join(d.dir, segmentName(1))))
			wantRefused(d, segmentName(3)+" continues after entry 2, but the file before it is missing")
		})
		t.Run("a header, "+name, func(t *testing.T) {
			d := begin(t)
			crash(d)
			flip(d, segmentName(5), 40)
			wantRefused(d, segmentName(5)+" has a bad record at byte 16")
		})
		t.Run("a missing segment after a checkpoint, "+name, func(t *testing.T) {
			d := begin(t)
			d.checkpoint()
			crash(d)
			require.Equal(t, "6.checkpoint 7.log", d.files())
			require.NoError(t, os.Remove(filepath.Join(d.dir, segmentName(7))))
			wantRefused(d, "the checkpoint has the entries up to 6, but the segment after it is missing")
		})
		t.Run("a checkpoint, "+name, func(t *testing.T) {
			d := begin(t)
			d.checkpoint()
			crash(d)
			name := fileName(6, checkpointSuffix)
			whole := d.read(name)
			flip(d, name, 200)
			wantRefused(d, name+" has a bad record at byte ")
			d.write(name, whole[:len(whole)-noticeBytes])
			wantRefused(d, name, "the file has no end record")
			d.write(name, append(bytes.Clone(whole), 0))
			wantRefused(d, name, "data follows the end record")
		})
		t.Run("another log, "+name, func(t *testing.T) {
			d := begin(t)
			crash(d)
			other := newDisk(t)
			other.cfg.Seed = func() uint64 { return 43 }
			other.mustStart()
			other.publish("a", "1")
			other.kill()
			d.write(segmentName(1), other.read(segmentName(1)))
			wantRefused(d, "belongs to another log")
		})
	}
	t.Run("a changed record after a kill", func(t *testing.T) {
		d := begin(t)
		d.publish("a", "unsynced")
		d.kill()
		flip(d, segmentName(5), -1)
		wantRefused(d, segmentName(5)+" has a bad record at byte ")
	})
	t.Run("a file of another version", func(t *testing.T) {
		d := begin(t)
		d.kill()
		b := d.read(segmentName(5))
		b[7]++
		d.write(segmentName(5), b)
		wantRefused(d, `another version of pubsubd wrote it (format "pubsubL2"; this version reads "pubsubL1"): start that version`)
	})
}

// A checkpoint replaces older files. What follows it is read over it.
func TestACheckpointReplacesSegments(t *testing.T) {
	d := newDisk(t)
	d.cfg.segmentBytes = 220
	d.mustStart()
	for i := range 9 {
		d.publish("a", fmt.Sprint(i))
	}
	d.wal.wantCheckpoint()
	require.True(t, d.wal.checkpointStep(time.Now()))
	d.publish("a", "9")
	d.do(entryOf(broker.OpDelete, "a", ""))
	d.publish("a", "11")
	d.publish("b", "12")
	for d.wal.checkpointStep(time.Now()) {
	}
	require.Equal(t, "9.checkpoint 10.log", d.files())
	d.publish("a", "13")
	for _, crash := range []func(){d.kill, d.powerOff} {
		crash()
		d.cfg.Sync = SyncAlways
		d.mustStart()
		require.Contains(t, readTopic(t, d.Broker, "a@EPOCH:0", 100), "gap(deleted 0-11) 12 14")
		d.checkpoint()
	}
}

// A checkpoint begins when the segments have grown, and not again while they have not.
func TestACheckpointIsMadeWhenSegmentsHaveGrown(t *testing.T) {
	d := newDisk(t)
	d.cfg.checkpointBytes = 2000
	d.config.HistoryMessages = 3
	d.mustStart()
	for i := range 200 {
		d.publish("a", fmt.Sprintf("%0100d", i)[:0]+"1")
		for d.wal.checkpointStep(time.Now()) {
		}
		require.LessOrEqual(t, d.wal.bytesLocked(), int64(4000))
	}
	require.Contains(t, d.files(), ".checkpoint")
	require.NotContains(t, d.files(), " 1.log")
}

// A daemon is killed again and again, and each time has published little. A checkpoint
// replaces its segments, so that the next start need not read thousands of files.
func TestManyStartsLeaveFewFiles(t *testing.T) {
	d := newDisk(t)
	d.cfg.Logger = zap.NewNop()
	for range 2 * spareSegments {
		d.mustStart()
		d.publish("a", "1")
		for d.wal.checkpointStep(time.Now()) {
		}
		d.kill()
	}
	names, err := d.cfg.FS.List()
	require.NoError(t, err)
	require.Less(t, len(names), spareSegments+5)
}

// The disk has space for segments, but not for a checkpoint. It is tried less and less often,
// so that attempts do not fill the disk all the time.
func TestACheckpointThatFailsIsTriedLessOften(t *testing.T) {
	d := newDisk(t)
	attempts, fails := 0, true
	d.cfg.FS = &faultyFS{FS: d.cfg.FS, fail: func(call, name string) error {
		if call == "create" && strings.Contains(name, checkpointSuffix) && fails {
			attempts++
			return syscall.ENOSPC
		}
		return nil
	}}
	d.mustStart()
	d.wal.wantCheckpoint()
	now := time.Now()
	pass := func(seconds int) {
		for range seconds {
			now = now.Add(time.Second)
			d.publish("a", "1")
			for d.wal.checkpointStep(now) {
			}
		}
	}
	pass(600)
	require.Equal(t, 15, attempts)
	names, err := d.cfg.FS.List()
	require.NoError(t, err)
	require.Less(t, len(names), 20)
	fails = false
	pass(60)
	require.False(t, d.wal.wanted)
}

// faultyFS fails calls.
type faultyFS struct {
	FS
	fail func(call, name string) error
	room int // larger writes fail; 0: none
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

// The disk is full. Publishes are refused, and the publisher is told why, but not where.
// What was published before is delivered. When there is space again, publishes succeed.
func TestAFullDiskRefusesPublishes(t *testing.T) {
	for name, cut := range map[string]error{"cut": nil, "not cut": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			core, logged := observer.New(zap.InfoLevel)
			d.cfg.Logger = zap.New(core)
			failing := d.withFaults()
			d.mustStart()
			d.publish("a", "1")
			failing["write"], failing["truncate"] = syscall.ENOSPC, cut
			for range 3 {
				problem := d.wantRefused("a")
				require.Contains(t, problem.Detail, "no space left on device")
				require.NotContains(t, problem.Error(), d.dir)
				d.wal.syncStep(time.Now())
				require.Error(t, d.wal.Stats().Fault)
				d.wantTopic("a", "1")
			}
			clear(failing)
			d.wal.syncStep(time.Now())
			require.NoError(t, d.wal.Stats().Fault, "nobody has published since")
			for _, once := range []string{"the log on disk cannot be written: publishes are refused until it can be written", "the log on disk can be written again"} {
				require.Equal(t, 1, logged.FilterMessage(once).Len(), once)
			}
			last := d.publish("a", "2")
			want := fmt.Sprint("1 ", last)
			d.wantTopic("a", want)
			d.kill()
			d.mustStart()
			d.wantTopic("a", want)
			d.checkpoint()
			d.kill()
			d.mustStart()
			d.wantTopic("a", want)
		})
	}
}

// A disk is full, but its last block takes small writes. That does not count as space: the fault
// is logged once, and ends when what was refused can be written.
func TestALittleSpaceIsNoSpace(t *testing.T) {
	d := newDisk(t)
	core, logged := observer.New(zap.InfoLevel)
	d.cfg.Logger = zap.New(core)
	disk := &faultyFS{FS: d.cfg.FS, fail: func(string, string) error { return nil }}
	d.cfg.FS = disk
	d.mustStart()
	large := strings.Repeat("1", 1000)
	disk.room = 900
	for range 3 {
		require.Error(t, d.do(entryOf(broker.OpPublish, "a", large))[0].Err)
		d.wal.syncStep(time.Now())
		require.Error(t, d.wal.Stats().Fault)
	}
	disk.room = 0
	d.wal.syncStep(time.Now())
	require.NoError(t, d.wal.Stats().Fault)
	require.Len(t, logged.FilterMessageSnippet("the log on disk can").All(), 2)
	last := d.publish("a", large)
	d.kill()
	d.mustStart()
	d.wantTopic("a", fmt.Sprint(last))
}

// The disk loses what was written, and says so at a sync. No file that was not durable is
// used again. Publishes succeed once a checkpoint has everything that subscribers saw.
func TestAFailedSyncIsRepairedByACheckpoint(t *testing.T) {
	for _, mode := range []SyncMode{SyncAlways, SyncEverySecond} {
		t.Run(string(mode), func(t *testing.T) {
			d := newDisk(t)
			d.cfg.Sync = mode
			failing := d.withFaults()
			d.mustStart()
			d.publish("a", "1")
			failing["sync"] = syscall.EIO
			if mode == SyncAlways {
				require.Contains(t, d.wantRefused("a").Detail, "input/output error")
			} else {
				d.publish("a", "2")
				d.wal.syncStep(time.Now())
			}
			now := time.Now()
			for i := range 5 {
				require.NotNil(t, d.wantRefused("a"))
				d.wal.syncStep(now)
				require.False(t, d.wal.checkpointStep(now.Add(time.Duration(2*i)*time.Second)) && d.wal.checkpointStep(now) && d.wal.checkpointStep(now), "it fails")
			}
			require.LessOrEqual(t, len(strings.Fields(d.files())), 4, d.files())
			clear(failing)
			now = now.Add(time.Minute)
			for d.wal.checkpointStep(now) {
			}
			require.NoError(t, d.wal.Stats().Fault)
			require.Len(t, strings.Fields(d.files()), 2, d.files())
			last := d.publish("a", "3")
			d.kill()
			d.mustStart()
			require.Contains(t, readTopic(t, d.Broker, "a@EPOCH:0", 100), fmt.Sprint(last))
		})
	}
}

// Two goroutines sync a segment. As Linux does, the disk tells only the first of them that it
// could not write. The deletion of the second one is not acknowledged.
func TestAFailureOfOneSyncIsThatOfBoth(t *testing.T) {
	d := newDisk(t)
	began, goOn, syncs := make(chan struct{}), make(chan struct{}), atomic.Int32{}
	d.cfg.FS = &faultyFS{FS: d.cfg.FS, fail: func(call, _ string) error {
		if call != "sync" || syncs.Add(1) != 2 { // the first is that of the start
			return nil
		}
		close(began)
		<-goOn
		return syscall.EIO
	}}
	d.mustStart()
	d.publish("a", "1")
	var both sync.WaitGroup
	both.Go(func() { _ = d.wal.sync() })
	<-began
	var results []broker.Result
	d.wal.Append([]broker.Entry{entryOf(broker.OpDelete, "a", "")}, func(r []broker.Result) { results = r })
	both.Go(func() { d.wal.step(time.Now()) })
	for d.wal.writing.TryLock() { // until the deletion is being written
		d.wal.writing.Unlock()
		runtime.Gosched()
	}
	close(goOn)
	both.Wait()
	require.Error(t, results[0].Err)
	d.wantTopic("a", "1")
	for d.wal.checkpointStep(time.Now()) {
	}
	require.NoError(t, d.wal.Stats().Fault)
	require.NoError(t, d.do(entryOf(broker.OpDelete, "a", ""))[0].Err)
}

// The disk hangs while a batch is made durable. The state of the log can be read. After a while
// more is refused at once, until the disk goes on.
func TestStatsDoNotWaitForTheDisk(t *testing.T) {
	d := newDisk(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	files := &faultyFS{FS: d.cfg.FS, fail: func(string, string) error { return nil }}
	d.cfg.FS, d.cfg.Sync = files, SyncAlways
	d.mustStart()
	last := d.publish("a", "1")
	files.fail = func(call, _ string) error {
		if call == "sync" {
			close(began)
			<-goOn
		}
		return nil
	}
	d.wal.Append([]broker.Entry{entryOf(broker.OpPublish, "a", "2")}, func([]broker.Result) {})
	d.wal.Append([]broker.Entry{entryOf(broker.OpPublish, "a", "3")}, func([]broker.Result) {})
	var writer sync.WaitGroup
	d.wal.cfg.batchBytes = 1
	writer.Go(func() { d.wal.step(time.Now().Add(-longestBatch)) })
	<-began
	is := d.wal.Stats()
	require.Equal(t, last, is.Last)
	require.Positive(t, is.Waiting)
	require.ErrorIs(t, is.Fault, errHangs)
	var refused []broker.Result
	d.wal.Append([]broker.Entry{entryOf(broker.OpPublish, "a", "4")}, func(r []broker.Result) { refused = r })
	require.ErrorContains(t, refused[0].Err, "the disk has not answered for 10s")
	close(goOn)
	writer.Wait()
	is = d.wal.Stats()
	require.Equal(t, last+1, is.Last)
	require.NoError(t, is.Fault)
}

// Too many publishes wait: more are refused at once, and no memory is used for them.
func TestEntriesThatWaitAreBounded(t *testing.T) {
	d := newDisk(t)
	d.cfg.pendingBytes, d.cfg.batchBytes = 3000, 1000
	d.mustStart()
	refused, done := 0, 0
	for range 20 {
		d.wal.Append([]broker.Entry{entryOf(broker.OpPublish, "a", "1")}, func(r []broker.Result) {
			var problem *wire.Problem
			if errors.As(r[0].Err, &problem) {
				require.Equal(t, wire.CodeOverloaded, problem.Code)
				refused++
			} else {
				done++
			}
		})
	}
	require.Equal(t, 9, refused)
	require.Zero(t, done)
	require.True(t, d.wal.step(time.Now()), "a batch is bounded")
	for d.wal.step(time.Now()) {
	}
	require.Equal(t, 11, done)
}

// A message that no record can hold is refused. Others of the same batch are not.
func TestAMessageThatIsTooLargeIsRefused(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	r := d.do(entryOf(broker.OpPublish, "a", "1"), entryOf(broker.OpPublish, "a", strings.Repeat("1", maxBody)), entryOf(broker.OpPublish, "a", "3"))
	require.NoError(t, r[0].Err)
	require.ErrorIs(t, r[1].Err, &wire.Problem{Code: wire.CodeMessageTooLarge})
	require.NoError(t, r[2].Err)
	d.wantTopic("a", "1 3")
	d.kill()
	d.mustStart()
	d.wantTopic("a", "1 3")
}

// The files reach store.bytes. Publishes are refused until a checkpoint has made space, and
// the files never take more.
func TestTheFilesAreBounded(t *testing.T) {
	d := newDisk(t)
	d.cfg.Bytes = 40_000
	d.config.HistoryMessages = 10_000
	d.mustStart()
	for i := range 2000 {
		r := d.do(entryOf(broker.OpPublish, fmt.Sprint("t.", i%3), strings.Repeat("1", 100)))
		if r[0].Err != nil {
			require.ErrorContains(t, r[0].Err, "the log has reached store.bytes")
		}
		if i%20 == 0 {
			d.wal.syncStep(time.Now())
		}
		if i%5 == 0 {
			d.wal.checkpointStep(time.Now())
		}
		require.LessOrEqual(t, d.wal.bytesLocked(), int64(44_000))
	}
	require.NoError(t, d.wal.close(time.Now()))
	d.mustStart()
	d.publish("a", "1")
}

// The limit of topics is lowered, so topics of the log cannot be held. The others can still be
// forgotten, and positions of patterns stay below those that come later.
func TestTopicsAreForgottenAfterTheLimitWasLowered(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	for i := range 100 {
		d.publish(fmt.Sprint("t.", i), "1")
	}
	d.checkpoint()
	d.kill()
	d.config.MaxTopics = 1
	d.mustStart()
	d.KeepTopics(time.Time{})
	held := d.Topics(broker.NewListing([]string{">"}, func(string) bool { return true }), "", 2).Topics
	require.Len(t, held, 1)
	d.Sweep(time.Now().Add(2 * time.Hour))
	for d.wal.step(time.Now()) {
	}
	require.False(t, d.Has(held[0].Topic))
	require.Equal(t, d.wal.applied.Load(), d.PatternPosition(">").Offset)
}

// Idempotency keys take more than a checkpoint may have. The topics do not lose all but their
// newest message for that.
func TestKeysLeaveSpaceToMessages(t *testing.T) {
	d := newDisk(t)
	d.cfg.Bytes = 400_000
	d.mustStart()
	for i := range 20 {
		d.publish("a", fmt.Sprint(i))
	}
	for i := range 1000 {
		e := entryOf(broker.OpPublish, "b", "1")
		e.Key.Scope = broker.Digest{byte(i), byte(i >> 8)}
		require.NoError(t, d.do(e)[0].Err)
	}
	d.wal.syncStep(time.Now())
	a, _ := d.Topic("a")
	require.Equal(t, 20, a.Messages)
	b, _ := d.Topic("b")
	require.Less(t, b.Messages, 100)
	require.Greater(t, b.Messages, 10)
}

// No message can be evicted, because each topic has one, and the newest checkpoint alone has
// reached store.bytes. Publishes are accepted again once topics were deleted.
func TestDeletionsFreeTheFiles(t *testing.T) {
	d := newDisk(t)
	d.cfg.Bytes = 400_000
	d.mustStart()
	publish := func(from, n int) (refused int) {
		for i := range n {
			if d.do(entryOf(broker.OpPublish, fmt.Sprint("t.", from+i), `"`+strings.Repeat("1", 10_000)+`"`))[0].Err != nil {
				refused++
			}
			for d.wal.checkpointStep(time.Now()) {
			}
		}
		return refused
	}
	require.Positive(t, publish(0, 100))
	require.Positive(t, publish(100, 1))
	d.kill()
	d.mustStart()
	require.Positive(t, publish(101, 1))
	for i := range 100 {
		d.do(entryOf(broker.OpDelete, fmt.Sprint("t.", i), ""))
	}
	for d.wal.checkpointStep(time.Now()) {
	}
	require.Zero(t, publish(0, 5))
}

// A log has one small file, whose beginning is damaged. It is not taken for one that a first
// start left behind.
func TestASmallLogWithABadHeaderIsRefused(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	d.publish("a", "1")
	d.kill()
	l, _, err := openFile(d.cfg.FS, segmentName(1), segmentMagic, 1)
	require.NoError(t, err)
	require.NoError(t, l.reader.Close())
	whole := d.read(segmentName(1))
	for i := range int(l.at) {
		changed := []byte(string(whole))
		changed[i] ^= 0x40
		d.write(segmentName(1), changed)
		require.Error(t, d.start(), i)
	}
	for size := 1; size < int(l.at); size++ {
		d.write(segmentName(1), whole[:size])
		require.Error(t, d.start(), size)
	}
	d.write(segmentName(1), whole)
	d.mustStart()
	d.wantTopic("a", "1")
}

// A daemon with a state file changes to a log: the log begins with the state, in the same
// epoch, above all its offsets. A crash before it is whole leaves nothing.
func TestALogBeginsWithAState(t *testing.T) {
	d := newDisk(t)
	old := newBroker(d.config)
	for range 3 {
		publish(t, old, "a")
	}
	begin := func() error {
		d.Broker = broker.NewWithLog(d.config, metrics.New("test"), time.Now(), func(b *broker.Broker) broker.Log {
			d.wal = NewWAL(d.cfg, b)
			return d.wal
		})
		apply := func(e broker.Entry) error {
			m := *e.Message
			e.Message = &m
			_, err := d.Apply(e)
			return err
		}
		require.NoError(t, old.Export(apply))
		return d.wal.open(apply, time.Now())
	}
	require.NoError(t, begin())
	require.Equal(t, old.Epoch("a"), d.Epoch("a"))
	require.EqualValues(t, 4, d.publish("b", "1"))
	d.kill()
	require.Equal(t, "3.checkpoint 4.log", d.files())
	d.mustStart()
	d.wantTopic("a", "1 2 3")
	later := segmentName(d.wal.newest)
	d.kill()

	require.NoError(t, os.Remove(filepath.Join(d.dir, fileName(3, checkpointSuffix))))
	require.ErrorContains(t, d.start(), "continues after entry 3")
	l, _, err := openFile(d.cfg.FS, segmentName(4), segmentMagic, 4)
	require.NoError(t, err)
	require.NoError(t, l.reader.Close())
	d.write(segmentName(4), d.read(segmentName(4))[:l.at])
	require.NoError(t, os.Remove(filepath.Join(d.dir, later)))
	require.NoError(t, begin(), "a crash came before the checkpoint")
	d.wantTopic("a", "1 2 3")
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

// Many publish at once, while segments and checkpoints follow one another. After the end,
// the next daemon has all that was acknowledged.
func TestPublishersShareTheLog(t *testing.T) {
	for _, mode := range []SyncMode{SyncAlways, SyncEverySecond, SyncNever} {
		t.Run(string(mode), func(t *testing.T) {
			d := newDisk(t)
			d.cfg.Sync, d.cfg.segmentBytes, d.cfg.checkpointBytes, d.cfg.leaseNumbers, d.cfg.batchBytes = mode, 8<<10, 16<<10, 300, 4<<10
			d.cfg.Logger = zap.NewNop()
			end := d.run()
			const publishers, each = 16, 100
			var all sync.WaitGroup
			for i := range publishers {
				all.Go(func() {
					for n := range each {
						_, err := d.Publish(&wire.Message{Position: wire.Position{Topic: fmt.Sprint("t.", i)}, Data: fmt.Append(nil, n)}, 0, time.Now())
						require.NoError(t, err)
					}
				})
			}
			all.Wait()
			_, err := d.Delete("t.0", time.Now())
			require.NoError(t, err)
			require.ErrorIs(t, end(), context.Canceled)
			_, err = d.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now())
			require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeDraining})

			end = d.run()
			require.True(t, d.found.Clean)
			for i := range publishers {
				state, ok := d.Topic(fmt.Sprint("t.", i))
				require.True(t, ok)
				require.Equal(t, map[bool]int{true: 0, false: each}[i == 0], state.Messages)
			}
			require.ErrorIs(t, end(), context.Canceled)
		})
	}
}

// A publish costs little more than in memory. The modes differ in what they wait for.
func BenchmarkPublish(b *testing.B) {
	dirs := map[string]string{"disk": b.TempDir(), "tmpfs": "/dev/shm"}
	for _, publishers := range []int{1, 64} {
		b.Run(fmt.Sprintf("memory/%d", publishers), func(b *testing.B) {
			benchmarkPublish(b, broker.New(broker.Config{}, metrics.New("test"), time.Now()), publishers)
		})
		for _, where := range []string{"tmpfs", "disk"} {
			for _, mode := range []SyncMode{SyncNever, SyncEverySecond, SyncAlways} {
				b.Run(fmt.Sprintf("%s/%s/%d", where, mode, publishers), func(b *testing.B) { benchmarkLog(b, dirs[where], mode, publishers) })
			}
		}
	}
}

func benchmarkLog(b *testing.B, parent string, mode SyncMode, publishers int) {
	dir, err := os.MkdirTemp(parent, "pubsubd-log-")
	if err != nil {
		b.Skipf("there is no %s: %v", parent, err)
	}
	defer func() { require.NoError(b, os.RemoveAll(dir)) }()
	files, err := OpenDir(dir)
	require.NoError(b, err)
	recovered, ended := make(chan struct{}), make(chan error, 1)
	cfg := WALConfig{FS: files, Sync: mode, BootID: "boot", Seed: rand.Uint64, Recovered: func(Recovery) { close(recovered) }}
	on := broker.NewWithLog(broker.Config{}, metrics.New("test"), time.Now(), func(on *broker.Broker) broker.Log { return NewWAL(cfg, on) })
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- on.Feed(ctx) }()
	<-recovered
	benchmarkPublish(b, on, publishers)
	cancel()
	require.ErrorIs(b, <-ended, context.Canceled)
}

func benchmarkPublish(b *testing.B, on *broker.Broker, publishers int) {
	var next atomic.Int64
	var all sync.WaitGroup
	b.ReportAllocs()
	var before, after syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
	b.ResetTimer()
	for i := range publishers {
		all.Go(func() {
			topic, data := fmt.Sprint("prices.acme.", i), []byte(`"`+strings.Repeat("x", 98)+`"`)
			for next.Add(1) <= int64(b.N) {
				if _, err := on.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: data}, 0, time.Now()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// A daemon is told to stop while it reads a large log. It stops at once, and leaves the log as
// it was for the next start.
func TestAStartCanBeStopped(t *testing.T) {
	for name, checkpoints := range map[string]bool{"segments": false, "a checkpoint": true} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			d.config.HistoryBytes = 64 << 20
			d.mustStart()
			for range 64 {
				d.publish("a", `"`+strings.Repeat("x", 32<<10)+`"`)
			}
			last := d.publish("a", "1")
			if checkpoints {
				d.checkpoint()
			}
			d.kill()
			stopped, stop := context.WithCancel(t.Context())
			d.cfg.Progress = func(read, all int64) {
				require.LessOrEqual(t, read, all)
				stop()
			}
			d.Broker = broker.NewWithLog(d.config, metrics.New("test"), time.Now(), func(b *broker.Broker) broker.Log {
				d.wal = NewWAL(d.cfg, b)
				return d.wal
			})
			require.ErrorIs(t, d.Feed(stopped), context.Canceled)
			d.cfg.Progress = nil
			d.mustStart()
			require.Equal(t, last, d.found.Last)
		})
	}
}
