package broker

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A client resumes many patterns. Only some of them are compared with all forgotten
// topics. The others may have lost something.
func TestComparisonsWithForgottenTopicsAreBounded(t *testing.T) {
	var f forgotten
	for range forgottenRemembered {
		f.add("other.topic", 1, 0)
	}
	s := NewSearch(1)
	for range recallsOfAll {
		require.False(t, f.since("a.*", 0, nil, s))
	}
	require.True(t, f.since("a.*", 0, nil, s), "the search has reached its bound")
	require.False(t, f.since("a.*", f.newest(), nil, s), "nothing was forgotten since")
	require.False(t, f.since("a.*", 0, nil, NewSearch(1)), "a new search has its own bound")
}

// The presence topics have a partition of their own. A restart begins it anew, and changes
// no other position.
func TestPresenceTopicsBeginAnewWithTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		publish(t, b, "a.b")
		at, err := b.Watch("_presence.a.b", time.Now())
		require.NoError(t, err)
		require.NotEqual(t, b.Epoch("a.b"), at.Epoch)
		require.Equal(t, at.Epoch, b.Epoch("_presence.>"))
		require.NoError(t, b.Tell("_presence.a.b", "k", []byte("1"), time.Now()))
		require.Equal(t, "1", read(t, b, at.String(), 10))

		next := newBroker(Config{})
		require.NoError(t, b.Export(func(e Entry) error {
			require.False(t, strings.HasPrefix(e.Message.Position.Topic, "_presence."), "the export has %s", e.Message.Position)
			m := *e.Message
			e.Message = &m
			_, err := next.Apply(e)
			return err
		}))
		require.Equal(t, b.PatternPosition(">"), next.PatternPosition(">"), "patterns go on")
		require.Equal(t, b.Epoch("a.b"), next.Epoch("a.b"))
		require.False(t, next.Has("_presence.a.b"))
		_, err = next.Watch("_presence.a.b", time.Now())
		require.NoError(t, err)
		require.Equal(t, "gap(restarted 0-0)", read(t, next, at.String(), 10))
	})
}

// Nobody watches: the broker keeps nothing, and whoever comes back gets a gap.
func TestWhatIsToldToNobodyIsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		const topic, pattern = "_presence.a", "_presence.>"
		all, others := b.PatternPosition(pattern), b.PatternPosition(">")
		at, err := b.Watch(topic, time.Now())
		require.NoError(t, err)
		b.Sweep(time.Now().Add(awayTime - 1))
		require.True(t, b.Has(topic), "it is kept for a minute")
		b.Sweep(time.Now().Add(awayTime))
		require.False(t, b.Has(topic))
		again, err := b.Watch(topic, time.Now())
		require.NoError(t, err)
		require.Equal(t, at, again, "nothing was told")
		require.False(t, b.ForgottenSince(all, nil, NewSearch(10)))

		b.Sweep(time.Now().Add(awayTime))
		require.NoError(t, b.Tell(topic, "k", []byte("1"), time.Now()))
		require.False(t, b.Has(topic))
		require.True(t, b.ForgottenSince(all, map[string]uint64{topic: at.Offset}, NewSearch(10)))
		require.Equal(t, others, b.PatternPosition(">"), "other patterns do not notice")
		_, err = b.Watch(topic, time.Now())
		require.NoError(t, err)
		require.Equal(t, "gap(evicted 0-1)", read(t, b, at.String(), 10))
	})
}

// A follower's pattern watches topics that do not exist.
func TestFollowersOfPresenceTopicsMissNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		const topic = "_presence.a"
		f := &heard{}
		require.NoError(t, b.Follow("_presence.*", f))
		require.NoError(t, b.Follow(">", &heard{}))
		require.NoError(t, b.Tell(topic, "k", []byte("1"), time.Now()))
		require.Equal(t, []string{topic}, f.topics)
		b.Sweep(time.Now().Add(time.Hour))
		require.False(t, b.Has(topic))
		require.NoError(t, b.Retract(topic))
		require.Equal(t, []string{topic, topic}, f.topics, "it gets the gap")
	})
}

func TestRetractedMessagesAreAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Config{})
		const topic = "_presence.a"
		at, err := b.Watch(topic, time.Now())
		require.NoError(t, err)
		require.NoError(t, b.Tell(topic, "k", []byte("1"), time.Now()))
		require.NoError(t, b.Retract(topic))
		require.NoError(t, b.Tell(topic, "k", []byte("1"), time.Now()))
		require.Equal(t, "gap(deleted 0-2) 3", read(t, b, at.String(), 10))
	})
}

