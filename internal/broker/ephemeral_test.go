package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// typing makes the topics that end with typing ephemeral.
var typing = Config{Rules: []Rule{
	{Name: "typing", Pattern: "chat.*.typing", Ephemeral: true},
	{Name: "kept", Pattern: "chat.kept.typing"},
}}

// ephemeral is an ephemeral topic.
const ephemeral = "chat.1.typing"

// Every subscriber is offered each message, and then nothing is held. Nobody has lost anything.
func TestAnEphemeralTopicHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, all := newBroker(typing), [2 * fewSubscribers]recorder{}
		for i := range all {
			_, err := b.Join(wire.Start{Topic: ephemeral}, &all[i], true)
			require.NoError(t, err)
		}
		for range 3 {
			publish(t, b, ephemeral)
		}
		b.Close()
		for i := range all {
			require.Equal(t, []uint64{1, 2, 3}, all[i].got())
		}
		state, _ := b.Topic(ephemeral)
		require.Equal(t, []int{0, 0}, []int{state.Messages, state.Bytes})
		require.EqualValues(t, 3, state.Position.Offset)
		require.Zero(t, evicted(t, b.metrics, "evicted"), "no message was lost")
		epoch := state.Position.Epoch
		require.NotEqual(t, b.Epoch("any"), epoch)
		require.Equal(t, "gap(evicted 1-3)", read(t, b, ephemeral+"@"+epoch+":1", 10))
		require.Empty(t, read(t, b, ephemeral+"@"+epoch+":3", 10))
		require.Equal(t, "gap(restarted 1-3)", read(t, b, ephemeral+"@k3:1", 10))
		for _, start := range []string{"@oldest", "@newest-2", ""} {
			s, err := wire.ParseStart(ephemeral + start)
			require.NoError(t, err)
			j, err := b.Join(s, &recorder{}, true)
			require.NoError(t, err)
			require.True(t, j.Live)
			require.EqualValues(t, 3, j.Position.Offset)
		}
		consistent(t, b)
	})
}

// Without subscribers, a message is only numbered.
func TestMessagesWithoutSubscribersAreNumbered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		for i := range 3 {
			require.EqualValues(t, i+1, publish(t, b, ephemeral))
		}
		require.Zero(t, b.memory.Of(memory.Local))
		require.Equal(t, "gap(evicted 1-3)", read(t, b, ephemeral+"@"+b.Epoch(ephemeral)+":1", 10))
		consistent(t, b)
	})
}

// The most specific rule decides, and only that of the first settings.
func TestTheFirstRulesDecideWhichTopicsAreEphemeral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		b.Reload(Config{Rules: []Rule{{Name: "kept", Pattern: "chat.kept.typing", Ephemeral: true}}}, time.Now())
		publish(t, b, "chat.kept.typing")
		publish(t, b, ephemeral)
		require.Equal(t, "1", read(t, b, "chat.kept.typing@EPOCH:0", 10))
		require.Equal(t, "gap(evicted 0-1)", read(t, b, ephemeral+"@"+b.Epoch(ephemeral)+":0", 10))
		require.False(t, b.IsEphemeral("_presence."+ephemeral))
		require.Equal(t, b.Epoch(ephemeral), b.Epoch("chat.2.typing"))
	})
}

// A subscriber with a rate reads the newest message of each key, so the topic holds them as long as
// there is such a subscriber.
func TestAnEphemeralTopicHoldsMessagesForSubscribersWithARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		j, err := b.Join(wire.Start{Topic: ephemeral, Every: time.Second}, &recorder{}, true)
		require.NoError(t, err)
		for range 1100 {
			publish(t, b, ephemeral)
		}
		state, _ := b.Topic(ephemeral)
		require.Equal(t, 1000, state.Messages, "the bounds of other topics hold")
		require.Zero(t, evicted(t, b.metrics, "evicted"), "no message was lost")
		require.EqualValues(t, state.Bytes, b.memory.Of(memory.Local))
		require.Zero(t, b.LiveBytes(), "no log has them")
		for _, from := range []wire.From{wire.FromOldest, wire.FromNewest} {
			now, err := b.Join(wire.Start{Topic: ephemeral, From: from, Newest: 5}, &recorder{}, true)
			require.NoError(t, err)
			require.EqualValues(t, 1100, now.Position.Offset, "others begin now")
			now.Leave()
		}
		j.Leave()
		state, _ = b.Topic(ephemeral)
		require.Zero(t, state.Messages)
		b.Close()
		consistent(t, b)
	})
}

