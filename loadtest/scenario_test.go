package loadtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	ms = time.Millisecond
	s1 = time.Second
)

// published collects what is due.
type published struct{ all []publication }

func (p *published) publish(m publication) { p.all = append(p.all, m) }

func (p *published) take() []publication {
	all := p.all
	p.all = nil
	return all
}

func TestBroadcastPublishesOnScheduleEvenWhenAskedLate(t *testing.T) {
	c := DefaultBroadcast()
	c.Clients, c.Period, c.Bursts, c.Warmup = 2, s1, 3, 1
	b := newBroadcast(c)
	b.start(10 * s1)
	require.Equal(t, 11*s1, b.window())
	p := &published{}
	require.Equal(t, 10*s1, b.due(9*s1, p.publish))
	require.Empty(t, p.all)
	require.Equal(t, 11*s1, b.due(10*s1, p.publish))
	require.Len(t, p.take(), 1)
	require.Equal(t, 13*s1, b.due(12*s1+ms, p.publish), "two at once, and the next is where it was")
	two := p.take()
	require.Len(t, two, 2)
	require.Equal(t, []time.Duration{11 * s1, 12 * s1}, []time.Duration{two[0].due, two[1].due})
	require.Equal(t, never, b.due(13*s1, p.publish))
}

func TestABurstIsInTimeIfCompleteBeforeTheNextIsDue(t *testing.T) {
	c := DefaultBroadcast()
	c.Clients, c.Period, c.Bursts, c.Warmup = 2, s1, 3, 1
	b := newBroadcast(c)
	b.start(0)
	b.due(3*s1, (&published{}).publish)
	for _, d := range []delivery{
		{client: 0, sequence: 0, now: 5 * ms},
		{client: 0, sequence: 1, now: s1 + 10*ms}, {client: 1, sequence: 1, now: 2*s1 - 1},
		{client: 0, sequence: 2, now: 2*s1 + 10*ms}, {client: 1, sequence: 2, now: 3 * s1},
		{client: 0, sequence: 3, now: 3*s1 + 10*ms},
	} {
		o := b.delivered(d)
		require.Equal(t, d.sequence > 0, o.recorded)
		require.Equal(t, d.now-time.Duration(d.sequence)*s1, o.latency, "from the scheduled instant")
	}
	r := Result{}
	b.report(&r)
	require.Equal(t, 1, r.Bursts.InTime)
	require.Equal(t, 1, r.Bursts.Incomplete)
	require.Equal(t, []float64{1000, 1000}, r.Bursts.Completions)
}

func smallCycles() *collab {
	c := DefaultCollab()
	c.Topics, c.ClientsPerTopic, c.Delay, c.Rounds, c.RoundTimeout = 2, 3, s1, 2, 5*s1
	return newCollab(c)
}

func TestTopicsStartTogetherAndGoOnByThemselves(t *testing.T) {
	c := smallCycles()
	c.start(0)
	p := &published{}
	require.Equal(t, 5*s1, c.due(0, p.publish), "the timeout of either")
	require.Len(t, p.take(), 2)

	require.Equal(t, outcome{}, c.delivered(delivery{client: 0, topic: 0, now: ms}), "the publisher's own copy")
	require.Equal(t, outcome{latency: 2 * ms, recorded: true}, c.delivered(delivery{client: 2, topic: 0, now: 2 * ms}))
	require.Equal(t, outcome{latency: 7 * ms, recorded: true}, c.delivered(delivery{client: 4, topic: 0, now: 7 * ms}))

	require.Equal(t, s1+7*ms, c.due(8*ms, p.publish), "topic 0 rests from when the last had it")
	c.due(s1+7*ms, p.publish)
	second := p.take()
	require.Len(t, second, 1)
	require.Equal(t, 1, second[0].sequence)
	require.Equal(t, s1+7*ms, second[0].due)
	require.Equal(t, outcome{}, c.delivered(delivery{client: 2, topic: 0, sequence: 1, now: s1 + 8*ms}), "the next client publishes")
}

