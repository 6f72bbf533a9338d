package session

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// forbidding is a configuration in which topics can be forbidden to ann, for an hour.
func forbidding() (c Config, forbid func(topics ...string)) {
	forbidden := new(atomic.Pointer[auth.Prohibitions])
	forbidden.Store(new(auth.Prohibitions))
	c = Config{Forbidden: func(subject string) auth.Prohibitions {
		if subject != "ann" {
			return nil
		}
		return *forbidden.Load()
	}}
	return c, func(topics ...string) {
		var all auth.Prohibitions
		for _, topic := range topics {
			all = append(all, auth.Prohibition{Topic: topic, Until: time.Now().Add(time.Hour).UnixMilli(), Reason: "spam"})
		}
		forbidden.Store(&all)
	}
}

var refusedTopic = problem.New(wire.CodeForbidden, "", "")

// wantDetails checks the details of the gaps that a session has to announce.
func (k *kit) wantDetails(s *Session, want ...string) {
	k.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, n := range s.notices {
		got = append(got, n.gap.Detail)
	}
	require.Equal(k, want, got)
}

// A forbidden topic ends with a gap, in a poll that waits too, for ann alone. What was sent and not
// acked is not sent again. Her other topics go on.
func TestAForbiddenTopicEndsItsSubscriptions(t *testing.T) {
	cfg, forbid := forbidding()
	story(t, broker.Config{}, cfg, func(k *kit) {
		s, idle, other := k.openAs(token(time.Minute), "a", "b"), k.openAs(token(time.Minute), "a"), k.open("a")
		stateless, _, err := k.registry.OpenEphemeral(Opening{Grant: token(time.Minute), Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		polls := k.park(stateless, 0)
		k.publishN("a", 1)
		polls.wantFrames("a1")
		require.Equal(k, "a1", k.poll(s, 0))
		waiting := k.park(s, 1)
		require.Equal(k, "a1", k.poll(idle, 0))

		forbid("a")
		require.Equal(k, 3, k.registry.Forbid("ann"))
		k.wantDetails(idle, "spam")
		<-waiting.done
		require.NoError(k, waiting.err)
		require.Equal(k, "gap(forbidden a1-1)", waiting.said)
		k.publishN("a", 1)
		k.publishN("b", 1)
		require.Equal(k, "gap(forbidden a1-1) b1", k.poll(s, 1))
		require.Equal(k, "gap(forbidden a0-1) gap(forbidden a1-1)", k.poll(idle, 0), "it is not sent again")
		require.Equal(k, "spam", idle.window.unacked[0].gap.Detail)
		require.Equal(k, "a1 a2", k.poll(other, 0))
		require.Zero(k, k.registry.Forbid("ann"), "there is nothing left to end")
		require.Zero(k, k.registry.Forbid("bob"))

		_, err = s.Change(k.starts("a"), nil, nil)
		require.ErrorIs(k, err, refusedTopic)
		_, _, err = k.registry.Open(k.Context(), Opening{Grant: token(time.Minute), Topics: k.starts("b", "a")}, time.Now())
		require.ErrorIs(k, err, refusedTopic)
		time.Sleep(time.Hour)
		_, err = s.Change(k.starts("a"), nil, nil)
		require.NoError(k, err, "the prohibition has ended")
	})
}

// A pattern leaves out what is forbidden: topics that it had, topics that are there when it begins,
// and later ones.
func TestAPatternLeavesOutWhatIsForbidden(t *testing.T) {
	cfg, forbid := forbidding()
	story(t, broker.Config{}, cfg, func(k *kit) {
		k.publishN("chat.1", 1)
		s := k.openAs(token(time.Minute), "chat.*@oldest")
		require.Equal(k, "chat.11", k.poll(s, 0))
		k.publishN("chat.42", 1)
		require.Equal(k, "chat.421", k.poll(s, 1))
		forbid("chat.42", "chat.new")
		require.Equal(k, 1, k.registry.Forbid("ann"))
		k.publishN("chat.42", 1)
		k.publishN("chat.new", 1)
		k.publishN("chat.1", 1)
		require.Equal(k, "gap(forbidden chat.421-1) chat.12", k.poll(s, 2))
		require.Equal(k, []string{"chat.*"}, patternsOf(s))
		require.Len(k, subscriptionsOf(s), 1)

		// Another session resumes with all positions that the client has. It keeps that of the topic, and
		// goes on from there when the topic is permitted again.
		resumed, positions, err := k.registry.Open(k.Context(), Opening{
			Grant: token(time.Minute), Topics: k.starts("chat.*@EPOCH:0", "chat.1@EPOCH:1", "chat.42@EPOCH:1"), Ack: true}, time.Now())
		require.NoError(k, err)
		require.Equal(k, wire.Position{Topic: "chat.42", Epoch: k.epoch, Offset: 1}, positions[2])
		require.Equal(k, "chat.12", k.poll(resumed, 0), "neither chat.42 nor chat.new")
		time.Sleep(time.Hour)
		resumed, _, err = k.registry.Open(k.Context(), Opening{
			Grant: token(time.Minute), Topics: k.starts("chat.*@EPOCH:0", "chat.1@EPOCH:2", "chat.42@EPOCH:1"), Ack: true}, time.Now())
		require.NoError(k, err)
		said := k.poll(resumed, 0)
		require.ElementsMatch(k, []string{"chat.422", "chat.new1"}, strings.Fields(said))
	})
}

// A pattern that is forbidden as a whole ends, with one gap for all of its topics.
func TestAForbiddenPatternEnds(t *testing.T) {
	cfg, forbid := forbidding()
	story(t, broker.Config{}, cfg, func(k *kit) {
		s := k.openAs(token(time.Minute), "chat.*", "log")
		k.publishN("chat.1", 1)
		require.Equal(k, "chat.11", k.poll(s, 0))
		forbid("chat.>")
		require.Equal(k, 1, k.registry.Forbid("ann"))
		k.wantDetails(s, "spam")
		k.publishN("chat.1", 1)
		k.publishN("log", 1)
		require.Equal(k, "gap(forbidden chat.*0-0) log1", k.poll(s, 1))
		require.Empty(k, patternsOf(s))
		_, err := s.Change(k.starts("chat.*"), nil, nil)
		require.ErrorIs(k, err, refusedTopic)
	})
}

// A topic is forbidden while a session that names it opens: after the check, before the session can
// be found.
func TestATopicIsForbiddenWhileASessionOpens(t *testing.T) {
	cfg, forbid := forbidding()
	var asked atomic.Int32
	heeded := cfg.Forbidden
	cfg.Forbidden = func(subject string) auth.Prohibitions {
		if subject == "ann" && asked.Add(1) == 2 {
			forbid("a")
		}
		return heeded(subject)
	}
	story(t, broker.Config{}, cfg, func(k *kit) {
		s := k.openAs(token(time.Minute), "a")
		require.Empty(k, subscriptionsOf(s))
		k.publish("a")
		synctest.Wait()
		require.Equal(k, "gap(forbidden a0-0)", k.poll(s, 0))
	})
}

// Prohibitions whose gaps nobody fetches end the session, not the memory.
func TestForbiddenTopicsAreBounded(t *testing.T) {
	cfg, forbid := forbidding()
	cfg.Subscriptions = 2
	story(t, broker.Config{}, cfg, func(k *kit) {
		s := k.openAs(token(time.Hour))
		var err error
		for i := 0; i < 10 && err == nil; i++ {
			forbid()
			if _, err = s.Change(k.starts("a"), nil, nil); err == nil {
				forbid("a")
				k.registry.Forbid("ann")
				require.LessOrEqual(k, len(s.notices), 3)
			}
		}
		require.ErrorIs(k, err, problem.New(wire.CodeSessionEnded, "", ""))
	})
}

// An application ends the sessions of one subject, parked or not, and no others.
func TestAnApplicationEndsTheSessionsOfASubject(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, idle, other := k.openAs(token(time.Minute), "a"), k.openAs(token(time.Minute), "a"), k.open("a")
		stateless, _, err := k.registry.OpenEphemeral(Opening{Grant: token(time.Minute), Topics: k.starts("a")}, time.Now())
		require.NoError(k, err)
		waiting, polls, others := k.park(s, 0), k.park(stateless, 0), k.park(other, 0)
		require.Equal(k, 3, k.registry.EndSubject("ann", "bye"))
		waiting.wantProblem(wire.CodeSessionEnded)
		polls.wantProblem(wire.CodeSessionEnded)
		_, err = k.tryPoll(idle, 0, everything)
		ended, ok := errors.AsType[*wire.Problem](err)
		require.True(k, ok)
		require.Equal(k, wire.CodeSessionEnded, ended.Code)
		require.Equal(k, "bye", ended.Detail)
		require.Len(k, ended.Positions, 1)
		k.publish("a")
		others.wantFrames("a1")
		require.Zero(k, k.registry.EndSubject("ann", ""))
	})
}
