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
