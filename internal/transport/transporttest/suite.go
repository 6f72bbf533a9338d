// Package transporttest is one suite of stories for every transport and every
// mode of answering: what a subscriber sees must not depend on how it is told.
//
// A transport joins by a System of its own and a call of Run. What not every transport
// can do is an optional interface, or returns errors.ErrUnsupported: each story says
// what must hold instead.
package transporttest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Bounds is what a story wants of the system it is told on. The zero value of a field
// is the default.
type Bounds struct {
	HistoryMessages int
	HistoryAge      time.Duration
	Queue           int
	Unacked         int
	Subscriptions   int
	Rules           []broker.Rule
}

// A System is a fresh daemon and a way to subscribe to it.
type System interface {
	// Publish publishes a message.
	Publish(item wire.PublishItem) wire.Position
	// Delete empties a topic.
	Delete(topic string)
	// Subscribe subscribes, by the transport under test. The error is a *wire.Problem.
	Subscribe(o Opening) (Subscriber, error)
	// Drain ends the daemon's sessions.
	Drain()
	// Sweep does what the daemon does each second.
	Sweep()
}

// An Opening is what a subscriber asks for.
type Opening struct {
	Topics []wire.Start
	Client string // whose messages it is not sent, as its own; empty: none
}

// A Subscriber is one subscriber on the transport under test.
type Subscriber interface {
	// Positions are those that it was told when it began.
	Positions() []wire.Position

	// Next waits for the next message or gap.
	Next() (wire.Content, error)

	// Change changes the subscriptions, also while the subscriber waits, and returns the
	// positions that it was told.
	Change(add []wire.Start, remove []string) ([]wire.Position, error)

	// Return loses the connection and comes back, by what the transport has for that, as
	// one whom the last frames that Next returned, so many, did not reach.
	Return(lost int)

	// Close leaves.
	Close()
}

// Away may be implemented by a Subscriber. Of one that is away between answers the
// daemon keeps nothing then: it is never slow, for it comes back from its positions.
type Away interface{ IsAway() bool }

// Seated may be implemented by a Subscriber whose session outlives its connections.
type Seated interface {
	// End ends the session, as another connection of the same client's may.
	End() error
	// Rival returns another subscriber, which takes this one's place.
	Rival() (Subscriber, error)
	// Leaves reports whether a subscriber that is not asked for its Next has left its
	// session alone.
	Leaves() bool
}

// A story is told on a system of its own.
type story struct {
	bounds Bounds
	tell   func(s *scene)
	clock  bool // it needs fake time
}

func stories() map[string]story {
	return map[string]story{
		"order":                   {tell: order},
		"payloads":                {tell: payloads},
		"message metadata":        {tell: metadata},
		"hello":                   {tell: hello},
		"many topics":             {tell: manyTopics},
		"resume by position":      {tell: resume},
		"connection lost":         {tell: connectionLost},
		"connection lost often":   {tell: connectionLostOften},
		"gap sent again":          {bounds: Bounds{HistoryMessages: 3}, tell: gapSentAgain},
		"few unacked":             {bounds: Bounds{Unacked: 3, Queue: 4}, tell: fewUnacked},
		"gap evicted":             {bounds: Bounds{HistoryMessages: 3}, tell: gapEvicted},
		"gap expired":             {bounds: Bounds{HistoryAge: time.Minute}, tell: gapExpired, clock: true},
		"gap restarted":           {tell: gapRestarted},
		"gap for a short life":    {tell: gapTTL, clock: true},
		"gap deleted":             {tell: gapDeleted},
		"slow resumes":            {bounds: Bounds{HistoryMessages: 10, Queue: 4}, tell: slowResumes},
		"slow drops the oldest":   {bounds: slowBounds(broker.DropOldest), tell: slowDropsOldest},
		"slow conflates":          {bounds: slowBounds(broker.Conflate), tell: slowConflates},
		"slow is disconnected":    {bounds: slowBounds(broker.Disconnect), tell: slowIsDisconnected},
		"max rate":                {tell: maxRate, clock: true},
		"own messages":            {tell: ownMessages},
		"change while waiting":    {tell: changeWhileWaiting},
		"pattern added":           {tell: patternAdded},
		"change that is refused":  {bounds: Bounds{Subscriptions: 3}, tell: changeRefused},
		"what is there is kept":   {tell: changePresent},
		"too many subscriptions":  {bounds: Bounds{Subscriptions: 3}, tell: tooManySubscriptions},
		"waiting for long":        {tell: waitingForLong, clock: true},
		"away for too long":       {tell: awayForTooLong, clock: true},
		"ended by its client":     {tell: endedByClient},
		"taken over by another":   {tell: takenOver, clock: true}, // or nobody knows which poll is the newer
		"drain":                   {tell: drain},
		"drain and come back not": {tell: drained},
	}
}

