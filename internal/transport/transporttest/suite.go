// Package transporttest is one suite of stories for every transport and every
// mode of answering: what a subscriber sees must not depend on how it is told.
package transporttest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Bounds is what a story wants of the system it is told on.
type Bounds struct {
	HistoryMessages int           // zero: the default
	HistoryAge      time.Duration // zero: the default
	Queue           int           // zero: the default
}

// A System is a fresh daemon and a way to subscribe to it.
type System interface {
	// Publish publishes a payload of the given type (empty for JSON).
	Publish(topic, mediaType, data string, ttl time.Duration) wire.Position
	// Subscribe subscribes, by the transport under test.
	Subscribe(topics ...wire.Start) Subscriber
	// Drain ends the daemon's sessions.
	Drain()
}

// A Subscriber is one subscriber on the transport under test.
type Subscriber interface {
	// Next waits for the next message or gap.
	Next() (wire.Content, error)
	// Change changes the subscriptions while the subscriber waits.
	// ok is false if the transport has no way to.
	Change(add []wire.Start, remove []string) (ok bool)
	// Close leaves.
	Close()
}

// Run tells every story, each in a bubble of fake time on a system of its own.
func Run(t *testing.T, start func(t *testing.T, b Bounds) System) {
	for name, story := range map[string]struct {
		bounds Bounds
		tell   func(s *scene)
	}{
		"order":                {tell: order},
		"payloads":             {tell: payloads},
		"resume by position":   {tell: resume},
		"gap evicted":          {Bounds{HistoryMessages: 3}, gapEvicted},
		"gap expired":          {Bounds{HistoryAge: time.Minute}, gapExpired},
		"gap restarted":        {tell: gapRestarted},
		"gap for a short life": {tell: gapTTL},
		"slow subscriber":      {Bounds{HistoryMessages: 10, Queue: 4}, slowSubscriber},
		"change while waiting": {tell: changeWhileWaiting},
		"many topics":          {tell: manyTopics},
		"waiting for long":     {tell: waitingForLong},
		"drain":                {tell: drain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				story.tell(&scene{T: t, System: start(t, story.bounds)})
			})
		})
	}
}

// A scene is a story being told.
type scene struct {
	*testing.T
	System
}

func (s *scene) say(topic string, n int) wire.Position {
	s.Helper()
	p := s.Publish(topic, "", fmt.Sprint(n), 0)
	synctest.Wait() // the fan-out is done
	return p
}

// wants receives as many frames as want has words and compares: "a1 gap(slow a1-5)".
func (s *scene) wants(sub Subscriber, want string) wire.Position {
	s.Helper()
	var got []string
	var last wire.Position
	for range strings.Fields(want) {
		c, err := sub.Next()
		require.NoError(s, err, "after %q", got)
		var word string
		word, last = describe(c)
		got = append(got, word)
	}
	require.Equal(s, want, strings.Join(got, " "))
	return last
}

// describe writes a frame as one word, and returns the position after it.
func describe(c wire.Content) (string, wire.Position) {
	if g := c.Gap; g != nil {
		return fmt.Sprintf("gap(%s:%s%d-%d)", g.Reason, g.Topic, g.After.Offset, g.Position.Offset), g.Position
	}
	p := c.Message.Position
	return fmt.Sprintf("%s%d", p.Topic, p.Offset), p
}

func now(topic string) wire.Start    { return wire.Start{Topic: topic} }
func oldest(topic string) wire.Start { return wire.Start{Topic: topic, From: wire.FromOldest} }

func order(s *scene) {
	s.say("a", 0)
	sub := s.Subscribe(now("a"), oldest("b"))
	defer sub.Close()
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
	sub := s.Subscribe(now("a"))
	defer sub.Close()
	for _, p := range []struct{ mediaType, data string }{
		{"", `{"a":[1,2.5,"ü"]}`},
		{"", `null`},
		{"text/plain; charset=utf-8", "line\nline \"quoted\" \x00"},
		{"text/plain", ""},
		{"application/octet-stream", "\xff\x00binary"},
		{"", `"` + strings.Repeat("x", 64<<10-2) + `"`}, // the largest
	} {
		s.Publish("a", p.mediaType, p.data, 0)
		c, err := sub.Next()
		require.NoError(s, err)
		require.Equal(s, p.mediaType, c.Message.Type)
		require.Equal(s, p.data, string(c.Message.Data))
	}
}

func resume(s *scene) {
	sub := s.Subscribe(now("a"))
	s.say("a", 1)
	s.say("a", 2)
	at := s.wants(sub, "a1")
	sub.Close()
	s.say("a", 3)
	sub = s.Subscribe(wire.StartAfter(at))
	s.wants(sub, "a2 a3")
	s.say("a", 4)
	at = s.wants(sub, "a4")
	sub.Close()
	sub = s.Subscribe(wire.StartAfter(at))
	defer sub.Close()
	s.say("a", 5)
	s.wants(sub, "a5")
}

