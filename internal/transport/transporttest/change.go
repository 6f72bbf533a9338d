package transporttest

import (
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// changes changes the subscriptions. It returns false if the transport cannot.
func (s *scene) changes(sub Subscriber, add []wire.Start, remove ...string) (told []wire.Position, ok bool) {
	s.Helper()
	told, err := sub.Change(add, remove)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, false
	}
	require.NoError(s, err)
	return told, true
}

// wantsUnchanged expects that a subscriber which cannot change continues as before.
func (s *scene) wantsUnchanged(got <-chan string) {
	s.Helper()
	n := 0
	for len(got) < cap(got) && n < cap(got) {
		n++
		s.say("a", n)
		require.Equal(s, fmt.Sprintf("a%d", n), <-got)
	}
}

func changeWhileWaiting(s *scene) {
	s.say("b", 1)
	sub := s.subscribe(now("a"))
	got := s.waits(sub, 2)
	told, ok := s.changes(sub, []wire.Start{oldest("b")}, "a")
	if !ok {
		s.wantsUnchanged(got)
		return
	}
	require.Len(s, told, 1)
	require.EqualValues(s, 0, told[0].Offset)
	require.Equal(s, "b1", <-got)
	s.say("a", 1)
	s.say("b", 2)
	require.Equal(s, "b2", <-got, "a was removed")
	sub.Return(0)
	s.say("a", 2)
	s.say("b", 3)
	s.wants(sub, "b3")
}

// A pattern matches topics that exist, and topics that are made later.
func patternAdded(s *scene) {
	there := s.say("p.there", 1)
	sub := s.subscribe(now("a"))
	got := s.waits(sub, 3)
	told, ok := s.changes(sub, []wire.Start{now("p.>")})
	if !ok {
		s.wantsUnchanged(got)
		return
	}
	require.Len(s, told, 2)
	require.Equal(s, "p.>", told[0].Topic)
	require.Equal(s, there, told[1])
	s.say("p.there", 2)
	require.Equal(s, "p.there2", <-got)
	s.say("p.new", 1)
	require.Equal(s, "p.new1", <-got)
	s.say("a", 1)
	require.Equal(s, "a1", <-got)
	sub.Return(1)
	s.wants(sub, "a1")
	s.say("p.new", 2)
	s.wants(sub, "p.new2")
	_, ok = s.changes(sub, nil, "p.>")
	require.True(s, ok)
	s.say("p.new", 3)
	s.say("a", 2)
	s.wants(sub, "a2")
}

// A pattern matches a topic more than fit. The client gets a gap, whatever it resumes from, and
// everything else.
func moreTopicsThanFit(s *scene) {
	sub := s.subscribe(now("p.*"))
	s.say("p.1", 1)
	s.wants(sub, "p.11")
	s.say("p.2", 1)
	s.wants(sub, "p.21")
	s.say("p.3", 1)
	s.say("p.1", 2)
	came := map[string]int{}
	for range 2 { // a poll without a session has the gap only with another frame
		c, err := sub.Next()
		if err != nil && isAway(sub) {
			s.wantsProblem(err, wire.CodeTooManySubscriptions) // it has one frame at a time, and so cannot have the gap
			return
		}
		require.NoError(s, err)
		if c.Gap != nil {
			require.True(s, c.Gap.IsLeftOut(), "%v", c.Gap)
			came["gap"]++
			continue
		}
		word, _ := describe(c)
		came[word]++
	}
	require.Equal(s, map[string]int{"gap": 1, "p.12": 1}, came)
	s.say("p.3", 2)
	sub.Return(0)
	s.say("p.2", 2)
	s.wantsAfterGaps(sub, "p.22") // a new session says again that a topic is left out
	sub.Return(1)
	s.wantsAfterGaps(sub, "p.22")
}

// wantsAfterGaps receives frames until the wanted one. Those before it must be gaps, unfollowed.
func (s *scene) wantsAfterGaps(sub Subscriber, want string) {
	s.Helper()
	for {
		c, err := sub.Next()
		require.NoError(s, err)
		if c.Gap == nil || !c.Gap.IsLeftOut() {
			word, _ := describe(c)
			require.Equal(s, want, word)
			return
		}
	}
}

// A refused change changes nothing, and the subscriptions continue.
func changeRefused(s *scene) {
	sub := s.subscribe(now("a"), now("b"))
	for code, add := range map[wire.Code][]wire.Start{
		wire.CodeTooManySubscriptions: {now("c"), now("d")},
		wire.CodeInvalidRequest:       {now("c"), now("c")},
	} {
		_, err := sub.Change(add, nil)
		if errors.Is(err, errors.ErrUnsupported) {
			break
		}
		s.wantsProblem(err, code)
	}
	s.say("c", 1)
	s.say("b", 1)
	s.wants(sub, "b1")
}

// Adding a topic that is subscribed, or removing one that is not, changes nothing.
func changePresent(s *scene) {
	sub := s.subscribe(now("a"))
	s.say("a", 1)
	s.say("a", 2)
	at := s.wants(sub, "a1")
	told, ok := s.changes(sub, []wire.Start{oldest("a")}, "nothing")
	if ok {
		require.Len(s, told, 1)
		require.Equal(s, at.Topic, told[0].Topic)
	}
	s.wants(sub, "a2")
	if _, ok = s.changes(sub, []wire.Start{oldest("a")}, "a"); ok {
		s.wants(sub, "a1 a2") // removed and added: it begins again
	}
}

func tooManySubscriptions(s *scene) {
	_, err := s.Subscribe(Opening{Topics: []wire.Start{now("a"), now("b"), now("c"), now("d")}})
	s.wantsProblem(err, wire.CodeTooManySubscriptions)
}