// A watchfulLog must not hear of presence topics.
type watchfulLog struct {
	memoryLog
	*testing.T
}

func (l watchfulLog) Append(e []Entry, done func([]Result)) {
	for _, one := range e {
		l.Partition(one.Message.Position.Topic)
	}
	l.memoryLog.Append(e, done)
}

func (l watchfulLog) Partition(topic string) int {
	require.False(l, strings.HasPrefix(topic, "_presence."), "the log hears of %s", topic)
	return 0
}

func (l watchfulLog) Applied(at wire.Position) bool {
	l.Partition(at.Topic)
	return true
}

func TestNoLogHearsOfPresenceTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewWithLog(Config{}, metrics.New("test"), time.Now(), func(b *Broker) Log { return watchfulLog{memoryLog{b}, t} })
		publish(t, b, "a")
		at, err := b.Watch("_presence.a", time.Now())
		require.NoError(t, err)
		require.NoError(t, b.Tell("_presence.a", "k", []byte("1"), time.Now()))
		at.Offset = 7
		require.Equal(t, "gap(restarted 7-0) 1", read(t, b, at.String(), 10), "it is ahead of the topic")
		b.Sweep(time.Now().Add(time.Hour))
		require.False(t, b.Has("_presence.a"))
		require.False(t, b.Has("a"))
	})
}

// Forty times the log loses entries. No message that is left is lost for that, and no reader
// passes a loss without a gap, wherever it begins and however it reads; nor after a restart.
func TestNoReaderPassesALossUnannounced(t *testing.T) {
	const many, between = 40, 10 // offsets
	b := newBroker(Config{HistoryMessages: 1000})
	begin(t, b, "e1")
	lose := func(b *Broker, at uint64) {
		_, err := b.Apply(Entry{Op: OpEpoch, Message: &wire.Message{Position: wire.Position{Epoch: "e1"}}, State: &State{Lost: at}})
		require.NoError(t, err)
	}
	for i := range uint64(many) {
		for n := range uint64(3) {
			apply(t, b, OpPublish, fmt.Sprint("a@e1:", i*between+n+1))
		}
		apply(t, b, OpPublish, fmt.Sprint("b", i, "@e1:", i*between+5))
		lose(b, i*between+7)
	}
	require.LessOrEqual(t, len(b.partitions[0].lost()), maxLosses)
	restarted := newBroker(Config{HistoryMessages: 1000})
	require.NoError(t, b.Export(func(e Entry) error {
		m := *e.Message
		e.Message = &m
		_, err := restarted.Apply(e)
		return err
	}))
	require.Equal(t, b.partitions[0].lost(), restarted.partitions[0].lost())
	lose(restarted, many*between+7)
	for _, b := range []*Broker{b, restarted} {
		for from := range uint64(many*between - 2) {
			for _, most := range []int{1, 1000} {
				checkLosses(t, b, "a", from, most, between)
			}
		}
		for i := range many {
			checkLosses(t, b, fmt.Sprint("b", i), 0, 1, between)
		}
	}
}

// checkLosses reads a topic from an offset, at most so many frames at a time.
func checkLosses(t *testing.T, b *Broker, topic string, from uint64, most int, between uint64) {
	t.Helper()
	state, ok := b.Topic(topic)
	require.True(t, ok)
	at, messages := wire.Position{Topic: topic, Epoch: "e1", Offset: from}, 0
	for {
		frames, _ := b.ReadTopic(wire.StartAfter(at), frame.Limit{Frames: most, Bytes: 1 << 20}, time.Now())
		if len(frames) == 0 {
			break
		}
		for _, f := range frames {
			m, next := f.Message(), f.Position().Offset
			require.Greater(t, next, at.Offset)
			if m != nil {
				messages++
				for o := at.Offset + 1; o < next; o++ {
					require.NotEqual(t, uint64(7), o%between, "%s from %d: the message at %d follows %d, with a loss between", topic, from, next, at.Offset)
				}
			}
			at = f.Position()
		}
	}
	require.GreaterOrEqual(t, at.Offset, state.Position.Offset, "from %d", from)
	want := 0
	if topic == "a" {
		for o := from + 1; o <= 400; o++ {
			if n := o % between; n >= 1 && n <= 3 {
				want++
			}
		}
	} else {
		want = 1
	}
	require.Equal(t, want, messages, "%s from %d", topic, from)
}
