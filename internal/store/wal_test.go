package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

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
			require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
			require.ErrorContains(t, err, "the server's log has ended")
			require.ErrorIs(t, d.wal.Stats().Fault, errEnded)

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
				b.Run(fmt.Sprintf("%s/%s/%d", where, mode, publishers), func(b *testing.B) { benchmarkLog(b, broker.Config{}, dirs[where], mode, publishers) })
			}
		}
	}
}

// The same with a log that is synced once a second: topics with a history, and ephemeral ones.
func BenchmarkPublishEphemeral(b *testing.B) {
	dir := b.TempDir()
	for _, ephemeral := range []bool{false, true} {
		b.Run(fmt.Sprintf("ephemeral=%t", ephemeral), func(b *testing.B) {
			cfg := broker.Config{Rules: []broker.Rule{{Name: "prices", Pattern: "prices.>", Ephemeral: ephemeral}}}
			benchmarkLog(b, cfg, dir, SyncEverySecond, 1)
		})
	}
}

func benchmarkLog(b *testing.B, config broker.Config, parent string, mode SyncMode, publishers int) {
	dir, err := os.MkdirTemp(parent, "pubsubd-log-")
	if err != nil {
		b.Skipf("there is no %s: %v", parent, err)
	}
	defer func() { require.NoError(b, os.RemoveAll(dir)) }()
	files, err := OpenDir(dir)
	require.NoError(b, err)
	recovered, ended := make(chan struct{}), make(chan error, 1)
	cfg := WALConfig{FS: files, Sync: mode, BootID: "boot", Seed: rand.Uint64, Recovered: func(Recovery) { close(recovered) }}
	on := broker.NewWithLog(config, metrics.New("test"), time.Now(), func(on *broker.Broker) broker.Log { return NewWAL(cfg, on) })
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
