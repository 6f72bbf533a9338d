package transporttest

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func resume(s *scene) {
	sub := s.subscribe(now("a"))
	s.say("a", 1)
	s.say("a", 2)
	at := s.wants(sub, "a1")
	s.say("a", 3)
	sub = s.subscribe(wire.StartAfter(at))
	s.wants(sub, "a2 a3")
	s.say("a", 4)
	at = s.wants(sub, "a4")
	sub = s.subscribe(wire.StartAfter(at))
	s.say("a", 5)
	s.wants(sub, "a5")
}

// Only frames that did not arrive are sent again.
func connectionLost(s *scene) {
	sub := s.subscribe(now("a"), now("b"))
	for n := range 3 {
		s.say("a", n)
	}
	s.wants(sub, "a1 a2")
	sub.Return(1)
	s.wants(sub, "a2 a3")
	sub.Return(0)
	s.say("a", 4)
	s.wants(sub, "a4")
	sub.Return(1)
	s.say("b", 1)
	require.Equal(s, map[string]int{"a": 1, "b": 1}, s.wantsBoth(sub, 2))
}

// Wherever the connection is lost, every message arrives once and in order.
func connectionLostOften(s *scene) {
	sub := s.subscribe(now("a"))
	for n := 1; n <= 30; n++ {
		s.say("a", n)
		s.wants(sub, fmt.Sprintf("a%d", n))
		switch n % 3 {
		case 0:
			sub.Return(0)
		case 1:
			sub.Return(1)
			s.wants(sub, fmt.Sprintf("a%d", n))
		}
	}
}

// A gap is resent like any other frame.
func gapSentAgain(s *scene) {
	at := s.say("a", 1)
	for n := range 4 {
		s.say("a", n)
	}
	sub := s.subscribe(wire.StartAfter(at))
	s.wants(sub, "gap(evicted:a1-2)")
	sub.Return(1)
	s.wants(sub, "gap(evicted:a1-2) a3")
	sub.Return(0)
	s.wants(sub, "a4 a5")
}

// The bound on unacked frames delays a subscriber that acks only until it acks.
func fewUnacked(s *scene) {
	sub := s.subscribe(now("a"))
	for n := range 40 {
		s.say("a", n)
	}
	s.wants(sub, span(1, 20))
	sub.Return(1)
	s.wants(sub, span(20, 30))
	for n := range 10 {
		s.say("a", n)
	}
	s.wants(sub, span(31, 50))
}

func gapEvicted(s *scene) {
	at := s.say("a", 1)
	for i := range 5 {
		s.say("a", i)
	}
	sub := s.subscribe(wire.StartAfter(at))
	s.wants(sub, "gap(evicted:a1-3) a4 a5 a6")
	s.say("a", 7)
	s.wants(sub, "a7")
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
		s.wants(s.subscribe(wire.StartAfter(given)), want)
	}
}

// A deletion is announced to a waiting subscriber, and to one that reconnects.
func gapDeleted(s *scene) {
	sub := s.subscribe(now("a"))
	at := s.say("a", 1)
	s.wants(sub, "a1")
	got := s.waits(sub, 2)
	s.Delete("a")
	s.settle()
	require.Equal(s, "gap(deleted:a1-2)", <-got)
	s.say("a", 2)
	require.Equal(s, "a3", <-got)
	late := s.subscribe(wire.StartAfter(at))
	s.wants(late, "gap(deleted:a1-2) a3")
	require.Empty(s, strings.Join(drainWords(got), " "))
}

func drainWords(got <-chan string) (words []string) {
	for word := range got {
		words = append(words, word)
	}
	return words
}
