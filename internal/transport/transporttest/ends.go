package transporttest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Nothing comes for longer than any timeout on the way, and then something does. What
// says meanwhile that the connection lives is no frame that anybody counts.
func waitingForLong(s *scene) {
	sub := s.subscribe(now("a"))
	published := make(chan struct{})
	go func() {
		defer close(published)
		for range 5 * 60 {
			time.Sleep(time.Second)
			s.Sweep()
		}
		s.Publish(item("a"))
	}()
	s.wants(sub, "a1")
	<-published
	sub.Return(0)
	s.say("a", 2)
	s.wants(sub, "a2")
}

// A session that nobody asks for ends, and says so to who comes late.
func awayForTooLong(s *scene) {
	sub := s.subscribe(now("a"))
	s.say("a", 1)
	at := s.wants(sub, "a1")
	if seat, ok := sub.(Seated); !ok || !seat.Leaves() {
		return
	}
	for range 2 * 60 {
		time.Sleep(time.Second)
		s.Sweep()
	}
	s.say("a", 2)
	p := s.wantsEnd(sub, wire.CodeSessionEnded)
	require.Contains(s, p.Detail, "inactivity")
	s.wants(s.subscribe(wire.StartAfter(at)), "a2")
}

func gapExpired(s *scene) {
	at := s.say("a", 1)
	s.say("a", 2)
	time.Sleep(time.Minute)
	s.say("a", 3)
	s.wants(s.subscribe(wire.StartAfter(at)), "gap(expired:a1-2) a3")
}

func gapTTL(s *scene) {
	at := s.say("a", 1)
	short := item("a")
	short.TTL = new(uint64(1))
	s.publish(short)
	s.say("a", 3)
	time.Sleep(time.Second)
	s.wants(s.subscribe(wire.StartAfter(at)), "gap(expired:a1-2) a3")
}

func item(topic string) wire.PublishItem {
	return wire.PublishItem{Topic: topic, Data: []byte("1")}
}

// Who waits is told that the session was closed.
func endedByClient(s *scene) {
	sub := s.subscribe(now("a"))
	seat, ok := sub.(Seated)
	if !ok {
		return // nobody else can name the session
	}
	s.say("a", 1)
	s.wants(sub, "a1")
	ended := make(chan error, 1)
	go func() {
		_, err := sub.Next()
		ended <- err
	}()
	s.settle()
	if err := seat.End(); errors.Is(err, errors.ErrUnsupported) {
		s.say("a", 2)
		require.NoError(s, <-ended)
		return
	}
	s.wantsProblem(<-ended, wire.CodeSessionEnded)
}

// A session has one poll: who is replaced is told, and loses nothing to the other.
func takenOver(s *scene) {
	sub := s.subscribe(now("a"))
	seat, ok := sub.(Seated)
	if !ok {
		return
	}
	s.say("a", 1)
	s.wants(sub, "a1")
	ended := make(chan error, 1)
	go func() {
		_, err := sub.Next()
		ended <- err
	}()
	s.settle()
	rival, err := seat.Rival()
	if errors.Is(err, errors.ErrUnsupported) {
		s.say("a", 2)
		require.NoError(s, <-ended)
		return
	}
	require.NoError(s, err)
	s.Cleanup(rival.Close)
	got := s.waits(rival, 1)
	s.wantsProblem(<-ended, wire.CodePollReplaced)
	s.say("a", 2)
	require.Equal(s, "a2", <-got)
}

// Who waits when the daemon drains is told so, and from where to go on elsewhere.
func drain(s *scene) {
	sub := s.subscribe(now("d"))
	s.say("d", 1)
	at := s.wants(sub, "d1")
	ended := make(chan error, 1)
	go func() {
		_, err := sub.Next()
		ended <- err
	}()
	s.settle()
	s.Drain()
	p := s.wantsProblem(<-ended, wire.CodeDraining)
	if s.real && isAway(sub) && len(p.Positions) == 0 {
		s.again = true // its poll came only now, and nobody is taken in any more
		return
	}
	s.wantsReopening(p, "d", at)
}

// wantsReopening looks for the position from which the end of a session says to go on
// with a topic: it must not pass over anything. It returns what the client has, of
// that epoch.
func (s *scene) wantsReopening(p wire.Problem, topic string, had wire.Position) wire.Position {
	s.Helper()
	for _, position := range p.Positions {
		if position.Topic == topic {
			require.LessOrEqual(s, position.Offset, had.Offset)
			return wire.Position{Topic: topic, Epoch: position.Epoch, Offset: had.Offset}
		}
	}
	require.Fail(s, "the end does not say where to go on", "%+v", p)
	return had
}

// Nobody is taken in by a daemon that drains.
func drained(s *scene) {
	s.Drain()
	_, err := s.Subscribe(Opening{Topics: []wire.Start{now("a")}})
	s.wantsProblem(err, wire.CodeDraining)
}
