// Package transporttest is one suite of stories for every transport and every mode of
// answers: every subscriber must see the same, whatever its transport.
//
// A transport implements System and calls Run. A transport that cannot do something does
// not implement an optional interface, or returns errors.ErrUnsupported. Each story says
// what must hold then.
package transporttest

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Bounds are the settings that a story needs. A zero field means the default.
type Bounds struct {
	HistoryMessages int
	HistoryAge      time.Duration
	Queue           int
	Unacked         int
	Subscriptions   int
	PatternBytes    int
	Rules           []broker.Rule
}

// A System is a fresh daemon, and subscribes to it.
type System interface {
	// Publish publishes a message.
	Publish(item wire.PublishItem) wire.Position
	// Delete empties a topic.
	Delete(topic string)
	// Subscribe subscribes on the transport under test. The error is a *wire.Problem.
	Subscribe(o Opening) (Subscriber, error)
	// Drain ends the daemon's sessions.
	Drain()
	// Sweep does what the daemon does each second.
	Sweep()
	// Members returns the keys of the members of a topic.
	Members(topic string) []string
}

// An Opening has what a subscriber asks for.
type Opening struct {
	Topics []wire.Start
	Client string // its own messages have this name and are not sent to it; empty: none
}

// A Subscriber is one subscriber on the transport under test.
type Subscriber interface {
	// Positions returns the positions that the subscriber got at its begin.
	Positions() []wire.Position

	// Next waits for the next message or gap.
	Next() (wire.Content, error)

	// Change changes the subscriptions, also while the subscriber waits, and returns the
	// positions in the reply.
	Change(add []wire.Start, remove []string) ([]wire.Position, error)

	// Return loses the connection and reconnects as the transport does it. The last frames
	// that Next returned, lost of them, count as not received.
	Return(lost int)

	// Leave loses the connection. The next call is Return, or Close.
	Leave()

	// Close closes the connection.
	Close()
}

// Away is an optional interface of a Subscriber. Between answers of a client that IsAway the
// daemon keeps nothing for it. So it is never slow: it resumes from its positions.
type Away interface{ IsAway() bool }

// SessionHolder is an optional interface of a Subscriber whose session outlives its connections.
type SessionHolder interface {
	// End ends the session, as another connection of the same client can.
	End() error
	// Rival returns another subscriber that takes over this one's session.
	Rival() (Subscriber, error)
	// Leaves reports whether the subscriber has no poll while nobody calls Next.
	Leaves() bool
}

// A story is run on a system of its own.
type story struct {
	bounds Bounds
	tell   func(s *scene)
	clock  bool // it needs fake time
}

func stories() map[string]story {
	return map[string]story{
		"order":                     {tell: order},
		"payloads":                  {tell: payloads},
		"message metadata":          {tell: metadata},
		"hello":                     {tell: hello},
		"many topics":               {tell: manyTopics},
		"newest messages":           {bounds: Bounds{HistoryMessages: 5}, tell: newestMessages},
		"resume by position":        {tell: resume},
		"connection lost":           {tell: connectionLost},
		"connection lost often":     {tell: connectionLostOften},
		"gap sent again":            {bounds: Bounds{HistoryMessages: 3}, tell: gapSentAgain},
		"few unacked":               {bounds: Bounds{Unacked: 3, Queue: 4}, tell: fewUnacked},
		"gap evicted":               {bounds: Bounds{HistoryMessages: 3}, tell: gapEvicted},
		"gap expired":               {bounds: Bounds{HistoryAge: time.Minute}, tell: gapExpired, clock: true},
		"gap restarted":             {tell: gapRestarted},
		"gap for a short life":      {tell: gapTTL, clock: true},
		"gap deleted":               {tell: gapDeleted},
		"slow resumes":              {bounds: Bounds{HistoryMessages: 10, Queue: 4}, tell: slowResumes},
		"slow drops the oldest":     {bounds: slowBounds(broker.DropOldest), tell: slowDropsOldest},
		"slow conflates":            {bounds: slowBounds(broker.Conflate), tell: slowConflates},
		"slow is disconnected":      {bounds: slowBounds(broker.Disconnect), tell: slowIsDisconnected},
		"max rate":                  {tell: maxRate, clock: true},
		"own messages":              {tell: ownMessages},
		"own messages move":         {bounds: Bounds{HistoryMessages: 3}, tell: ownMessagesMove, clock: true},
		"change while waiting":      {tell: changeWhileWaiting},
		"pattern added":             {tell: patternAdded},
		"more topics than fit":      {bounds: Bounds{PatternBytes: 2 * broker.BytesOf("p.1")}, tell: moreTopicsThanFit},
		"change that is refused":    {bounds: Bounds{Subscriptions: 3}, tell: changeRefused},
		"change of a present topic": {tell: changePresent},
		"too many subscriptions":    {bounds: Bounds{Subscriptions: 3}, tell: tooManySubscriptions},
		"waiting for long":          {tell: waitingForLong, clock: true},
		"away for too long":         {tell: awayForTooLong, clock: true},
		"ended by its client":       {tell: endedByClient},
		"taken over by another":     {tell: takenOver, clock: true}, // otherwise either poll may be the newer one
		"presence":                  {bounds: Bounds{Rules: []broker.Rule{{Name: "a", Pattern: "a", Presence: true}}}, tell: presence, clock: true},
		"drain":                     {tell: drain},
		"drain refuses clients":     {tell: drained},
	}
}

