package transporttest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func order(s *scene) {
	s.say("a", 0)
	sub := s.subscribe(now("a"), oldest("b"))
	s.say("a", 1)
	s.wants(sub, "a2")
	s.say("b", 0)
	s.wants(sub, "b1")
	next := map[string]uint64{"a": 3, "b": 2}
	for i := range 300 {
		s.say("ab"[i%2:i%2+1], i)
	}
	for range 300 {
		c, err := sub.Next()
		require.NoError(s, err)
		require.NotNil(s, c.Message)
		p := c.Message.Position
		require.Equal(s, next[p.Topic], p.Offset)
		next[p.Topic]++
	}
}

func payloads(s *scene) {
	sub := s.subscribe(now("a"))
	for _, item := range []wire.PublishItem{
		{Data: json.RawMessage(`{"a":[1,-2.5,"ü",18446744073709551615,true],"":{}}`)},
		{Data: json.RawMessage(`null`)},
		{Data: json.RawMessage(`0.1000000000000000000001`)},
		{Type: "text/plain; charset=utf-8", Text: new("line\nline \"quoted\" \x00")},
		{Type: "text/plain", Text: new("")},
		{Type: "application/octet-stream", Base64: new([]byte("\xff\x00binary"))},
		{Type: "application/octet-stream", Base64: new([]byte{})},
		{Data: json.RawMessage(`"` + strings.Repeat("x", 64<<10-2) + `"`)}, // the largest
		{Type: "application/octet-stream", Base64: new([]byte(strings.Repeat("\xff", 64<<10)))},
	} {
		item.Topic = "a"
		s.Publish(item)
		c, err := sub.Next()
		require.NoError(s, err)
		require.Equal(s, item.Type, c.Message.Type)
		switch {
		case item.Text != nil:
			require.Equal(s, *item.Text, string(c.Message.Data))
		case item.Base64 != nil:
			require.Equal(s, string(*item.Base64), string(c.Message.Data))
		default:
			require.Equal(s, string(item.Data), string(c.Message.Data))
		}
	}
}

// A message carries its metadata, except the client that published it.
func metadata(s *scene) {
	sub := s.subscribe(now("a"))
	s.Publish(wire.PublishItem{Topic: "a", Data: json.RawMessage("1"), Key: "k ü", ID: new("id-1"), Client: new("me")})
	c, err := sub.Next()
	require.NoError(s, err)
	require.Equal(s, "k ü", c.Message.Key)
	require.Equal(s, "id-1", c.Message.ID)
	require.Empty(s, c.Message.Client)
	require.NotZero(s, c.Message.Time)
}

// A subscriber knows its positions before the first message, and misses nothing after them.
func hello(s *scene) {
	s.say("a", 1)
	at := s.say("a", 2)
	s.say("b", 1)
	c := s.say("c", 1)
	s.say("c", 2)
	sub := s.subscribe(now("a"), oldest("b"), wire.StartAfter(c), now("new"))
	told := map[string]wire.Position{}
	for _, p := range sub.Positions() {
		told[p.Topic] = p
	}
	require.Equal(s, at, told["a"])
	require.EqualValues(s, 0, told["b"].Offset)
	require.EqualValues(s, 1, told["c"].Offset)
	require.EqualValues(s, 0, told["new"].Offset)
	require.Equal(s, at.Epoch, told["new"].Epoch)
	got := s.wantsBoth(sub, 2)
	require.Equal(s, map[string]int{"b": 1, "c": 1}, got)
	s.say("a", 3)
	s.wants(sub, "a3")
	s.say("new", 1)
	s.wants(sub, "new1")
}

// A subscriber begins just before the newest messages, without a gap, and knows where. When it
// returns, it continues from its positions.
func newestMessages(s *scene) {
	for n := range 7 {
		s.say("a", n)
	}
	began := func(sub Subscriber) uint64 {
		positions := sub.Positions()
		return positions[slices.IndexFunc(positions, func(p wire.Position) bool { return p.Topic == "a" })].Offset
	}
	sub := s.subscribe(newest("a", 2))
	require.EqualValues(s, 5, began(sub))
	s.wants(sub, "a6 a7")
	s.say("a", 8)
	s.wants(sub, "a8")
	sub.Return(0)
	s.say("a", 9)
	s.wants(sub, "a9")
	all := s.subscribe(newest("a", 1000), newest("b", 1))
	require.EqualValues(s, 4, began(all))
	s.wants(all, "a5 a6 a7 a8 a9")
	s.say("b", 1)
	s.wants(all, "b1")
}

// wantsBoth receives messages and counts them by topic: messages of different topics have
// no order.
func (s *scene) wantsBoth(sub Subscriber, messages int) map[string]int {
	s.Helper()
	got := map[string]int{}
	for range messages {
		c, err := sub.Next()
		require.NoError(s, err)
		require.NotNil(s, c.Message, "%+v", c)
		got[c.Message.Position.Topic]++
	}
	return got
}

// A session has nearly the maximum of topics, and only a few have messages.
func manyTopics(s *scene) {
	const topics = 990
	starts := make([]wire.Start, topics)
	for i := range starts {
		starts[i] = oldest(fmt.Sprintf("many.t%d", i))
	}
	sub := s.subscribe(starts...)
	want := map[string]int{}
	for i := 0; i < topics; i += 100 {
		s.say(starts[i].Topic, i)
		want[starts[i].Topic] = 1
	}
	require.Equal(s, want, s.wantsBoth(sub, len(want)))
}
