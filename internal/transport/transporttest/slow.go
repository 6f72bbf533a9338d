package transporttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A flood has more bytes than the buffers on the way hold. Its messages are of topic a, and
// flooded is the offset of the last.
const (
	flooded = 200
	large   = 4000 // bytes of each message
	kept    = 3
	keys    = 5
)

func slowBounds(policy broker.Slow) Bounds {
	return Bounds{Queue: 4, Rules: []broker.Rule{{Pattern: "a", Slow: policy, Keep: kept, HistoryBytes: 4 << 20}}}
}

// flood publishes many messages, with a few keys, while a subscriber that has received one
// message does not ask for more.
func (s *scene) flood() Subscriber {
	s.Helper()
	sub := s.subscribe(now("a"))
	s.say("a", 1)
	s.wants(sub, "a1")
	data := json.RawMessage(`"` + strings.Repeat("x", large) + `"`)
	for n := 2; n <= flooded; n++ {
		s.publish(wire.PublishItem{Topic: "a", Data: data, Key: fmt.Sprint(n % keys)})
	}
	return sub
}

// wantsFlood receives to the end of the flood, with a gap that leaves the newest messages.
// The number of messages before it depends on the transport. Real sockets drain during the
// flood, so there may be more such gaps.
func (s *scene) wantsFlood(sub Subscriber, reason wire.GapReason, newest uint64) {
	s.Helper()
	var gaps []*wire.Gap
	for at := uint64(1); at < flooded; {
		c, err := sub.Next()
		require.NoError(s, err, "after %d", at)
		if c.Gap == nil {
			require.Equal(s, at+1, c.Message.Position.Offset)
			at++
			continue
		}
		require.Equal(s, at, c.Gap.After.Offset, "a gap begins where the subscriber is")
		require.Equal(s, reason, c.Gap.Reason)
		gaps = append(gaps, c.Gap)
		at = c.Gap.Position.Offset
	}
	require.NotEmpty(s, gaps, "it was never slow")
	last := gaps[len(gaps)-1].Position.Offset
	if s.real {
		require.LessOrEqual(s, last, flooded-newest)
	} else {
		require.Len(s, gaps, 1)
		require.Equal(s, flooded-newest, last)
	}
	s.say("a", 1)
	s.wants(sub, fmt.Sprintf("a%d", flooded+1))
}

// A slow subscriber gets the buffered messages, one gap, and the rest.
func slowResumes(s *scene) {
	sub := s.flood()
	reason := wire.GapSlow
	if isAway(sub) {
		reason = wire.GapEvicted
	}
	s.wantsFlood(sub, reason, 10)
}

// wantsAllOf expects every message: a subscriber that is away is not slow.
func (s *scene) wantsAllOf(sub Subscriber) { s.Helper(); s.wants(sub, span(2, flooded)) }

func slowDropsOldest(s *scene) {
	sub := s.flood()
	if isAway(sub) {
		s.wantsAllOf(sub)
		return
	}
	s.wantsFlood(sub, wire.GapSlow, kept)
}

func slowConflates(s *scene) {
	sub := s.flood()
	if isAway(sub) {
		s.wantsAllOf(sub)
		return
	}
	s.wantsFlood(sub, wire.GapConflated, keys)
}

// A disconnected subscriber has all frames that were sent to it, and resumes elsewhere
// without loss.
func slowIsDisconnected(s *scene) {
	sub := s.flood()
	if isAway(sub) {
		s.wantsAllOf(sub)
		return
	}
	at := wire.Position{Offset: 1}
	for {
		c, err := sub.Next()
		if err != nil {
			p := s.wantsProblem(err, wire.CodeSessionEnded)
			require.Contains(s, p.Detail, `"a"`)
			at = s.wantsReopening(p, "a", at)
			break
		}
		require.NotNil(s, c.Message)
		require.Equal(s, at.Offset+1, c.Message.Position.Offset)
		at = c.Message.Position
	}
	require.Less(s, at.Offset, uint64(flooded))
	s.wants(s.subscribe(wire.StartAfter(at)), span(int(at.Offset)+1, flooded))
}

// The first message arrives at once, then the newest of each key in each interval.
func maxRate(s *scene) {
	const every = 200 * time.Millisecond
	sub, err := s.Subscribe(Opening{Topics: []wire.Start{{Topic: "a", Every: every}}})
	if err != nil {
		s.wantsProblem(err, wire.CodeInvalidRequest) // the client itself limits the rate of polls
		return
	}
	s.Cleanup(sub.Close)
	begun := time.Now()
	s.say("a", 1)
	s.wants(sub, "a1")
	require.Zero(s, time.Since(begun))
	for n := 2; n <= 4; n++ {
		s.say("a", n)
	}
	s.wants(sub, "gap(conflated:a1-3) a4")
	require.Equal(s, every, time.Since(begun))
	if _, err := sub.Change([]wire.Start{now("b")}, nil); !errors.Is(err, errors.ErrUnsupported) {
		require.NoError(s, err)
		s.say("b", 1)
		s.say("b", 2)
		s.wants(sub, "b1 b2")
	}
}

// Own messages move the position of a subscriber, which learns of it even if it gets no frame. So
// their eviction is no gap.
func ownMessagesMove(s *scene) {
	say := func(client string) {
		s.publish(wire.PublishItem{Topic: "a", Data: json.RawMessage("1"), Client: &client})
	}
	sub := s.open(Opening{Topics: []wire.Start{now("a"), now("b")}, Client: "me"})
	say("you")
	s.wants(sub, "a1")
	got := s.waits(sub, 1)
	for range 5 { // more than the history holds
		say("me")
	}
	s.pass(30 * time.Second) // longer than a poll
	s.say("b", 1)
	require.Equal(s, "b1", <-got)
	sub.Return(0)
	say("you")
	s.wants(sub, "a7")
}

// A subscriber gets none of its own messages: not live, not from history, not after a lost
// connection.
func ownMessages(s *scene) {
	say := func(client string) {
		s.publish(wire.PublishItem{Topic: "a", Data: json.RawMessage("1"), Client: &client})
	}
	say("me")
	say("you")
	sub := s.open(Opening{Topics: []wire.Start{oldest("a")}, Client: "me"})
	s.wants(sub, "a2")
	got := s.waits(sub, 1)
	say("me")
	say("you")
	require.Equal(s, "a4", <-got)
	sub.Return(1)
	say("me")
	s.wants(sub, "a4")
	s.say("a", 1)
	s.wants(sub, "a6")
}
