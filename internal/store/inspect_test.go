package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// far is where a repair of the log of damaged goes on: its lease is 100.
const far = 100 + leaseUnknown

// damaged returns a log with two messages in each of its segments, of which the second has a
// bad record.
func damaged(t *testing.T) *disk {
	d := newDisk(t)
	d.cfg.segmentBytes, d.cfg.leaseNumbers = 350, 100
	d.mustStart()
	for range 6 {
		d.publish("a", strings.Repeat("1", 100))
		d.wal.syncStep(time.Now())
	}
	require.Equal(t, "1.log 3.log 5.log", d.files())
	d.kill()
	b := d.read(segmentName(3))
	b[len(b)-1] ^= 1
	d.write(segmentName(3), b)
	return d
}

func (d *disk) repair() Recovery {
	d.Helper()
	found, err := Repair(d.cfg)
	require.NoError(d, err)
	return found
}

// A start is refused. The operator looks at the files, and repairs the log. It keeps what can
// be read. Subscribers get a gap where messages are missing, and another at the end, since
// nobody knows what was there. The old files stay, with other names.
func TestADamagedLogIsRepaired(t *testing.T) {
	d := damaged(t)
	before := d.files()
	_, err := verify(d.cfg)
	require.ErrorContains(t, err, segmentName(3)+" has a bad record at byte ")
	require.Equal(t, before, d.files())
	c := d.inspect()
	require.Contains(t, c.Refused, segmentName(3)+" has a bad record at byte ")
	require.Equal(t, []any{5, int64(500), 1}, []any{c.Messages, c.Bytes, c.Topics}, "that a repair would keep")
	require.EqualError(t, d.start(), "store: "+c.Refused)
	require.Len(t, c.Damage, 1)
	bad := c.Damage[0]
	require.Equal(t, segmentName(3), bad.File)
	require.Positive(t, bad.Offset)
	require.Less(t, bad.Offset, int64(len(d.read(segmentName(3)))))
	require.Equal(t, "its checksum does not match", bad.Why)
	require.EqualValues(t, far, c.Lost)
	require.Equal(t, 5, c.Messages, "which a repair keeps")
	require.Equal(t, FileContents{Name: segmentName(1), Kind: KindSegment, Bytes: int64(len(d.read(segmentName(1)))), Entries: 2, First: 1, Last: 2, Lease: 100, Boot: "boot 1"}, c.Files[0])
	require.Equal(t, &bad, c.Files[1].Bad)
	require.Equal(t, 1, c.Files[1].Entries)
	_, err = Export(d.cfg, io.Discard, time.Now())
	require.ErrorContains(t, err, "bad record")

	found := d.repair()
	require.EqualValues(t, 6, found.Last)
	require.EqualValues(t, far, found.Lost)
	require.Contains(t, d.files(), fmt.Sprintf("1.log.old 3.log.old 5.log.old %d.checkpoint %d.log", far, far+1))
	d.mustStart()
	d.wantTopic("a", fmt.Sprintf("1 2 3 gap(lost 3-4) 5 6 gap(lost 6-%d)", far))
	require.EqualValues(t, far+2, d.publish("a", "1"))
	require.Contains(t, d.files(), "1.log.old")
}

// The same for a missing file, a checkpoint, and what follows a checkpoint.
func TestEveryDamageCanBeRepaired(t *testing.T) {
	remove := func(d *disk, name string) { require.NoError(d, os.Remove(filepath.Join(d.dir, name))) }
	for name, c := range map[string]struct {
		damage func(d *disk)
		want   string
		upTo   int
	}{
		"a first file":  {func(d *disk) { remove(d, segmentName(1)) }, "gap(lost 0-2) 3 gap(lost 3-4) 5 6 gap(lost 6-%d)", far},
		"a middle file": {func(d *disk) { remove(d, segmentName(3)) }, "1 2 gap(lost 2-4) 5 6 gap(lost 6-%d)", far},
		"a last header": {func(d *disk) { d.write(segmentName(5), d.read(segmentName(5))[:30]) }, "1 2 3 gap(lost 3-%d)", far + 5}, // its header may have had a lease
		"a checkpoint": {func(d *disk) {
			d.repair()
			name := fileName(far, checkpointSuffix)
			b := d.read(name)
			d.write(name, b[:len(b)-noticeBytes-1])
		}, "1 2 3 gap(lost 3-4) 5 gap(lost 5-%d)", far + far}, // message 6 was at its end
		"a segment after a checkpoint": {func(d *disk) {
			d.repair()
			remove(d, segmentName(far+1))
		}, "1 2 3 gap(lost 3-4) 5 6 gap(lost 6-%d)", far + far},
	} {
		t.Run(name, func(t *testing.T) {
			d := damaged(t)
			c.damage(d)
			require.Error(t, d.start())
			epoch := d.found.Epoch
			d.repair()
			d.mustStart()
			require.Equal(t, epoch, d.Epoch("a"))
			d.wantTopic("a", fmt.Sprintf(c.want, c.upTo))
		})
	}
}

