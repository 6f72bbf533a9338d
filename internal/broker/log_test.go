package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
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
	got, err := b.Apply(e)
	require.NoError(t, err)
	require.Equal(t, position, got)
}

// begin begins an epoch of the only partition.
func begin(t *testing.T, b *Broker, epoch string) {
	t.Helper()
	at := wire.Position{Epoch: epoch}
	_, err := b.Apply(Entry{Op: OpEpoch, Message: &wire.Message{Position: at}, State: &State{}})
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
			_, err := b.Apply(Entry{Op: OpPublish, Message: &wire.Message{Position: at, Data: make([]byte, 1000)}})
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
	reading := Reading{Had: j.Position, After: 50, UpTo: 50, Limit: frame.Limit{Frames: 10, Bytes: 1000}}
	frames, at, _ := j.Read(nil, reading, time.Now())
	require.Equal(t, "gap(restarted 50-0)", summary(frames))
	require.Equal(t, wire.Position{Topic: "a", Epoch: "e2"}, at)
	b.Sweep(later)
	require.False(t, j.Gone(), "it was done with offsets of the old epoch")
	j.DoneTo(0)
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

// forget applies an entry that forgets a topic whose newest offset was head.
func forget(t *testing.T, b *Broker, at string, head uint64) {
	t.Helper()
	position, err := wire.ParsePosition(at)
	require.NoError(t, err)
	_, err = b.Apply(Entry{Op: OpForget, Message: &wire.Message{Position: position}, State: &State{Lost: head}})
	require.NoError(t, err)
}

// A log gives the same positions of patterns when it is applied again: an entry that forgets
// a topic counts, whether this daemon holds the topic or not.
func TestATopicIsForgottenByAnEntry(t *testing.T) {
	b := newBroker(Config{HistoryAge: time.Hour})
	begin(t, b, "e1")
	before := b.PatternPosition(">")
	newest := func() uint64 { return b.PatternPosition(">").Offset }
	forget(t, b, "never@e1:7", 5)
	require.EqualValues(t, 7, newest())
	require.True(t, b.ForgottenSince(before, map[string]uint64{"never": 4}, NewSearch(10)))
	require.False(t, b.ForgottenSince(before, map[string]uint64{"never": 5}, NewSearch(10)))
	apply(t, b, OpPublish, "a@e1:9")
	forget(t, b, "a@e1:10", 9)
	require.False(t, b.Has("a"), "it was empty when the log got the entry")
	require.EqualValues(t, 10, newest())
	apply(t, b, OpPublish, "a@e1:9")
	apply(t, b, OpDelete, "a@e1:9")
	forget(t, b, "a@e1:10", 9)
	forget(t, b, "a@e0:11", 9)
	require.False(t, b.Has("a"), "a repeated entry changes nothing")
	require.EqualValues(t, 10, newest())
	apply(t, b, OpPublish, "a@e1:12")
	apply(t, b, OpPublish, "a@e1:13")
	forget(t, b, "a@e1:14", 12)
	held, _ := holds(b, "a")
	require.Equal(t, []uint64{13}, held, "it has a newer message")
	require.EqualValues(t, 14, newest())
	require.EqualValues(t, (&wire.Message{Data: []byte("1")}).Size(), holdsBytes(b))
	_, err := b.Apply(Entry{Op: OpForget, Message: &wire.Message{Position: wire.Position{Topic: "a"}}})
	require.ErrorIs(t, err, errInUse)
	for _, op := range []Op{OpForget, OpDelete} {
		_, err = b.Apply(Entry{Op: op, Message: &wire.Message{Position: wire.Position{Topic: "never"}}})
		require.ErrorIs(t, err, ErrNoTopic)
	}
	consistent(t, b)
}

// A subscriber came between the sweep and the entry. The topic stays, counts as unused, and
// is later forgotten without an entry.
func TestATopicInUseIsForgottenAndStays(t *testing.T) {
	l := &sequence{}
	b := NewWithLog(Config{HistoryAge: time.Second}, metrics.New("test"), time.Now(), l.open)
	at := publish(t, b, "a")
	j, err := b.Join(wire.Start{Topic: "a"}, &recorder{}, true)
	require.NoError(t, err)
	later := time.Now().Add(time.Hour)
	b.Sweep(later)
	forget(t, b, "a@"+b.Epoch("a")+":50", at)
	require.True(t, b.Has("a"))
	j.Leave()
	b.Sweep(later)
	require.False(t, b.Has("a"))
	require.Len(t, l.entries, 1)
	require.EqualValues(t, 50, b.PatternPosition(">").Offset)
	consistent(t, b)
}

// The log hears of topics that have used an offset, and of their newest one.
func TestASweepForgetsThroughTheLog(t *testing.T) {
	l := &sequence{}
	b := NewWithLog(Config{HistoryAge: time.Second}, metrics.New("test"), time.Now(), l.open)
	_, err := b.Join(wire.Start{Topic: "unused"}, &recorder{}, false)
	require.NoError(t, err)
	at := publish(t, b, "a")
	require.Equal(t, at+1, publish(t, b, "b"))
	b.Sweep(time.Now().Add(time.Minute))
	require.Zero(t, b.topics.Load())
	require.Len(t, l.entries, 4)
	for _, e := range l.entries[2:] {
		require.Equal(t, OpForget, e.Op)
		require.Equal(t, map[string]uint64{"a": at, "b": at + 1}[e.Message.Position.Topic], e.State.Lost)
	}
	require.EqualValues(t, 4, b.PatternPosition(">").Offset, "the number is the offset of the entry")
	next := NewWithLog(Config{}, metrics.New("test"), time.Now(), l.open)
	require.NoError(t, b.Export(func(e Entry) error {
		_, err := next.Apply(e)
		return err
	}))
	require.Equal(t, b.PatternPosition(">"), next.PatternPosition(">"))
}

// loseEntries says that the log has lost entries of the epoch e1 up to an offset.
func loseEntries(t *testing.T, b *Broker, upTo uint64) {
	t.Helper()
	at := wire.Position{Epoch: "e1", Offset: upTo}
	_, err := b.Apply(Entry{Op: OpEpoch, Message: &wire.Message{Position: at}, State: &State{Forgotten: upTo, Lost: upTo}})
	require.NoError(t, err)
}

// Every topic and pattern has a gap, lost, behind the messages that survived, whether the
// topic was held or not. A restored broker has it, too.
func TestALossIsAGapBehindWhatSurvived(t *testing.T) {
	b := newBroker(Config{HistoryMessages: 3})
	begin(t, b, "e1")
	for _, at := range []string{"a@e1:3", "a@e1:5", "quiet@e1:6"} {
		apply(t, b, OpPublish, at)
	}
	apply(t, b, OpDelete, "emptied@e1:7")
	pattern := b.PatternPosition("*")
	loseEntries(t, b, 100)
	loseEntries(t, b, 100)
	apply(t, b, OpPublish, "a@e1:120")
	apply(t, b, OpPublish, "new@e1:121")
	require.True(t, b.ForgottenSince(pattern, map[string]uint64{"a": 5, "quiet": 6}, NewSearch(10)))
	restored := newBroker(Config{HistoryMessages: 3})
	require.NoError(t, b.Export(func(e Entry) error {
		m := *e.Message
		e.Message = &m
		_, err := restored.Apply(e)
		return err
	}))
	for _, b := range []*Broker{b, restored} {
		require.Equal(t, "5 gap(lost 5-100) 120", read(t, b, "a@e1:3", 10))
		require.Equal(t, "gap(lost 90-100) 120", read(t, b, "a@e1:90", 10), "a client that was ahead of what survived")
		require.Equal(t, "120", read(t, b, "a@e1:100", 10))
		require.Equal(t, "gap(lost 6-100)", read(t, b, "quiet@e1:6", 10))
		require.Equal(t, "gap(lost 8-100) 121", read(t, b, "new@e1:8", 10))
		require.Equal(t, "3 5 gap(lost 5-100) 120", read(t, b, "a@e1:0", 10))
		frames, _ := b.ReadTopic(wire.Start{Topic: "new", From: wire.FromOldest}, frame.Limit{Frames: 10, Bytes: 1000}, time.Now())
		require.Equal(t, "121", summary(frames), "it has no older messages")
		_, err := b.Join(wire.Start{Topic: "later"}, &recorder{}, true)
		require.NoError(t, err)
		require.Equal(t, "gap(lost 9-100)", read(t, b, "later@e1:9", 10))
	}
	apply(t, b, OpPublish, "a@e1:130")
	apply(t, b, OpPublish, "a@e1:140") // evicts 5
	require.Equal(t, "gap(lost 2-100) 120 130 140", read(t, b, "a@e1:2", 10), "one gap for all that is missing")
	loseEntries(t, b, 200)
	require.Equal(t, "gap(lost 5-100) 120 130 140 gap(lost 140-200)", read(t, b, "a@e1:5", 10))
	b.Close()
	state, _ := b.Topic("a")
	require.EqualValues(t, 200, state.Position.Offset)
	consistent(t, b)
}

// A subscription with a rate reads up to where its round ends, also if that is a loss.
func TestAReadingThatEndsAtALossAnnouncesIt(t *testing.T) {
	b := newBroker(Config{})
	begin(t, b, "e1")
	apply(t, b, OpPublish, "a@e1:3")
	loseEntries(t, b, 100)
	j, err := b.Join(wire.Start{Topic: "a", From: wire.FromOldest}, &recorder{}, true)
	require.NoError(t, err)
	frames, at, head := j.Read(nil, Reading{Had: j.Position, UpTo: 100, Limit: frame.Limit{Frames: 9, Bytes: 1000}}, time.Now())
	require.Equal(t, "3 gap(lost 3-100)", summary(frames))
	require.Equal(t, head, at.Offset, "nothing remains")
}

// A subscriber that is connected hears of the loss, behind the messages before it.
func TestASubscriberHearsOfALoss(t *testing.T) {
	b := newBroker(Config{})
	begin(t, b, "e1")
	s := &stuck{release: make(chan struct{})}
	close(s.release)
	j, err := b.Join(wire.Start{Topic: "a"}, s, true)
	require.NoError(t, err)
	apply(t, b, OpPublish, "a@e1:3")
	loseEntries(t, b, 100)
	b.Close()
	require.Equal(t, 1, s.missed)
	frames, at, head := j.Read(nil, Reading{Had: j.Position, After: 3, Limit: frame.Limit{Frames: 10, Bytes: 1000}}, time.Now())
	require.Equal(t, "gap(lost 0-100)", summary(frames))
	require.EqualValues(t, 100, at.Offset)
	require.EqualValues(t, 100, head)
	consistent(t, b)
}

// The oldest losses are merged: a gap then precedes each message among them. None is lost.
func TestLossesAreBounded(t *testing.T) {
	b := newBroker(Config{})
	begin(t, b, "e1")
	for i := range uint64(maxLosses + 3) {
		apply(t, b, OpPublish, fmt.Sprint("a@e1:", 100*i+50))
		loseEntries(t, b, 100*i+100)
	}
	require.Len(t, b.partitions[0].lost(), maxLosses)
	require.Equal(t, "gap(lost 50-149) 150 gap(lost 150-249) 250", read(t, b, "a@e1:50", 4))
	begin(t, b, "e2")
	require.Empty(t, b.partitions[0].lost())
	consistent(t, b)
}

// A checkpoint has a message, and a later entry of the log has its key.
func TestAKnownMessageRestoresItsKey(t *testing.T) {
	b := newBroker(Config{})
	begin(t, b, "e1")
	m := keyed("a", "k", "1")
	m.Position.Epoch, m.Position.Offset, m.Time = "e1", 5, time.Now().UnixMilli()
	apply(t, b, OpPublish, "a@e1:5")
	e := Entry{Op: OpPublish, Message: m, Key: keyOf("", m, 0)}
	_, err := b.Apply(e)
	require.NoError(t, err)
	require.EqualValues(t, 5, publishOnce(t, b, "", keyed("a", "k", "1")))
	old := *m
	old.Position.Offset, old.Time = 6, 1
	e.Message, e.Key.Scope = &old, Digest{1}
	_, err = b.Apply(e)
	require.NoError(t, err)
	require.Equal(t, 1, b.keys.count(), "its window has passed")
}

// The broker cannot refuse an entry that the log has. So it checks the limits before.
func TestALimitRefusesAPublishBeforeTheLogGetsIt(t *testing.T) {
	l := &sequence{}
	b := NewWithLog(Config{MaxTopics: 1}, metrics.New("test"), time.Now(), l.open)
	publish(t, b, "a")
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "b"}}, 0, time.Now())
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeOverloaded})
	require.Len(t, l.entries, 1)
}