func gapEvicted(s *scene) {
	at := s.say("a", 1)
	for i := range 5 {
		s.say("a", i)
	}
	sub := s.Subscribe(wire.StartAfter(at))
	defer sub.Close()
	s.wants(sub, "gap(evicted:a1-3) a4 a5 a6")
	s.say("a", 7)
	s.wants(sub, "a7")
}

func gapExpired(s *scene) {
	at := s.say("a", 1)
	s.say("a", 2)
	time.Sleep(time.Minute)
	s.say("a", 3)
	sub := s.Subscribe(wire.StartAfter(at))
	defer sub.Close()
	s.wants(sub, "gap(expired:a1-2) a3")
}

func gapRestarted(s *scene) {
	at := s.say("a", 1)
	old := at
	old.Epoch = "before"
	ahead := at
	ahead.Offset = 77
	for given, want := range map[wire.Position]string{
		old:   "gap(restarted:a1-0) a1",
		ahead: "gap(restarted:a77-0) a1",
	} {
		sub := s.Subscribe(wire.StartAfter(given))
		s.wants(sub, want)
		sub.Close()
	}
}

func gapTTL(s *scene) {
	at := s.say("a", 1)
	s.Publish("a", "", "2", time.Second)
	s.say("a", 3)
	time.Sleep(time.Second)
	sub := s.Subscribe(wire.StartAfter(at))
	defer sub.Close()
	s.wants(sub, "gap(expired:a1-2) a3")
}

// A subscriber that does not come back for a while gets what was buffered for it,
// one gap, and the rest. How much was buffered is the transport's affair.
func slowSubscriber(s *scene) {
	sub := s.Subscribe(now("a"))
	defer sub.Close()
	s.say("a", 1)
	s.wants(sub, "a1")
	const last = 2000
	for i := 2; i <= last; i++ {
		// Too large for the buffers on the way to hold them all.
		s.Publish("a", "", `"`+strings.Repeat("x", 1000)+`"`, 0)
		synctest.Wait()
	}
	at, gaps := uint64(1), 0
	for at < last {
		c, err := sub.Next()
		require.NoError(s, err)
		if g := c.Gap; g != nil {
			gaps++
			require.Equal(s, at, g.After.Offset, "the gap begins where the subscriber is")
			at = g.Position.Offset
			continue
		}
		at++
		require.Equal(s, at, c.Message.Position.Offset)
	}
	require.Equal(s, 1, gaps, "gaps")
}

func changeWhileWaiting(s *scene) {
	s.say("b", 1)
	sub := s.Subscribe(now("a"))
	defer sub.Close()
	got := make(chan string)
	go func() {
		for range 2 {
			c, err := sub.Next()
			if err != nil {
				got <- err.Error()
				return
			}
			word, _ := describe(c)
			got <- word
		}
	}()
	synctest.Wait()
	if !sub.Change([]wire.Start{oldest("b")}, []string{"a"}) {
		s.say("a", 1)
		s.say("a", 2)
		<-got
		<-got
		return
	}
	require.Equal(s, "b1", <-got)
	s.say("a", 1)
	s.say("b", 2)
	require.Equal(s, "b2", <-got, "a was dropped")
}

func manyTopics(s *scene) {
	const topics = 200
	starts := make([]wire.Start, topics)
	for i := range starts {
		starts[i] = oldest(fmt.Sprintf("many.t%d", i))
	}
	sub := s.Subscribe(starts...)
	defer sub.Close()
	want := map[string]bool{}
	for _, start := range starts {
		s.Publish(start.Topic, "", "1", 0)
		want[start.Topic] = true
	}
	for range topics {
		c, err := sub.Next()
		require.NoError(s, err)
		require.NotNil(s, c.Message)
		delete(want, c.Message.Position.Topic)
	}
	require.Empty(s, want)
}

// Nothing comes for longer than any timeout on the way, and then something does.
func waitingForLong(s *scene) {
	sub := s.Subscribe(now("a"))
	defer sub.Close()
	published := make(chan struct{})
	go func() {
		defer close(published)
		time.Sleep(5 * time.Minute)
		s.Publish("a", "", "1", 0)
	}()
	s.wants(sub, "a1")
	<-published
}

func drain(s *scene) {
	sub := s.Subscribe(now("d"))
	defer sub.Close()
	s.say("d", 1)
	s.wants(sub, "d1")
	ended := make(chan error)
	go func() {
		_, err := sub.Next()
		ended <- err
	}()
	synctest.Wait()
	s.Drain()
	require.ErrorIs(s, <-ended, &wire.Problem{Code: wire.CodeDraining})
}
