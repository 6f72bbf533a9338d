package transporttest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A client is a member while it waits. It leaves when its connection has been away for the grace,
// although its session may live on, and comes back with it.
func presence(s *scene) {
	sub := s.open(Opening{Topics: []wire.Start{now("a")}, Client: "c1"})
	for round := range 2 {
		got := s.waits(sub, 1)
		s.wantsMembers(60*time.Second, "/c1") // several polls
		s.say("a", round+1)
		require.Equal(s, span(round+1, round+1), <-got)
		sub.Leave()
		s.wantsMembers(4*time.Second, "/c1")
		s.pass(2 * time.Second)
		s.wantsMembers(20 * time.Second)
		sub.Return(0)
	}
	got := s.waits(sub, 1)
	s.wantsMembers(time.Second, "/c1")
	s.say("a", 3)
	require.Equal(s, "a3", <-got)
	sub.Close()
	s.pass(6 * time.Second)
	require.Empty(s, s.Members("a"))
}

// wantsMembers checks the members of the topic a now, and each second for some time.
func (s *scene) wantsMembers(during time.Duration, want ...string) {
	s.Helper()
	for end := time.Now().Add(during); ; s.pass(time.Second) {
		require.Equal(s, want, s.Members("a"))
		if !time.Now().Before(end) {
			return
		}
	}
}

// pass lets fake time pass.
func (s *scene) pass(d time.Duration) {
	for range d / time.Second {
		time.Sleep(time.Second)
		s.Sweep()
		s.settle()
	}
}
