package store

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// onSmallDisk returns a daemon without store.bytes, whose histories take a fraction of its disk.
func onSmallDisk(t *testing.T) (*disk, *faultyFS) {
	d := newDisk(t)
	d.config.HistoryMessages = 30
	d.cfg.segmentBytes = 16 << 10
	small := &faultyFS{FS: d.cfg.FS, fail: func(string, string) error { return nil }, space: 256 << 10}
	d.cfg.FS = small
	d.mustStart()
	return d, small
}

// second does what the daemon does each second.
func (d *disk) second(now time.Time) {
	d.wal.syncStep(now)
	for d.wal.checkpointStep(now) {
	}
}

// tryKilobyte publishes about 1,000 bytes.
func (d *disk) tryKilobyte() error {
	return d.do(entryOf(broker.OpPublish, "a", strings.Repeat("1", 1000)))[0].Err
}

// fill publishes until the disk is full.
func (d *disk) fill() {
	d.Helper()
	for i := range 2000 {
		if err := d.tryKilobyte(); err != nil {
			require.ErrorContains(d, err, syscall.ENOSPC.Error())
			return
		}
		if i%50 == 0 {
			d.wal.syncStep(time.Now())
		}
	}
	require.Fail(d, "the disk is never full")
}

// A disk is full of old segments. A checkpoint frees it, again and again.
func TestACheckpointFreesAFullDisk(t *testing.T) {
	d, small := onSmallDisk(t)
	for range 3 {
		d.fill()
		d.second(time.Now())
		require.NoError(t, d.tryKilobyte())
		require.NoError(t, d.wal.Stats().Fault)
		used, err := small.used()
		require.NoError(t, err)
		require.Less(t, used, small.space/2)
	}
	want := readTopic(t, d.Broker, "a@EPOCH:0", 1000)
	d.kill()
	d.mustStart()
	d.wantTopic("a", want)
}

// A daemon is killed while its disk is full. The next one starts, frees the disk, and serves.
func TestAStartFreesAFullDisk(t *testing.T) {
	for name, loss := range map[string]func(*disk){"killed": (*disk).kill, "power lost": (*disk).powerOff} {
		t.Run(name, func(t *testing.T) {
			d, small := onSmallDisk(t)
			d.fill()
			d.wal.syncStep(time.Now())
			want := readTopic(t, d.Broker, "a@EPOCH:0", 1000)
			loss(d)
			d.mustStart()
			require.Contains(t, readTopic(t, d.Broker, "a@EPOCH:0", 1000), want)
			require.NoError(t, d.tryKilobyte())
			used, err := small.used()
			require.NoError(t, err)
			require.Less(t, used, small.space/2)
		})
	}
}

// While a checkpoint has the space of the reserve, publishers do not get it.
func TestPublishesDoNotTakeTheReserve(t *testing.T) {
	d, _ := onSmallDisk(t)
	for range 3 {
		d.fill()
		d.wal.syncStep(time.Now())
		steps := 0
		for d.wal.checkpointStep(time.Now()) {
			steps++
			d.wal.syncStep(time.Now())
			require.Zero(t, d.wal.Stats().Reserve)
			require.ErrorIs(t, d.tryKilobyte(), &wire.Problem{Code: wire.CodeOverloaded})
		}
		require.Positive(t, steps)
		require.NoError(t, d.tryKilobyte())
	}
}

// The reserve cannot grow with the histories, because others take the disk's space. Publishes
// go on, but while a checkpoint has the space of the reserve, they do not get it.
func TestPublishesDoNotTakeAReserveThatIsTooSmall(t *testing.T) {
	d, small := onSmallDisk(t)
	for range 10 {
		require.NoError(t, d.tryKilobyte())
	}
	now := time.Now()
	d.second(now)
	used, err := small.used()
	require.NoError(t, err)
	small.space = used + 14<<10
	for d.wal.checkpoint == nil {
		require.NoError(t, d.tryKilobyte())
		now = now.Add(time.Second)
		d.wal.syncStep(now)
		d.wal.checkpointStep(now)
	}
	require.ErrorIs(t, d.wal.reserve.err, syscall.ENOSPC)
	require.Zero(t, d.wal.reserve.size)
	for range 30 {
		require.ErrorIs(t, d.tryKilobyte(), &wire.Problem{Code: wire.CodeOverloaded})
	}
	d.second(now)
	require.NoError(t, d.wal.retry.err)
	require.NoError(t, d.tryKilobyte())
}