// Other topics were forgotten while a client waited for the first message of a topic. The
// process was killed, and the log is applied again. The client has lost nothing.
func TestATopicWithoutMessagesHasNoGapAfterAKill(t *testing.T) {
	l := &sequence{}
	b := NewWithLog(Config{HistoryAge: time.Second}, metrics.New("test"), time.Now(), l.open)
	waits, err := b.Join(wire.Start{Topic: "waits", From: wire.FromNow}, &recorder{}, true)
	require.NoError(t, err)
	for range 3 {
		publish(t, b, "other")
	}
	b.Sweep(time.Now().Add(time.Minute))
	next := newBroker(Config{})
	begin(t, next, b.Epoch("a"))
	for _, e := range l.entries {
		m := *e.Message
		e.Message = &m
		_, err := next.Apply(e)
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, next.partitions[0].floor.Load())
	j, err := next.Join(wire.StartAfter(waits.Position), &recorder{}, true)
	require.NoError(t, err)
	require.True(t, j.Live)
	_, err = next.Join(wire.StartAfter(wire.Position{Topic: "other", Epoch: next.Epoch("a"), Offset: 2}), &recorder{}, true)
	require.NoError(t, err)
	require.Equal(t, "gap(evicted 2-3)", read(t, next, "other@EPOCH:2", 9))
}