func TestARoundIsGivenUpAfterItsTimeout(t *testing.T) {
	c := smallCycles()
	c.cfg.Topics = 1
	c.start(0)
	p := &published{}
	c.due(0, p.publish)
	c.delivered(delivery{client: 1, topic: 0, now: ms})
	require.Equal(t, 6*s1, c.due(5*s1, p.publish), "rests after giving up")
	require.Equal(t, outcome{late: true}, c.delivered(delivery{client: 2, topic: 0, now: 5*s1 + ms}))
	c.due(6*s1, p.publish)
	require.Equal(t, outcome{late: true}, c.delivered(delivery{client: 2, topic: 0, now: 6*s1 + ms}), "also while the next is under way")
	c.delivered(delivery{client: 0, topic: 0, sequence: 1, now: 6*s1 + 2*ms})
	c.delivered(delivery{client: 2, topic: 0, sequence: 1, now: 6*s1 + 2*ms})
	require.Equal(t, never, c.due(7*s1, p.publish))
	r := Result{}
	c.report(&r)
	require.Equal(t, Rounds{Total: 2, Complete: 1, TimedOut: 1}, *r.Rounds)
}

// Every client publishes once a period; numbers, topics, sequences and payloads
// all find back to each other.
func TestSteadyMessagesKnowThemselves(t *testing.T) {
	cfg := DefaultSteady()
	cfg.Topics, cfg.ClientsPerTopic, cfg.Period, cfg.Warmup, cfg.Duration = 7, 3, 1001*ms, s1, 3*s1
	s := newSteady(cfg)
	s.start(4 * s1)
	p := &published{}
	require.Equal(t, never, s.due(time.Hour, p.publish))
	require.Len(t, p.all, s.total)
	seen := map[[2]int]bool{}
	for n, m := range p.all {
		require.Equal(t, n, s.number(m.topic, m.sequence))
		require.Len(t, m.payload, creationDigits)
		sequence, ok := s.read(m.topic, m.payload)
		require.True(t, ok)
		require.Equal(t, m.sequence, sequence)
		require.Less(t, m.sequence, s.shape().messages)
		seen[[2]int{m.topic, m.sequence}] = true
		_, ok = s.read((m.topic+1)%7, m.payload)
		require.False(t, ok, "it is not another topic's")
		o := s.delivered(delivery{topic: m.topic, sequence: m.sequence, now: m.due + 3*ms})
		require.Equal(t, outcome{latency: 3 * ms, recorded: m.due >= 5*s1}, o)
	}
	require.Len(t, seen, s.total)
}

func TestPayloadsOfOthersAreNotRead(t *testing.T) {
	m := newNumberedMessage()
	sequence, ok := m.read(m.make(17))
	require.True(t, ok)
	require.Equal(t, 17, sequence)
	good := string(m.make(17))
	for _, other := range []string{"", "[]", `["#00001x"]`, good[:len(good)-1], good + " ", "x" + good[1:], `["#000017"]`} {
		_, ok := m.read([]byte(other))
		require.False(t, ok, "%q", other)
	}
	s := newSteady(DefaultSteady())
	for _, other := range []string{"", "000000000x", "00000000000", "0000000001"} {
		_, ok := s.read(0, []byte(other))
		require.False(t, ok, "%q", other)
	}
}

func TestConfigsAreCheckedWithTheirFlags(t *testing.T) {
	b := BroadcastConfig{}
	for _, flag := range []string{"--target", "--mode", "--publishers", "--max-publishers", "--connecting", "--drain", "--clients", "--period", "--bursts"} {
		require.ErrorContains(t, b.Check(), flag)
	}
	require.Error(t, (&CollabConfig{}).Check())
	require.Error(t, (&SteadyConfig{}).Check())
	crowded := DefaultSteady()
	crowded.Target, crowded.Topics, crowded.Period = "http://127.0.0.1:1", 1000, ms
	require.ErrorContains(t, crowded.Check(), "--period")
	for _, good := range []func(*Common) error{
		func(c *Common) error { d := DefaultBroadcast(); d.Target = c.Target; return d.Check() },
		func(c *Common) error { d := DefaultCollab(); d.Target = c.Target; return d.Check() },
		func(c *Common) error { d := DefaultSteady(); d.Target = c.Target; return d.Check() },
	} {
		require.NoError(t, good(&Common{Target: "http://127.0.0.1:1"}))
	}
}
