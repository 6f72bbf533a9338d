package store

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

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
			for i := range 3 {
				problem := d.wantProblem("a")
				require.Equal(t, cut != nil && i == 0, problem.Code == wire.CodeInternal, "unknown only if something may be left")
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

// A publish is refused, and the daemon is killed. The message is not in the history, or the
// answer was that the outcome is unknown.
func TestARefusedPublishDoesNotComeBackAfterACrash(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls []string
		code  wire.Code
	}{
		{"a sync failed", []string{"sync"}, wire.CodeOverloaded},
		{"a sync failed, and the cut", []string{"sync", "truncate"}, wire.CodeInternal},
		{"a write failed", []string{"write"}, wire.CodeOverloaded},
		{"a write failed, and the cut", []string{"write", "truncate"}, wire.CodeInternal},
		{"a write failed, and the sync of the cut", []string{"write", "sync"}, wire.CodeInternal},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			d.cfg.Sync = SyncAlways
			fails := make(map[string]bool)
			d.cfg.FS = &faultyFS{FS: d.cfg.FS, fail: func(call, _ string) error {
				if !fails[call] {
					return nil
				}
				delete(fails, call) // once
				return syscall.EIO
			}}
			d.mustStart()
			d.publish("a", "1")
			for _, call := range c.calls {
				fails[call] = true
			}
			problem := d.wantProblem("a")
			require.Equal(t, c.code, problem.Code)
			if c.code == wire.CodeInternal {
				require.Contains(t, problem.Remedy, "the same idempotency key")
				require.Positive(t, problem.RetryAfterMS)
			}
			d.kill()
			d.mustStart()
			if got := readTopic(t, d.Broker, "a@EPOCH:0", 1000); c.code == wire.CodeOverloaded {
				require.NotContains(t, got, "2", "the refused message came back")
			}
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

// A fan-out takes long. That is not told as a disk that does not answer, and syncs go on.
func TestASlowFanOutIsNotASlowDisk(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	apply := d.wal.apply
	d.wal.apply = func(e broker.Entry) error {
		require.True(t, d.wal.writing.TryLock(), "entries are applied outside the lock")
		d.wal.writing.Unlock()
		require.True(t, d.wal.queue.since.IsZero(), "the disk has answered")
		d.wal.syncStep(time.Now())
		return apply(e)
	}
	d.publish("a", "1")
	d.wantTopic("a", "1")
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

// A message that no record can hold is refused. Others of the same batch are not, wherever it is
// in the batch.
func TestAMessageThatIsTooLargeIsRefused(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	for large, want := range []string{"2 3", "2 3 4 6", "2 3 4 6 7 8"} {
		batch := []broker.Entry{entryOf(broker.OpPublish, "a", "1"), entryOf(broker.OpPublish, "a", "1"), entryOf(broker.OpPublish, "a", "1")}
		batch[large] = entryOf(broker.OpPublish, "a", strings.Repeat("1", maxBody))
		for i, r := range d.do(batch...) {
			if i == large {
				require.ErrorIs(t, r.Err, &wire.Problem{Code: wire.CodeMessageTooLarge})
			} else {
				require.NoError(t, r.Err)
			}
		}
		d.wantTopic("a", want)
	}
	d.kill()
	d.mustStart()
	d.wantTopic("a", "2 3 4 6 7 8")
}