// A disk is full, and the newest checkpoint has nearly all of the log. Its messages expire.
func TestACheckpointFreesADiskOfAnOlderCheckpoint(t *testing.T) {
	d, small := onSmallDisk(t)
	for range 30 {
		require.NoError(t, d.tryKilobyte())
	}
	now := time.Now()
	d.wal.syncStep(now)
	d.checkpoint()
	used, err := small.used()
	require.NoError(t, err)
	small.space = used
	require.Error(t, d.tryKilobyte())
	d.Broker.Sweep(now.Add(2 * d.config.HistoryAge))
	require.Error(t, d.tryKilobyte())
	d.second(now.Add(time.Hour))
	require.NoError(t, d.tryKilobyte())
}

// A disk is full for a moment. A checkpoint that is larger than the reserve needs its space, but
// holds publishes up no longer.
func TestALargeCheckpointDoesNotHoldUpPublishes(t *testing.T) {
	d, small := onSmallDisk(t)
	small.space = 0
	for i := range mostReserve>>20 + 2 {
		d.publish(fmt.Sprint("large.", i), strings.Repeat("1", 1<<20))
	}
	now := time.Now()
	d.wal.syncStep(now)
	d.wal.wantCheckpoint()
	small.space = 1
	require.Error(t, d.tryKilobyte())
	small.space = 0
	require.True(t, d.wal.checkpointStep(now))
	for d.wal.checkpoint.file.size <= mostReserve {
		require.ErrorIs(t, d.tryKilobyte(), &wire.Problem{Code: wire.CodeOverloaded})
		require.True(t, d.wal.checkpointStep(now))
	}
	require.NoError(t, d.tryKilobyte())
	require.NotNil(t, d.wal.checkpoint)
}

// The disk has space for the reserve, but not for a larger one. The WAL notices when it has.
func TestTheReserveGrowsWhenTheDiskHasSpaceAgain(t *testing.T) {
	d, small := onSmallDisk(t)
	for range 10 {
		require.NoError(t, d.tryKilobyte())
	}
	used, err := small.used()
	require.NoError(t, err)
	now, before := time.Now(), d.wal.reserve.size
	for small.space = used; d.wal.reserve.size == before; small.space += 100 {
		d.wal.reserve.at = time.Time{}
		d.wal.syncStep(now)
	}
	require.ErrorIs(t, d.wal.reserve.err, syscall.ENOSPC)
	small.space = 0
	d.wal.syncStep(now.Add(mostRetry))
	require.NoError(t, d.wal.reserve.err)
}

// Others take all space that a checkpoint frees. The daemon does not make one every second.
func TestNoCheckpointIsMadeThatFreesNothing(t *testing.T) {
	d, small := onSmallDisk(t)
	m := metrics.New("test")
	d.cfg.Metrics = &m.Store
	d.kill()
	d.mustStart()
	for range 3 {
		require.NoError(t, d.tryKilobyte())
	}
	now := time.Now()
	d.second(now)
	for range 100 {
		var err error
		small.space, err = small.used()
		require.NoError(t, err)
		require.Error(t, d.tryKilobyte())
		now = now.Add(time.Second)
		d.second(now)
	}
	require.Less(t, testutil.ToFloat64(m.Store.Checkpoints.WithLabelValues("made"))+testutil.ToFloat64(m.Store.Checkpoints.WithLabelValues("failed")), 10.0)
	small.space = 0
	d.second(now.Add(time.Second))
	require.NoError(t, d.tryKilobyte())
}

// The reserve is as large as a checkpoint, which fits in it, and follows the histories.
func TestTheReserveHoldsACheckpoint(t *testing.T) {
	d := newDisk(t)
	d.config.HistoryMessages = 1000
	d.mustStart()
	for i := range 30 {
		d.publish(fmt.Sprint("topic.", i%20), strings.Repeat("1", i*1000))
		d.wal.syncStep(time.Now())
		d.checkpoint()
		require.GreaterOrEqual(t, d.wal.reserve.size, d.wal.files.baseBytes+headerMost)
		require.EqualValues(t, d.wal.Stats().Reserve, len(d.read(reserveName)))
	}
	require.Less(t, d.wal.reserve.size, 2*d.wal.broker.LiveBytes()+d.wal.cfg.segmentBytes/256)
}
