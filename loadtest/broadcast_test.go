package loadtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestABurstIsOneMessageOnEveryTopic(t *testing.T) {
	c := DefaultBroadcast()
	c.Clients, c.Topics, c.Period, c.Bursts, c.Warmup = 6, 3, s1, 2, 0
	b := newBroadcast(c)
	require.Equal(t, 6, b.shape().clients())
	require.Equal(t, 3, b.shape().topics)
	b.start(0)
	p := &published{}
	b.due(0, p.publish)
	for i, m := range p.take() {
		require.Equal(t, i, m.topic)
		require.Zero(t, m.sequence)
		require.Zero(t, m.due)
	}
	for client := range 6 {
		require.False(t, b.inTime(0))
		b.delivered(delivery{client: client, topic: client % 3, now: ms})
	}
	require.True(t, b.inTime(0))
}

func TestATestThatGivesUpEndsWithTheFirstLateBurst(t *testing.T) {
	c := DefaultBroadcast()
	c.Clients, c.Period, c.Bursts, c.Warmup = 1, s1, 5, 1
	b := newBroadcast(c)
	b.giveUp = true
	b.start(0)
	p := &published{}
	require.Equal(t, s1, b.due(0, p.publish), "the warm-up may be late")
	require.Equal(t, 2*s1, b.due(s1, p.publish))
	b.delivered(delivery{sequence: 1, now: s1 + ms})
	require.Equal(t, 3*s1, b.due(2*s1, p.publish))
	require.Equal(t, never, b.due(3*s1, p.publish))
	require.Len(t, p.take(), 3)
	r := Result{}
	b.report(&r)
	require.Equal(t, 1, r.Bursts.InTime)
	require.Equal(t, 5, r.Bursts.Total)
}

func TestMessagesHaveTheSizeThatIsAskedFor(t *testing.T) {
	for _, size := range []int{leastMessageBytes, 10, 1000, 64 << 10} {
		m := newSizedMessage(size)
		made := m.make(123456)
		require.Len(t, made, size)
		sequence, ok := m.read(made)
		require.True(t, ok)
		require.Equal(t, 123456, sequence)
		made[size-1] = 'x'
		_, ok = m.read(made)
		require.False(t, ok)
		_, ok = m.read(made[:size-2])
		require.False(t, ok)
	}
}

func TestBroadcastsAreCheckedWithTheirFlags(t *testing.T) {
	for flag, spoil := range map[string]func(*BroadcastConfig){
		"--topics: must be at least 1; got 0":                          func(c *BroadcastConfig) { c.Topics = 0 },
		"--topics: 5000 clients cannot be spread evenly over 3 topics": func(c *BroadcastConfig) { c.Topics = 3 },
		"--message-bytes: must be 0, or 8 to 8388608; got 7":           func(c *BroadcastConfig) { c.MessageBytes = 7 },
		"8388608; got -1":                               func(c *BroadcastConfig) { c.MessageBytes = -1 },
		"8388608; got 9437184":                          func(c *BroadcastConfig) { c.MessageBytes = 9 << 20 },
		"--warmup-bursts: must not be negative; got -1": func(c *BroadcastConfig) { c.Warmup = -1 },
	} {
		c := DefaultBroadcast()
		c.Target = "http://127.0.0.1:1"
		spoil(&c)
		require.ErrorContains(t, c.Check(), flag)
	}
}

func TestABroadcastOverTopicsOfSizedMessages(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{}))
	c.Clients, c.Topics, c.MessageBytes, c.Period = 12, 4, 2000, 50*time.Millisecond
	r := runBroadcast(t, c)
	wantClean(t, r, 6*12)
	require.Equal(t, 4, r.Parameters.Topics)
	require.Equal(t, 3, r.Parameters.PerTopic)
	require.EqualValues(t, 24, r.Publishes.Sent)
}
