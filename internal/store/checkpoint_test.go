package store

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

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
	for range spareSegments + spareSegments/exhaustive.Step(8) {
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
