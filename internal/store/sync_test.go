package store

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

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
				problem := d.wantProblem("a")
				require.Equal(t, wire.CodeInternal, problem.Code, "what was written could not be cut")
				require.Contains(t, problem.Detail, "input/output error")
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