// A topic lives for a minute after its last message. Then it is forgotten without the log, and a
// client that comes back gets one gap for what it has not received, and none if it has all.
func TestAnIdleEphemeralTopicIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &refusing{}
		b := NewWithLog(typing, metrics.New("test"), time.Now(), func(*Broker) Log { return log })
		pattern := b.PatternPosition(">")
		publish(t, b, ephemeral)
		publish(t, b, ephemeral)
		at := ephemeral + "@" + b.Epoch(ephemeral)
		b.Sweep(time.Now().Add(awayTime - 1))
		require.True(t, b.Has(ephemeral), "its name need not be created for each message")
		b.Sweep(time.Now().Add(awayTime))
		require.False(t, b.Has(ephemeral))
		g := metrics.Gauges{}
		b.Gauges(&g)
		require.Zero(t, g.Topics)
		require.Zero(t, b.localTopics.Load())
		require.EqualValues(t, 3, publish(t, b, ephemeral))
		require.Equal(t, "gap(evicted 1-3)", read(t, b, at+":1", 10))
		require.Equal(t, pattern, b.PatternPosition(">"), "no pattern of the log notices")
		require.Zero(t, log.appended)
	})
}

// refusing is a Log that waits for a disk, which no test here may reach.
type refusing struct {
	memoryLog
	appended int
}

func (l *refusing) Append(e []Entry, done func([]Result)) {
	l.appended++
	done(make([]Result, len(e)))
}

// An ephemeral topic never goes to the log: neither its messages, nor keys, nor deletions.
func TestEphemeralTopicsNeedNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &refusing{}
		b := NewWithLog(typing, metrics.New("test"), time.Now(), func(*Broker) Log { return log })
		require.True(t, b.Route("a").Waits)
		for range 2 { // the topic does not exist, and then it does
			require.False(t, b.Route(ephemeral).Waits)
			publish(t, b, ephemeral)
		}
		m := &wire.Message{Position: wire.Position{Topic: ephemeral}, ID: "k", Data: []byte("1")}
		c, _, _ := b.Claim("", m, 0, time.Now())
		sent, over := b.Send(b.Route(ephemeral), c, m, 0, time.Now(), nil)
		require.True(t, over)
		again := &wire.Message{Position: wire.Position{Topic: ephemeral}, ID: "k", Data: []byte("1")}
		c, earlier, _ := b.Claim("", again, 0, time.Now())
		require.False(t, c.IsHeld())
		require.Equal(t, sent, earlier, "the key holds while the process lives")
		state, err := b.Delete(ephemeral, time.Now())
		require.NoError(t, err)
		require.EqualValues(t, 4, state.Position.Offset)
		require.Zero(t, log.appended)
		require.NoError(t, b.Export(func(e Entry) error {
			require.Equal(t, OpEpoch, e.Op, "the export has %v", e.Message.Position)
			return nil
		}))
	})
}

// The idempotency keys of ephemeral messages need no byte in a log, so the log reserves none and evicts
// nothing for them.
func TestKeysOfEphemeralMessagesNeedNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		live := func() int64 { return b.LiveBytes() - b.memory.Of(memory.History) }
		send := func(topic, key string) {
			m := &wire.Message{Position: wire.Position{Topic: topic}, ID: key, Data: []byte("1")}
			c, _, _ := b.Claim("", m, 0, time.Now())
			b.Send(b.Route(topic), c, m, 0, time.Now(), nil)
		}
		send(ephemeral, "a")
		require.Zero(t, live())
		send("any", "b")
		require.EqualValues(t, topicBytes/4+keyBytes, live())
		require.Equal(t, 2, b.keys.count())
		time.Sleep(time.Hour)
		b.keys.sweep(time.Now())
		require.EqualValues(t, topicBytes/4, live())
		require.Zero(t, b.keys.count())
	})
}