// A repair fails since the disk is full. It says so, and the next repair keeps as much.
func TestARepairFailsOnAFullDisk(t *testing.T) {
	d := damaged(t)
	disk := d.cfg.FS
	d.cfg.FS = &faultyFS{FS: disk, fail: func(call, name string) error {
		if call == "write" && strings.Contains(name, checkpointSuffix) {
			return syscall.ENOSPC
		}
		return nil
	}}
	_, err := Repair(d.cfg)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotContains(t, d.files(), ".old")
	d.cfg.FS = disk
	require.Error(t, d.start())
	require.Equal(t, 5, d.inspect().Messages)
	d.repair()
	d.mustStart()
	require.Contains(t, readTopic(t, d.Broker, "a@EPOCH:0", 1000), "1 2 3 gap(lost 3-4) 5 6 gap(lost 6-")
}

// A backup is restored and repaired. The daemon has used many more numbers since, beyond the
// lease that the backup has. They are not used again.
func TestARestoredBackupContinuesFarAbove(t *testing.T) {
	d := newDisk(t)
	d.cfg.leaseNumbers = 100
	d.mustStart()
	d.publish("a", "1")
	name := segmentName(1)
	d.wal.syncStep(time.Now())
	backup := d.read(name)
	var newest uint64
	for newest < 300 {
		newest = d.publish("a", "1")
	}
	d.kill()
	d.write(name, backup)
	require.Less(t, d.inspect().Lease, newest)
	d.repair()
	d.mustStart()
	require.Greater(t, d.publish("a", "1"), newest)
}

// inspect returns what a snapshot of the folder has.
func (d *disk) inspect() Contents {
	d.Helper()
	files, err := OpenSnapshot(d.dir)
	require.NoError(d, err)
	defer files.Close()
	c, err := Inspect(files, d.cfg.BootID)
	require.NoError(d, err)
	return c
}

// exported returns what Export writes, with the file system of cfg.
func (d *disk) exported(cfg WALConfig) string {
	d.Helper()
	var to bytes.Buffer
	n, err := Export(cfg, &to, time.Now())
	require.NoError(d, err)
	require.Equal(d, n, strings.Count(to.String(), "\n"))
	return to.String()
}

// An operator checks a backup, and writes its messages. Neither changes anything.
func TestAHealthyLogIsVerifiedAndExported(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	d.publish("a", "1")
	d.publish("gone", "2")
	d.checkpoint()
	d.do(entryOf(broker.OpDelete, "gone", ""))
	d.publish("b", `{"n":4}`)
	short := entryOf(broker.OpPublish, "b", "5")
	short.TTL, short.Message.Time = time.Second, short.Message.Time-time.Minute.Milliseconds()
	d.do(short)
	_, err := verify(d.cfg)
	require.ErrorContains(t, err, "in use by another daemon")
	d.kill()
	before := d.files()
	found, err := verify(d.cfg)
	require.NoError(t, err)
	require.EqualValues(t, 5, found.Last)
	require.Zero(t, found.Lost)
	want := `{"position":"a@` + found.Epoch + `:1","time":`
	got := d.exported(d.cfg)
	require.Contains(t, got, want)
	require.Contains(t, got, `"data":{"n":4}}`+"\n")
	require.Equal(t, 2, strings.Count(got, "\n"))
	c := d.inspect()
	require.Equal(t, []int{3, 3}, []int{c.Topics, c.Messages}, "the log does not know that one has expired: %+v", c)
	require.Equal(t, found.Epoch, c.Epoch)
	require.False(t, c.Clean)
	require.Empty(t, c.Refused)
	require.Zero(t, c.Lost)
	d.cfg.BootID = "boot 2"
	found, err = verify(d.cfg)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, found.Lost, "a start would announce it")
	require.EqualValues(t, 1<<20, d.inspect().Lost)
	require.Equal(t, before, d.files())
}