// The names of the last forgotten topics are remembered. Any topic may have had the messages
// of earlier ones.
func TestALostTopicMayHaveHadAnyName(t *testing.T) {
	b := newBroker(Config{})
	p := b.partitions[0]
	p.forget("first", 5, 0)
	p.forget("twice", 2, 0)
	p.forget("twice", 4, 0)
	below := func(name string) uint64 { return p.forgotten.below(name) }
	require.Equal(t, []uint64{5, 4, 0}, []uint64{below("first"), below("twice"), below("never")})
	for range forgottenRemembered - 2 {
		p.forget("other", 9, 0)
	}
	require.Equal(t, []uint64{5, 5, 5}, []uint64{below("first"), below("twice"), below("never")})
	p.forget("other", 9, 0)
	require.Equal(t, []uint64{5, 5, 5}, []uint64{below("first"), below("twice"), below("never")})
	p.forget("other", 9, 0)
	require.Equal(t, 1, len(p.forgotten.heads))
	begin(t, b, b.Epoch("a"))
	require.EqualValues(t, 5, below("never"), "nothing new")
	require.False(t, p.begin(b.Epoch("a"), 20, 0))
	require.EqualValues(t, 20, below("never"))
}

// Publishes that wait for the log count as part of the lag. So none evicts messages that
// were not offered yet.
func TestPublishesThatWaitForTheLogLagNotTooFar(t *testing.T) {
	l := &sequence{holds: true}
	b := NewWithLog(Config{HistoryMessages: 10}, metrics.New("test"), time.Now(), l.open)
	s := &stuck{release: make(chan struct{})}
	for range fewSubscribers + 1 {
		_, err := b.Join(wire.Start{Topic: "a"}, s, true)
		require.NoError(t, err)
	}
	var refused int
	for range lagMessages + 10 {
		r, over := b.Send(b.Route("a"), Claim{}, &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}, 0, time.Now(), func(r Result) { require.NoError(t, r.Err) })
		if over {
			require.ErrorIs(t, r.Err, &wire.Problem{Code: wire.CodeOverloaded})
			refused++
		}
	}
	require.Equal(t, 10, refused)
	require.Empty(t, l.entries)
	require.Len(t, l.held, lagMessages)
	l.release()
	require.Len(t, l.entries, lagMessages)
	held, _ := holds(b, "a")
	require.Len(t, held, lagMessages, "none was evicted")
	close(s.release)
	b.Close()
	require.Zero(t, s.missed)
	consistent(t, b)
}

