package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
			require.False(t, isLocal(e.Message.Position.Topic), "a state file has %s", e.Message.Position)
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
	require.False(l, isLocal(topic), "the log hears of %s", topic)
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