// A daemon writes and makes checkpoints while an operator looks: a snapshot stays as it was.
func TestASnapshotStaysAsItWas(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	d.publish("a", "1")
	files, err := OpenSnapshot(d.dir)
	require.NoError(t, err)
	defer files.Close()
	d.publish("a", "2")
	d.checkpoint()
	d.publish("b", "3")
	require.NotContains(t, d.files(), "1.log ", "the snapshot's file is removed")
	c, err := Inspect(files, d.cfg.BootID)
	require.NoError(t, err)
	require.Empty(t, c.Refused)
	require.Equal(t, 1, c.Messages)
	cfg := d.cfg
	cfg.FS = files
	require.Equal(t, 1, strings.Count(d.exported(cfg), "\n"))
	require.Equal(t, 3, d.inspect().Messages)

	for _, change := range []error{files.Remove("x"), files.Rename("x", "y"), files.SyncDir()} {
		require.ErrorIs(t, change, errReadOnly)
	}
	_, err = OpenSnapshot(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Each byte of a log is changed once. Inspect says that a start is refused if it is, and says
// where; after a repair, a start is not refused.
func TestInspectSaysWhatAStartDoes(t *testing.T) {
	d := newDisk(t)
	d.cfg.segmentBytes, d.cfg.leaseNumbers = 350, 100
	d.mustStart()
	for range 3 {
		d.publish("a", `"`+strings.Repeat("1", 50)+`"`)
	}
	d.checkpoint()
	for range 5 {
		d.publish("b", `"`+strings.Repeat("2", 50)+`"`)
	}
	d.kill()
	files := make(map[string][]byte)
	for _, f := range d.inspect().Files {
		if f.Kind != KindOther {
			files[f.Name] = d.read(f.Name)
		}
	}
	refused, step := 0, exhaustive.Step(61)
	for name, content := range files {
		for i := 0; i < len(content); i += step {
			d := &disk{T: t, dir: filepath.Join(t.TempDir(), "log"), cfg: d.cfg, config: d.config}
			var err error
			d.cfg.FS, err = OpenDir(d.dir)
			require.NoError(t, err)
			d.cfg.Recovered = nil
			for name, content := range files {
				d.write(name, content)
			}
			changed := bytes.Clone(content)
			changed[i] ^= 0x11
			d.write(name, changed)
			c := d.inspect()
			err = d.start()
			d.kill()
			require.Equal(t, err != nil, c.Refused != "", "byte %d of %s: %v; %+v", i, name, err, c)
			if err == nil {
				continue
			}
			refused++
			if strings.Contains(c.Refused, "belongs to another log") {
				continue
			}
			require.NotEmpty(t, c.Damage, "byte %d of %s: %s", i, name, c.Refused)
			d.repair()
			d.mustStart()
			d.kill()
		}
	}
	require.Positive(t, refused)
}

// A running daemon renames files, such as a new mark each second, while a snapshot is opened. The
// snapshot has each file that it lists.
func TestASnapshotHasTheFilesThatItLists(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 { // they give the other goroutine time between the list and the mark
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("other", i)), nil, 0o600))
	}
	unfinished := filepath.Join(dir, markName+unfinishedSuffix)
	stop, renaming := make(chan struct{}), sync.WaitGroup{}
	renaming.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.WriteFile(unfinished, nil, 0o600)
			_ = os.Rename(unfinished, filepath.Join(dir, markName))
		}
	})
	defer func() { close(stop); renaming.Wait() }()
	for range 300 / exhaustive.Step(3) {
		s, err := OpenSnapshot(dir)
		require.NoError(t, err)
		names, err := s.List()
		require.NoError(t, err)
		for _, name := range names {
			_, err := s.Open(name)
			require.NoError(t, err)
		}
		require.NoError(t, s.Close())
	}
}

// verify reads a log as a start does, and changes nothing. The error says why a daemon would
// not start.
func verify(cfg WALConfig) (Recovery, error) {
	return readOnly(NewWAL(cfg, nil), func(broker.Entry) error { return nil })
}