// A topic is not forgotten while a publish to it waits for the log.
func TestATopicIsKeptForAPublishThatWaits(t *testing.T) {
	l := &sequence{holds: true}
	b := NewWithLog(Config{}, metrics.New("test"), time.Now(), l.open)
	_, over := b.Send(b.Route("a"), Claim{}, &wire.Message{Position: wire.Position{Topic: "a"}}, 0, time.Now(), func(r Result) { require.NoError(t, r.Err) })
	require.False(t, over)
	b.Sweep(time.Now())
	require.True(t, b.Has("a"))
	l.release()
	b.Sweep(time.Now().Add(time.Hour))
	require.False(t, b.Has("a"))
	consistent(t, b)
}

// A sequence is a log that numbers all entries by one sequence.
type sequence struct {
	memoryLog
	entries []Entry
	holds   bool     // appends wait for release
	held    []func() // appends that wait
}

// release carries out the appends that wait.
func (l *sequence) release() {
	l.holds = false
	for _, appends := range l.held {
		appends()
	}
}

func (l *sequence) open(b *Broker) Log {
	l.broker = b
	return l
}

func (l *sequence) Append(e []Entry, done func([]Result)) {
	if l.holds {
		l.held = append(l.held, func() { l.Append(e, done) })
		return
	}
	results := make([]Result, len(e))
	for i := range e {
		l.entries = append(l.entries, e[i])
		e[i].Message.Position.Epoch, e[i].Message.Position.Offset = l.broker.Epoch("a"), uint64(len(l.entries))
		results[i].Position, results[i].Err = l.broker.Apply(e[i])
	}
	done(results)
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
		b.partitions[i%2].forget(fmt.Sprint("t.", i), 5, 0)
	}
	require.EqualValues(t, 3, b.PatternPosition(">").Offset-was.Offset)
	at := was
	at.Topic, at.Offset = "t.*", 2
	require.True(t, b.ForgottenSince(at, nil, NewSearch(1)))
	require.False(t, b.ForgottenSince(at, map[string]uint64{"t.0": 5, "t.1": 5, "t.2": 5}, NewSearch(1)))
	at.Offset = 3
	require.False(t, b.ForgottenSince(at, nil, NewSearch(1)))
	_, err := b.Apply(Entry{Op: OpEpoch, Message: &wire.Message{Position: wire.Position{Epoch: "e2"}}, State: &State{Partition: 1}})
	require.NoError(t, err)
	require.Equal(t, "e2", b.Epoch("b"))
	require.NotEqual(t, was.Epoch, b.Epoch(">"))
}

type twoParts struct{ memoryLog }

func (twoParts) Partitions() int { return 2 }

func (twoParts) Partition(topic string) int { return int(topic[0]-'a') & 1 }