// Run tells every story, each in a bubble of fake time on a system of its own.
func Run(t *testing.T, start func(t *testing.T, b Bounds) System) {
	for name, story := range stories() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				story.tell(&scene{T: t, System: start(t, story.bounds), settle: synctest.Wait})
			})
		})
	}
}

// RunInRealTime tells the stories that need no fake time, on a system that cannot have
// it: one on real sockets.
func RunInRealTime(t *testing.T, start func(t *testing.T, b Bounds) System) {
	for name, story := range stories() {
		if story.clock {
			continue
		}
		t.Run(name, func(t *testing.T) { story.tellInRealTime(t, start) })
	}
}

// tellInRealTime tells the story until it went as it is meant to. No other story
// depends on what settle leaves undone; one that does is told again, with more time.
func (y story) tellInRealTime(t *testing.T, start func(t *testing.T, b Bounds) System) {
	const longest = 5 * time.Second
	for pause := time.Millisecond; pause < longest; pause *= 2 {
		s := &scene{T: t, System: start(t, y.bounds), settle: func() { time.Sleep(pause) }, real: true}
		if y.tell(s); !s.again {
			return
		}
	}
	require.Fail(t, "what was to happen first never did")
}

// A scene is a story being told.
type scene struct {
	*testing.T
	System
	real   bool   // it is told in real time
	again  bool   // set by a story that went another way, as may happen in real time
	settle func() // lets what has begun come to its end; in real time it may not have
}

// subscribe subscribes to topics, until the story's end.
func (s *scene) subscribe(topics ...wire.Start) Subscriber {
	s.Helper()
	return s.open(Opening{Topics: topics})
}

func (s *scene) open(o Opening) Subscriber {
	s.Helper()
	sub, err := s.Subscribe(o)
	require.NoError(s, err)
	s.Cleanup(sub.Close)
	return sub
}

// say publishes a number.
func (s *scene) say(topic string, n int) wire.Position {
	s.Helper()
	return s.publish(wire.PublishItem{Topic: topic, Data: json.RawMessage(fmt.Sprint(n))})
}

func (s *scene) publish(item wire.PublishItem) wire.Position {
	s.Helper()
	p := s.Publish(item)
	if !s.real {
		s.settle() // the fan-out is done
	}
	return p
}

// wants receives as many frames as want has words and compares: "a1 gap(slow:a1-5)".
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

// wantsEnd receives the end, and returns why.
func (s *scene) wantsEnd(sub Subscriber, code wire.Code) wire.Problem {
	s.Helper()
	c, err := sub.Next()
	return s.wantsProblem(err, code, "%+v came", c)
}

func (s *scene) wantsProblem(err error, code wire.Code, context ...any) wire.Problem {
	s.Helper()
	var p *wire.Problem
	require.ErrorAs(s, err, &p, context...)
	require.Equal(s, code, p.Code, p.Detail)
	return *p
}

// waits begins to receive as many frames, while the story goes on, and returns how to
// get what each was, or what was wrong.
func (s *scene) waits(sub Subscriber, frames int) <-chan string {
	got := make(chan string, frames)
	go func() {
		defer close(got)
		for range frames {
			c, err := sub.Next()
			if err != nil {
				got <- err.Error()
				return
			}
			word, _ := describe(c)
			got <- word
		}
	}()
	s.settle()
	return got
}

// describe writes a frame as one word, and returns the position after it.
func describe(c wire.Content) (string, wire.Position) {
	if g := c.Gap; g != nil {
		return fmt.Sprintf("gap(%s:%s%d-%d)", g.Reason, g.Topic, g.After.Offset, g.Position.Offset), g.Position
	}
	p := c.Message.Position
	return fmt.Sprintf("%s%d", p.Topic, p.Offset), p
}

// span is "a3 a4 a5" for span(3, 5).
func span(from, to int) string {
	words := make([]string, 0, to-from+1)
	for n := from; n <= to; n++ {
		words = append(words, fmt.Sprintf("a%d", n))
	}
	return strings.Join(words, " ")
}

func isAway(sub Subscriber) bool {
	a, ok := sub.(Away)
	return ok && a.IsAway()
}

func now(topic string) wire.Start    { return wire.Start{Topic: topic} }
func oldest(topic string) wire.Start { return wire.Start{Topic: topic, From: wire.FromOldest} }
