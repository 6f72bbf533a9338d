package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Package logtest tests the contract of logs. These tests are for cases that its story
// seldom has.

// apply applies an entry of a log that gives offsets.
func apply(t *testing.T, b *Broker, op Op, at string) {
	t.Helper()
	position, err := wire.ParsePosition(at)
	require.NoError(t, err)
	e := Entry{Op: op, Message: &wire.Message{Position: position, Data: []byte("1"), Time: time.Now().UnixMilli()}}
	got, err := b.Apply(e, nil)
	require.NoError(t, err)
	require.Equal(t, position, got)
}

// begin begins an epoch of the only partition.
func begin(t *testing.T, b *Broker, epoch string) {
	t.Helper()
	at := wire.Position{Epoch: epoch}
	_, err := b.Apply(Entry{Op: OpEpoch, Message: &wire.Message{Position: at}, State: &State{}}, nil)
	require.NoError(t, err)
}

// A broker at its limits applies the entries of its log. A topic that it cannot hold counts
// as forgotten: subscribers of the topic and of patterns get a gap.
func TestATopicThatCannotBeHeldCausesAGap(t *testing.T) {
	b := newBroker(Config{MaxTopics: 1})
	begin(t, b, "e1")
	apply(t, b, OpPublish, "held@e1:3")
	before := b.PatternPosition(">")
	apply(t, b, OpPublish, "other@e1:5")
	apply(t, b, OpPublish, "other@e1:8")
	require.True(t, b.ForgottenSince(before, map[string]uint64{"other": 5}, NewSearch(10)))
	require.False(t, b.ForgottenSince(before, map[string]uint64{"other": 8}, NewSearch(10)))
	b.Reload(Config{MaxTopics: 2}, time.Now())
	_, err := b.Join(wire.Start{Topic: "other"}, &recorder{}, true)
	require.NoError(t, err)
	require.Equal(t, "gap(evicted 5-8)", read(t, b, "other@e1:5", 10))
}

// Messages of a log are not refused when the fan-out lags. It loses some and calls Missed.
func TestMessagesOfALogAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{HistoryMessages: 10})
		begin(t, b, "e1")
		s := &stuck{release: make(chan struct{})}
		for range fewSubscribers {
			_, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, true)
			require.NoError(t, err)
		}
		_, err := b.Join(wire.Start{Topic: "a"}, s, true)
		require.NoError(t, err)
		const many = 3 * lagMessages
		for i := range many {
			apply(t, b, OpPublish, fmt.Sprint("a@e1:", i+1))
			synctest.Wait()
		}
		held, why := holds(b, "a")
		require.LessOrEqual(t, len(held), lagMessages)
		require.EqualValues(t, many, held[len(held)-1])
		require.Equal(t, wire.GapEvicted, why)
		close(s.release)
		b.Close()
		require.Positive(t, s.missed)
		held, _ = holds(b, "a")
		require.Len(t, held, 10)
		apply(t, b, OpPublish, fmt.Sprint("a@e1:", many+1))
		b.Close()
		held, _ = holds(b, "a")
		require.Len(t, held, 10, "the fan-out counts as before")
	})
}

// When the memory budget is full, a message of the log evicts others of its topic.
func TestMessagesOfALogStayWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{MemoryBudget: 64 << 10})
		begin(t, b, "e1")
		s := &stuck{release: make(chan struct{})}
		for range fewSubscribers + 1 {
			_, err := b.Join(wire.Start{Topic: "a"}, s, true)
			require.NoError(t, err)
		}
		for i := range 200 {
			at := wire.Position{Topic: "a", Epoch: "e1", Offset: uint64(i + 1)}
			_, err := b.Apply(Entry{Op: OpPublish, Message: &wire.Message{Position: at, Data: make([]byte, 1000)}}, nil)
			require.NoError(t, err)
			require.LessOrEqual(t, b.memory.Used(), int64(66<<10))
		}
		close(s.release)
		b.Close()
	})
}

// Messages of an old epoch are not offered after the new one has begun.
func TestAnEpochEndsInTheMiddleOfAFanOut(t *testing.T) {
	b := newBroker(Config{})
	begin(t, b, "e1")
	r := &prompter{}
	r.publish = func() {
		begin(t, b, "e2")
		apply(t, b, OpPublish, "a@e2:1")
		apply(t, b, OpPublish, "a@e2:3")
	}
	_, err := b.Join(wire.Start{Topic: "a"}, r, true)
	require.NoError(t, err)
	apply(t, b, OpPublish, "a@e1:50")
	b.Close()
	require.Equal(t, []uint64{50, 1, 3}, r.got())
	apply(t, b, OpPublish, "a@e1:51")
	apply(t, b, OpPublish, "a@e2:4")
	b.Close()
	require.Equal(t, []uint64{50, 1, 3, 4}, r.got())
	require.Equal(t, "gap(restarted 50-0) 1 3 4", read(t, b, "a@e1:50", 10))
	consistent(t, b)
}

func TestAKeyEndsWithItsEpoch(t *testing.T) {
	b := newBroker(Config{})
	first, other := keyed("a", "k", "1"), keyed("a", "l", "2")
	require.Equal(t, uint64(1), publishOnce(t, b, "", first))
	begin(t, b, "e2")
	require.Equal(t, uint64(1), publishOnce(t, b, "", other))
	require.Equal(t, uint64(2), publishOnce(t, b, "", keyed("a", "k", "another")), "the key is dropped with its message")
	require.Equal(t, uint64(1), publishOnce(t, b, "", other))
	require.Equal(t, 2, b.keys.count())
	b.Sweep(time.Now().Add(time.Hour))
	require.Empty(t, b.keys.byScope)
}