// A Sample chooses every Step-th story from First on. The zero value chooses all.
type Sample struct{ First, Step int }

// of yields the chosen stories by name.
func (s Sample) of(all map[string]story) iter.Seq2[string, story] {
	return func(yield func(string, story) bool) {
		for i, name := range slices.Sorted(maps.Keys(all)) {
			if (i+s.First)%max(s.Step, 1) == 0 && !yield(name, all[name]) {
				return
			}
		}
	}
}

// Run runs stories with fake time, each on a system of its own.
func Run(t *testing.T, sample Sample, start func(t *testing.T, b Bounds) System) {
	for name, story := range sample.of(stories()) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				story.tell(&scene{T: t, System: start(t, story.bounds), settle: synctest.Wait})
			})
		})
	}
}

// RunInRealTime runs stories that need no fake time, on a system with real sockets.
func RunInRealTime(t *testing.T, sample Sample, start func(t *testing.T, b Bounds) System) {
	for name, story := range sample.of(stories()) {
		if story.clock {
			continue
		}
		t.Run(name, func(t *testing.T) { story.tellInRealTime(t, start) })
	}
}

// tellInRealTime runs a story. If settle was too short for the story, it runs again with a
// longer one.
func (y story) tellInRealTime(t *testing.T, start func(t *testing.T, b Bounds) System) {
	const longest = 5 * time.Second
	for pause := time.Millisecond; pause < longest; pause *= 2 {
		s := &scene{T: t, System: start(t, y.bounds), settle: func() { time.Sleep(pause) }, real: true}
		if y.tell(s); !s.again {
			return
		}
	}
	require.Fail(t, "the story never settled")
}

// A scene is the run of a story.
type scene struct {
	*testing.T
	System
	real   bool   // the story runs in real time
	again  bool   // the story sets it if settle was too short in real time
	settle func() // waits until goroutines are idle; in real time it may be too short
}

// subscribe subscribes to topics until the story ends.
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

// wants receives one frame for each word of want and compares: "a1 gap(slow:a1-5)".
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

// wantsEnd receives the end, and returns its problem.
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

// waits receives this many frames in the background. The channel has each of them as a
// word, or the error.
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

// describe returns a frame as one word, and the position after it.
func describe(c wire.Content) (string, wire.Position) {
	if g := c.Gap; g != nil {
		return fmt.Sprintf("gap(%s:%s%d-%d)", g.Reason, g.Topic, g.After.Offset, g.Position.Offset), g.Position
	}
	p := c.Message.Position
	return fmt.Sprintf("%s%d", p.Topic, p.Offset), p
}

// span returns "a3 a4 a5" for span(3, 5).
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
func newest(topic string, n int32) wire.Start {
	return wire.Start{Topic: topic, From: wire.FromNewest, Newest: n}
}