// A log has entries of a topic that has become ephemeral since. They are no longer held, and
// patterns get a gap.
func TestEntriesOfATopicThatBecameEphemeralAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		position, at := b.PatternPosition(">"), wire.Position{Topic: ephemeral, Epoch: b.Epoch("any")}
		for i, op := range []Op{OpTopic, OpPublish, OpLost, OpDelete, OpForget} {
			at.Offset = uint64(i + 1)
			e := Entry{Op: op, Message: &wire.Message{Position: at}, State: &State{Lost: at.Offset, Reason: wire.GapEvicted}}
			_, err := b.Apply(e)
			require.NoError(t, err)
			require.False(t, b.Has(ephemeral))
			require.Equal(t, at.Offset, b.PatternPosition(">").Offset)
		}
		require.True(t, b.ForgottenSince(position, nil, NewSearch(1)))
		publish(t, b, ephemeral)
		require.Equal(t, "gap(restarted 5-1)", read(t, b, at.String(), 10))
	})
}

// A file has the forgotten topics first, and then the others, whose messages may be older. A client
// had the pattern's position, and had not yet received a message from before.
func TestAnOldTopicOfAFileThatBecameEphemeralIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		epoch := b.Epoch("any")
		for _, e := range []Entry{
			{Op: OpEpoch, Message: &wire.Message{Position: wire.Position{Epoch: epoch, Offset: 50}}, State: &State{Forgotten: 50}},
			{Op: OpTopic, Message: &wire.Message{Position: wire.Position{Topic: ephemeral, Epoch: epoch, Offset: 40}}, State: &State{}},
		} {
			_, err := b.Apply(e)
			require.NoError(t, err)
		}
		require.True(t, b.ForgottenSince(wire.Position{Topic: ">", Epoch: epoch, Offset: 50}, nil, NewSearch(1)))
	})
}

// A joiner is a Follower that joins each new topic from its first message, after the publisher.
type joiner struct {
	recorder
	b *Broker
	j Joined
}

func (f *joiner) Made(topic string) {
	synctest.Wait() // the publisher has returned
	f.j, _, _ = f.b.JoinIfThere(wire.Start{Topic: topic}, true, f)
}

// Many follow a pattern. Each gets the first message of a new topic, although none is held.
func TestFollowersGetTheFirstMessageOfAnEphemeralTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(typing)
		var followers []*joiner
		for range fewSubscribers + 1 {
			f := &joiner{b: b}
			followers = append(followers, f)
			require.NoError(t, b.Follow("chat.>", f))
		}
		publish(t, b, ephemeral)
		publish(t, b, ephemeral)
		b.Close()
		for _, f := range followers {
			require.True(t, f.j.Live)
			require.Equal(t, []uint64{1, 2}, f.got())
		}
		state, _ := b.Topic(ephemeral)
		require.Zero(t, state.Messages)
		consistent(t, b)
	})
}

// The path of an ephemeral message is shorter: no history takes it.
func BenchmarkPublishEphemeral(b *testing.B) {
	for _, subscribers := range []int{0, 1, 5} {
		for _, topic := range []string{ephemeral, "chat.1.history"} {
			b.Run(fmt.Sprintf("%s/%d subscribers", topic, subscribers), func(b *testing.B) {
				br, ignored := newBroker(typing), recorder{}
				for range subscribers {
					_, err := br.Join(wire.Start{Topic: topic}, discard{&ignored}, true)
					require.NoError(b, err)
				}
				b.ReportAllocs()
				for b.Loop() {
					br.Send(br.Route(topic), Claim{}, &wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now(), nil)
				}
			})
		}
	}
}
