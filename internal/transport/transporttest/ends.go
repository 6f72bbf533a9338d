package transporttest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// No message arrives for longer than any time-out on the way. Heartbeats keep the
// connection open and do not count as frames. The next message arrives.
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

// A session that nobody polls ends. A client that polls later gets the reason.
func awayForTooLong(s *scene) {
	sub := s.subscribe(now("a"))
	s.say("a", 1)
	at := s.wants(sub, "a1")
	if holder, ok := sub.(SessionHolder); !ok || !holder.Leaves() {
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

// A waiting subscriber learns that its session was closed.
func endedByClient(s *scene) {
	sub := s.subscribe(now("a"))
	holder, ok := sub.(SessionHolder)
	if !ok {
		return // no other connection can name the session
	}
	s.say("a", 1)
	s.wants(sub, "a1")
	ended := make(chan error, 1)
	go func() {
		_, err := sub.Next()
		ended <- err
	}()
	s.settle()
	if err := holder.End(); errors.Is(err, errors.ErrUnsupported) {
		s.say("a", 2)
		require.NoError(s, <-ended)
		return
	}
	s.wantsProblem(<-ended, wire.CodeSessionEnded)
}

// A session has one poll. A replaced poll gets the reason, and takes no message from the
// new one.
func takenOver(s *scene) {
	sub := s.subscribe(now("a"))
	holder, ok := sub.(SessionHolder)
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
	rival, err := holder.Rival()
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

// When the daemon drains, a waiting subscriber gets the reason, and the positions from
// which it can resume.
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
		s.again = true // its poll arrived after the drain began, and was refused
		return
	}
	s.wantsReopening(p, "d", at)
}

// wantsReopening expects that the end of a session has a position of a topic that skips no
// message. It returns the position that the client has, in that epoch.
func (s *scene) wantsReopening(p wire.Problem, topic string, had wire.Position) wire.Position {
	s.Helper()
	for _, position := range p.Positions {
		if position.Topic == topic {
			require.LessOrEqual(s, position.Offset, had.Offset)
			return wire.Position{Topic: topic, Epoch: position.Epoch, Offset: had.Offset}
		}
	}
	require.Fail(s, "the end has no position of the topic", "%+v", p)
	return had
}

// A draining daemon accepts no subscriber.
func drained(s *scene) {
	s.Drain()
	_, err := s.Subscribe(Opening{Topics: []wire.Start{now("a")}})
	s.wantsProblem(err, wire.CodeDraining)
}