// A subscriber that does not pin the topic reads the new epoch before the topic is
// forgotten.
func TestATopicIsKeptUntilItsNewEpochIsRead(t *testing.T) {
	b := newBroker(Config{HistoryAge: time.Second})
	begin(t, b, "e1")
	apply(t, b, OpPublish, "a@e1:50")
	j, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, false)
	require.NoError(t, err)
	begin(t, b, "e2")
	b.Close()
	later := time.Now().Add(time.Hour)
	b.Sweep(later)
	require.False(t, j.Gone(), "it has not read the gap yet")
	reading := Reading{Had: j.Position, After: 50, UpTo: 50, Limit: Limit{Frames: 10, Bytes: 1000}}
	frames, at, _ := j.Read(nil, reading, time.Now())
	require.Equal(t, "gap(restarted 50-0)", summary(frames))
	require.Equal(t, wire.Position{Topic: "a", Epoch: "e2"}, at)
	b.Sweep(later)
	require.False(t, j.Gone(), "it settled offsets of the old epoch")
	j.Settle(0)
	b.Sweep(later)
	require.True(t, j.Gone())
}

// An offset of a topic's name stands for one message, even if topics were forgotten after a
// subscriber created the topic.
func TestAFirstOffsetIsAboveTheFloor(t *testing.T) {
	b := newBroker(Config{HistoryAge: time.Second})
	_, err := b.Join(wire.Start{Topic: "waits"}, &recorder{}, true)
	require.NoError(t, err)
	for range 5 {
		publish(t, b, "short")
	}
	b.Sweep(time.Now().Add(time.Minute))
	require.Equal(t, uint64(6), publish(t, b, "waits"))
	require.Equal(t, uint64(7), publish(t, b, "waits"))
	require.Equal(t, "6 7", read(t, b, "waits@EPOCH:0", 10), "nothing was lost in between")
}

// Forgetting a topic raises the floor even if this daemon never held it.
func TestATopicIsForgottenByItsOffset(t *testing.T) {
	b := newBroker(Config{HistoryAge: time.Hour})
	begin(t, b, "e1")
	apply(t, b, OpForget, "never@e1:7")
	require.EqualValues(t, 1, b.PatternPosition(">").Offset)
	apply(t, b, OpPublish, "a@e1:9")
	apply(t, b, OpForget, "a@e1:9")
	require.False(t, b.Has("a"), "the log knows that it was empty")
	apply(t, b, OpPublish, "a@e1:9")
	apply(t, b, OpDelete, "a@e1:9")
	require.False(t, b.Has("a"), "a repeated entry changes nothing")
	require.EqualValues(t, 2, b.PatternPosition(">").Offset)
	apply(t, b, OpPublish, "a@e1:12")
	apply(t, b, OpForget, "a@e1:9")
	require.True(t, b.Has("a"))
	require.Zero(t, holdsBytes(b)-int64((&wire.Message{Data: []byte("1")}).Size()))
	_, err := b.Apply(Entry{Op: OpForget, Message: &wire.Message{Position: wire.Position{Topic: "a"}}}, nil)
	require.ErrorIs(t, err, errInUse)
	for _, op := range []Op{OpForget, OpDelete} {
		_, err = b.Apply(Entry{Op: op, Message: &wire.Message{Position: wire.Position{Topic: "never"}}}, nil)
		require.ErrorIs(t, err, ErrNoTopic)
	}
}

func holdsBytes(b *Broker) int64 {
	var g metrics.Gauges
	b.Gauges(&g)
	return g.Memory["history"]
}

// The position of a pattern covers all partitions.
func TestAPatternHasOnePosition(t *testing.T) {
	b := NewWithLog(Config{}, metrics.New("test"), time.Now(), func(b *Broker) Log { return twoParts{memoryLog{b}} })
	was := b.PatternPosition(">")
	require.Equal(t, was.Epoch, b.Epoch("*.a"))
	require.NotEqual(t, b.Epoch("a"), b.Epoch("b"))
	for i := range 3 {
		b.partitions[i%2].forget(fmt.Sprint("t.", i), 5)
	}
	require.EqualValues(t, 3, b.PatternPosition(">").Offset-was.Offset)
	at := was
	at.Topic, at.Offset = "t.*", 2
	require.True(t, b.ForgottenSince(at, nil, NewSearch(1)))
	require.False(t, b.ForgottenSince(at, map[string]uint64{"t.0": 5, "t.1": 5, "t.2": 5}, NewSearch(1)))
	at.Offset = 3
	require.False(t, b.ForgottenSince(at, nil, NewSearch(1)))
	_, err := b.Apply(Entry{Op: OpEpoch, Message: &wire.Message{Position: wire.Position{Epoch: "e2"}}, State: &State{Partition: 1}}, nil)
	require.NoError(t, err)
	require.Equal(t, "e2", b.Epoch("b"))
	require.NotEqual(t, was.Epoch, b.Epoch(">"))
}

type twoParts struct{ memoryLog }

func (twoParts) Partitions() int { return 2 }

func (twoParts) Partition(topic string) int { return int(topic[0]-'a') & 1 }
