package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/entry"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/metrics"
)

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

// The machine loses power again and again, more often than losses are remembered one by one.
// What is durable stays.
func TestManyLossesOfPowerLoseNothingThatIsDurable(t *testing.T) {
	d := newDisk(t)
	d.cfg.leaseNumbers = 200
	d.mustStart()
	for range 100 {
		d.publish("a", "1")
	}
	d.wal.syncStep(time.Now())
	var last uint64
	for i := range 40 {
		last = d.publish("b", fmt.Sprint(i))
		d.powerOff()
		d.mustStart()
		require.NotZero(t, d.found.Lost)
	}
	for range 2 {
		for topic, messages := range map[string]int{"a": 100, "b": 40} {
			state, ok := d.Topic(topic)
			require.True(t, ok)
			require.Equal(t, messages, state.Messages, topic)
			require.Greater(t, state.Position.Offset, last, "the last loss, too, is announced")
		}
		d.checkpoint()
		d.kill()
		d.mustStart()
	}
}

// After a clean stop, the header of the newest segment cannot be read: a daemon has begun it
// since, so the stop was not the end. What it may have had is announced as lost, and no number is
// given again.
func TestAStopIsNotTheEndIfAFileFollowsIt(t *testing.T) {
	for before := 0; before < 80; before += exhaustive.Step(7) { // messages; the header may have a higher lease than any other file
		d := newDisk(t)
		d.cfg.Sync, d.cfg.leaseNumbers = []SyncMode{SyncEverySecond, SyncNever}[before%2], 100
		d.mustStart()
		for range 1 + before {
			d.publish("a", "1")
		}
		require.NoError(t, d.wal.close(time.Now()))
		d.mustStart()
		var last uint64
		for range 50 {
			last = d.publish("a", "2")
		}
		d.powerOff()
		files := strings.Fields(d.files())
		newest := files[len(files)-1]
		number, ok := numberOf(strings.Repeat("0", 24-len(newest))+newest, segmentSuffix)
		require.True(t, ok, newest)
		bytes := d.read(segmentName(number))
		bytes[40] ^= 1
		d.write(segmentName(number), bytes)
		d.mustStart()
		require.False(t, d.found.Clean)
		require.GreaterOrEqual(t, d.found.Lost, last)
		require.Greater(t, d.publish("a", "3"), last)
	}
}

// A file whose number is near the largest offset refuses the start: the next files would have
// names that no start recognises.
func TestANumberThatNoLogReachesRefusesTheStart(t *testing.T) {
	for _, number := range []string{
		fmt.Sprintf("%020d", uint64(mostNumber+1)), fmt.Sprintf("%020d", uint64(entry.MaxOffset)), fmt.Sprintf("%020d", uint64(entry.MaxOffset+1)), "18446744073709551615", "99999999999999999999",
	} {
		for _, suffix := range []string{segmentSuffix, checkpointSuffix} {
			d := newDisk(t)
			d.mustStart()
			d.publish("a", "1")
			d.kill()
			d.write(number+suffix, d.read(segmentName(1)))
			require.ErrorContains(t, d.start(), "a number that no log reaches")
		}
	}
}

// A newer release has written an entry that this one does not know. The start is refused, and a
// repair does not drop it, unless the log says that it may be skipped.
func TestAnEntryOfANewerReleaseIsRefusedOrSkipped(t *testing.T) {
	for _, k := range []kind{entry.Kind(20), entry.Publish | 1<<5} {
		d := newDisk(t)
		d.mustStart()
		d.publish("a", "1")
		d.kill()
		name := segmentName(1)
		before := d.read(name)
		with := func(k kind) {
			b := appendRecord(bytes.Clone(before), record{k, 2, []byte("\x01a...")}, keyOfFile(42, 1))
			e := entryOf(broker.OpPublish, "a", "3")
			b, err := appendEntry(b, &e, 3, keyOfFile(42, 1))
			require.NoError(t, err)
			d.write(name, b)
		}
		with(k)
		const why = "which this one does not know: start that release, or a newer one"
		require.ErrorContains(t, d.start(), why)
		require.ErrorContains(t, d.start(), fmt.Sprintf("%s, byte %d: a newer release", name, len(before)))
		c, err := Inspect(d.cfg.FS, d.cfg.BootID)
		require.NoError(t, err)
		require.Contains(t, c.Refused, why)
		require.Empty(t, c.Damage)
		_, err = Repair(d.cfg)
		require.ErrorContains(t, err, why)

		with(k | entry.Optional)
		d.mustStart()
		require.Equal(t, 1, d.found.Skipped)
		d.wantTopic("a", "1 3")
		d.kill()

		d.mustStart()
		d.checkpoint()
		d.kill()
		name = fileName(3, checkpointSuffix)
		before = d.read(name)
		end := len(before) - noticeBytes
		records := binary.LittleEndian.Uint64(before[end+recordHeadBytes:])
		for _, kind := range []kind{k, k | entry.Optional} {
			b := appendRecord(bytes.Clone(before[:end]), record{kind, 2, []byte("\x01a...")}, keyOfFile(42, 3))
			d.write(name, appendNumber(b, kindEnd, 3, records+1, keyOfFile(42, 3)))
			if err := d.start(); kind == k {
				require.ErrorContains(t, err, fmt.Sprintf("%s, byte %d: a newer release", name, end))
			} else {
				require.NoError(t, err)
			}
		}
		d.wantTopic("a", "1 3")
		d.kill()
	}
}
