package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// room returns a budget for n topics whose names are as long as this one.
func room(n int, topic string) int { return n * broker.BytesOf(topic) }

// sweepOften sweeps the registry while time passes.
func (k *kit) sweepOften(d time.Duration) {
	for range d / time.Second {
		time.Sleep(time.Second)
		k.registry.Sweep(time.Now())
	}
	synctest.Wait()
}

// gaps returns the topics that have a gap, unfollowed, in what a poll returned.
func gaps(said string) (topics []string) {
	for word := range strings.SplitSeq(said, " gap(") {
		if topic, of := strings.CutPrefix(strings.TrimPrefix(word, "gap("), "unfollowed "); of {
			topics = append(topics, strings.TrimRight(topic, "-0123456789)"))
		}
	}
	return topics
}

// An application grows: on some day its pattern matches more topics than fit.
func TestASessionLeavesOutTopicsThatDoNotFit(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Minute}, Config{PatternBytes: room(1000, "chat.0000-x"), InactivityTimeout: time.Hour}, func(k *kit) {
		topic := func(i int) string { return fmt.Sprintf("chat.%04d-x", i) }
		for i := range 980 {
			k.publish(topic(i))
		}
		s, positions := k.openAll("chat.*")
		require.Len(k, positions, 981)
		acked := uint64(0)
		read := func() string {
			said := k.poll(s, acked)
			acked = s.window.sent
			return said
		}
		for i := range 60 {
			k.publishN(topic(980+i), 1)
		}
		said := read() + " " + read()
		require.Nil(k, s.ended)
		require.Equal(k, 20, strings.Count(said, "x1"), "as many as fit")
		left := gaps(said)
		require.Len(k, left, 40)
		require.Equal(k, 40, s.Unfollowed())
		k.publishN("chat.1000-x", 1)
		require.Empty(k, read(), "after the gap nothing comes")

		k.forgetAllBut(s, topic(1000))
		k.sweepOften(3 * time.Second)
		require.Equal(k, 0, s.Unfollowed())
		said = read()
		require.Contains(k, said, "gap(unfollowed chat.1000-x", "there is room again, of the others nothing is left")
		k.publishN("chat.1000-x", 2)
		require.Equal(k, 2, strings.Count(read(), "chat.1000-x"), "all that follows comes")
	})
}

// forgetAllBut has all topics of a session forgotten, and keeps one that has none.
func (k *kit) forgetAllBut(s *Session, keep string) {
	k.Helper()
	for range 4 {
		time.Sleep(30 * time.Second)
		k.publishN(keep, 1)
		k.broker.Sweep(time.Now())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Less(k, s.subs.len(), 990)
}

// Between the two gaps of a topic and its messages nothing is missing.
func TestATopicThatFitsAgainBeginsWhereItsGapEnds(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: room(2, "a.1"), InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("a.*", "b")
		k.publishN("a.1", 1)
		k.publishN("a.2", 1)
		k.publishN("a.3", 2)
		k.publishN("b", 1)
		require.Equal(k, "gap(unfollowed a.30-0) a.11 a.21 b1", k.poll(s, 0))
		state, _ := s.State(time.Now())
		require.Equal(k, 1, state.Unfollowed)

		k.registry.Reload(Config{PatternBytes: room(3, "a.1"), InactivityTimeout: time.Hour})
		k.sweepOften(3 * time.Second)
		require.Contains(k, texts(s.ackedPositions()), "a.3:0", "the client does not have the gap yet")
		k.publishN("a.3", 1)
		require.Equal(k, "gap(unfollowed a.30-2) a.33", k.poll(s, 4))
		require.Equal(k, "", k.poll(s, 6))
		require.Contains(k, texts(s.ackedPositions()), "a.3:3")
		require.Zero(k, s.Unfollowed())

		k.publishN("a.4", 1)
		require.Equal(k, "gap(unfollowed a.40-0)", k.poll(s, 6))
		_, err := s.Change(k.starts("a.4"), []string{"a.*", "b"}, nil)
		require.NoError(k, err)
		k.publishN("a.4", 1)
		require.Equal(k, "a.42", k.poll(s, 7), "by name it is no matter of the pattern")
		require.Zero(k, s.Unfollowed())
	})
}

// A parked poll learns of both.
func TestAWaitingPollGetsGapsOfTopicsThatDoNotFit(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: 1}, func(k *kit) {
		s, _ := k.openAll("a.*")
		waiting := k.park(s, 0)
		k.publishN("a.1", 1)
		waiting.wantFrames("gap(unfollowed a.10-0)")
		waiting = k.park(s, 1)
		k.registry.Reload(Config{})
		k.sweepOften(3 * time.Second)
		waiting.wantFrames("gap(unfollowed a.10-1)")
	})
}

// Nobody polls, and topics come and come: the gaps that wait are bounded, and so is their memory.
func TestGapsOfTopicsThatDoNotFitAreBounded(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: 1, InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("a.*", "a.>", "*.x.y")
		queues := func() int64 {
			var g metrics.Gauges
			k.broker.Gauges(&g)
			return g.Memory["queues"]
		}
		used := queues()
		for i := range 500 {
			k.publishN(fmt.Sprintf("a.%03d", i), 1)
		}
		require.LessOrEqual(k, len(s.notices), maxUnfollowedGaps+3)
		require.Equal(k, 500, s.Unfollowed(), "each counts once, whatever patterns match it")
		require.GreaterOrEqual(k, queues()-used, int64(len(s.notices)*noticeBytes))
		said := k.poll(s, 0)
		require.Equal(k, maxUnfollowedGaps+1, strings.Count(said, "unfollowed"))
		require.True(k, strings.HasSuffix(said, "gap(unfollowed a.*0-0)"), "one of the pattern stands for the rest: %s", said)
		require.Equal(k, "", k.poll(s, s.window.sent))
		require.Empty(k, s.notices)
		k.publishN("a.later", 1)
		require.Equal(k, "gap(unfollowed a.later0-0)", k.poll(s, s.window.sent))
	})
}

// Topics that fit again do not make many gaps at once either.
func TestTopicsThatFitAgainComeAFewAtATime(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: 1, InactivityTimeout: time.Hour}, func(k *kit) {
		for i := range 200 {
			k.publish(fmt.Sprintf("a.%03d", i))
		}
		s, positions := k.openAll("a.*")
		require.Equal(k, []string{"a.*:0"}, positions)
		require.Equal(k, 200, s.Unfollowed())
		require.Equal(k, "gap(unfollowed a.*0-0)", k.poll(s, 0))
		k.registry.Reload(Config{InactivityTimeout: time.Hour})
		for left := 200; left > 0; {
			k.sweepOften(10 * time.Second)
			require.LessOrEqual(k, len(s.notices), maxUnfollowedGaps)
			came := strings.Count(k.poll(s, s.window.sent), "unfollowed")
			require.Equal(k, min(left, maxUnfollowedGaps), came)
			left -= came
			require.Equal(k, left, s.Unfollowed())
		}
		require.Len(k, subscriptionsOf(s), 200)
	})
}

// A request succeeds, however many topics its pattern matches.
func TestARequestFollowsAsManyTopicsAsFit(t *testing.T) {
	cfg := Config{PatternBytes: room(3, "a.00000"), Subscriptions: 2, InactivityTimeout: time.Hour}
	story(t, broker.Config{}, cfg, func(k *kit) {
		for i := range 2000 {
			k.publish(fmt.Sprintf("a.%05d", i))
		}
		s, positions := k.openAll("a.*@oldest", "named")
		require.Len(k, positions, 2+3)
		require.Positive(k, s.Unfollowed())
		said := k.poll(s, 0)
		require.Equal(k, "gap(unfollowed a.*0-0)", said[:len("gap(unfollowed a.*0-0)")])
		require.Equal(k, 3, strings.Count(said, " a.0"))
		_, err := s.Change(k.starts("another"), nil, nil)
		require.ErrorIs(k, err, problem.New(wire.CodeTooManySubscriptions, "", ""), "what the client names has a limit of its own")
		_, err = s.Change(k.starts("b.*"), []string{"named"}, nil)
		require.NoError(k, err)
	})
}

// Many patterns match so many topics that the search ends early. That refuses no request either.
func TestARequestWithManyBroadPatternsSucceeds(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: room(3, "p00.000"), Subscriptions: 50}, func(k *kit) {
		var patterns []string
		for i := range 40 {
			patterns = append(patterns, fmt.Sprintf("p%02d.*", i))
			for j := range 100 {
				k.publish(fmt.Sprintf("p%02d.%03d", i, j))
			}
		}
		search := k.registry.newSearch()
		for _, pattern := range patterns {
			k.broker.Matching(pattern, search)
		}
		require.True(k, search.IsSpent(), "what is this story about?")
		s, positions := k.openAll(patterns...)
		require.Len(k, positions, len(patterns)+3)
		require.Equal(k, len(patterns), strings.Count(k.poll(s, 0), "unfollowed p"), "each of them says so")
	})
}

// A client resumes with the positions of more topics than fit: it keeps those that are left out.
func TestNamedTopicsOfAResumedPatternFitFirst(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: room(2, "a.1"), Subscriptions: 1}, func(k *kit) {
		for _, topic := range []string{"a.1", "a.2", "a.3", "a.4"} {
			k.publishN(topic, 2)
		}
		s, positions := k.openAll("a.*@EPOCH:0", "a.4@EPOCH:1", "a.3@EPOCH:1", "a.2@EPOCH:1")
		require.Equal(k, []string{"a.*:0", "a.4:1", "a.3:1", "a.2:1"}, positions)
		require.Equal(k, 2, s.Unfollowed())
		require.Equal(k, "gap(unfollowed a.*0-0) a.42 a.32", k.poll(s, 0))
		require.Equal(k, []string{"a.*:0", "a.3:1", "a.4:1"}, texts(s.ackedPositions()), "what is left out does not go on")
	})
}

// A named topic that is removed stays for the pattern only if it fits.
func TestARemovedNameStaysForItsPatternIfItFits(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: room(1, "a.1")}, func(k *kit) {
		s, _ := k.openAll("a.1", "a.2")
		_, err := s.Change(k.starts("a.*"), nil, nil)
		require.NoError(k, err)
		require.Zero(k, s.matched.bytes, "they are named")
		_, err = s.Change(nil, []string{"a.1", "a.2", "a.1"}, nil)
		require.NoError(k, err)
		require.Equal(k, room(1, "a.1"), s.matched.bytes)
		require.Equal(k, 1, s.Unfollowed())
		k.publishN("a.1", 1)
		k.publishN("a.2", 1)
		require.Equal(k, "gap(unfollowed a.*0-0) gap(unfollowed a.20-0) a.11", k.poll(s, 0), "the second has its first message")
		_, err = s.Change(nil, []string{"a.*"}, nil)
		require.NoError(k, err)
		require.Zero(k, s.matched.bytes)
		require.Zero(k, s.Unfollowed())
	})
}

// A stateless poll finds the same topics left out each time. It must wait all the same.
func TestAStatelessPollWaitsThoughTopicsAreLeftOut(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: room(1, "a.1")}, func(k *kit) {
		k.publishN("a.1", 1)
		k.publishN("a.2", 1)
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a.*@EPOCH:0", "a.1@EPOCH:1"), Brief: true}, time.Now())
		require.NoError(k, err)
		require.Equal(k, 1, s.Unfollowed())
		waiting := k.park(s, 0)
		k.publishN("a.1", 1)
		waiting.wantFrames("gap(unfollowed a.*0-0) a.12")
		k.registry.End(s)

		s, _, err = k.registry.OpenEphemeral(Opening{Topics: k.starts("a.*@EPOCH:0", "a.1@EPOCH:2"), Brief: true}, time.Now())
		require.NoError(k, err)
		p, err := s.Poll(0, true, time.Now())
		require.NoError(k, err)
		lane := &line{k: k}
		_, state, err := p.TakeOrPark(lane, everything, time.Minute, time.Now())
		require.NoError(k, err)
		require.Equal(k, Parked, state)
		k.registry.End(s)
	})
}

// A topic is left out while a stateless poll waits, and then there is room for it. Its messages come
// after what the gaps announce, or not at all.
func TestAStatelessPollGetsGapsBeforeMessages(t *testing.T) {
	stateless := func(k *kit, topics ...string) *Session {
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts(topics...), Brief: true}, time.Now())
		require.NoError(k, err)
		return s
	}
	t.Run("more fits", func(t *testing.T) {
		story(t, broker.Config{}, Config{PatternBytes: room(1, "a.1")}, func(k *kit) {
			k.publishN("a.1", 1)
			s := stateless(k, "a.*@EPOCH:0", "a.1@EPOCH:1")
			waiting := k.park(s, 0)
			k.publishN("a.2", 3)
			k.registry.Reload(Config{})
			k.sweepOften(3 * time.Second)
			k.publishN("a.2", 1)
			k.publishN("a.1", 1)
			waiting.wantFrames("gap(unfollowed a.20-0) a.12")
			k.registry.End(s)
			s = stateless(k, "a.*@EPOCH:0", "a.1@EPOCH:2")
			require.Equal(k, "a.21 a.22 a.23 a.24", k.poll(s, 0), "the next poll follows it")
			k.registry.End(s)
		})
	})
	t.Run("made again", func(t *testing.T) {
		story(t, broker.Config{HistoryAge: time.Second}, Config{PatternBytes: room(1, "a.1")}, func(k *kit) {
			k.publishN("a.1", 1)
			s := stateless(k, "a.*@EPOCH:0", "a.1@EPOCH:1")
			waiting := k.park(s, 0)
			k.publishN("a.2", 3)
			time.Sleep(2 * time.Second)
			k.broker.Sweep(time.Now())
			require.Zero(k, s.subs.len(), "both are forgotten")
			k.publishN("a.2", 1)
			waiting.wantFrames("")
			k.registry.End(s)
			k.publishN("a.2", 1)
			s = stateless(k, "a.*@EPOCH:0", "a.1@EPOCH:1")
			require.Equal(k, "gap(evicted a.*0-3) gap(expired a.23-4) a.25", k.poll(s, 0))
			k.registry.End(s)
		})
	})
}

// Gaps that no poll has taken go with their pattern.
func TestGapsOfARemovedPatternAreDropped(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: 1}, func(k *kit) {
		k.publishN("a.1", 1)
		s, _ := k.openAll("a.*", "b.*")
		k.publishN("a.2", 1)
		k.publishN("b.2", 1)
		_, err := s.Change(nil, []string{"a.*"}, nil)
		require.NoError(k, err)
		require.Equal(k, "gap(unfollowed b.20-0)", k.poll(s, 0))
	})
}

// When a topic fits again that was forgotten before its gap was sent, nothing is left behind.
func TestATopicThatIsForgottenBeforeItsGapIsSent(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Minute}, Config{PatternBytes: 1, InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("a.*")
		k.publishN("a.1", 1)
		require.Equal(k, "gap(unfollowed a.10-0)", k.poll(s, 0))
		k.registry.Reload(Config{InactivityTimeout: time.Hour})
		k.sweepOften(3 * time.Second)
		time.Sleep(2 * time.Minute)
		k.broker.Sweep(time.Now())
		require.Zero(k, s.subs.len())
		require.Zero(k, s.matched.bytes)
		k.publishN("a.1", 1)
		require.Equal(k, "a.12", k.poll(s, 1))
	})
}

// Sessions that search share the time that one call of Sweep may take.
func TestSweepsSearchLittle(t *testing.T) {
	cfg := Config{PatternBytes: room(40, "a.0000.x"), Subscriptions: 1, InactivityTimeout: time.Hour}
	story(t, broker.Config{}, cfg, func(k *kit) {
		for i := range 1000 {
			k.publish(fmt.Sprintf("a.%04d.x", i))
		}
		var all []*Session
		for range 60 {
			s, _ := k.openAll("a.*.x")
			all = append(all, s)
			k.poll(s, 0)
		}
		cfg.PatternBytes = room(80, "a.0000.x")
		k.registry.Reload(cfg)
		time.Sleep(searchEvery + time.Second)
		followed := func() (n int) {
			for _, s := range all {
				if s.subs.len() == 80 {
					n++
				}
			}
			return n
		}
		k.registry.Sweep(time.Now())
		require.Positive(k, followed())
		require.Less(k, followed(), len(all)/2, "the others wait")
		k.sweepOften(time.Minute)
		require.Equal(k, len(all), followed(), "each has its turn")
		var g metrics.Gauges
		k.registry.Gauges(&g)
		require.Positive(k, g.Unfollowed)
	})
}

// The patterns of some sessions take all of a search each time, and match nothing. Another session
// has its turn all the same.
func TestSearchesWithoutEndLeaveTurnsToOthers(t *testing.T) {
	cfg := Config{PatternBytes: 1, Subscriptions: 1, InactivityTimeout: 24 * time.Hour}
	story(t, broker.Config{}, cfg, func(k *kit) {
		cfg.PatternBytes = room(1, "v.1")
		for i := range 2000 {
			k.publish(fmt.Sprintf("a.%04d.x", i))
		}
		var all []*Session
		for range 100 {
			s, _ := k.openAll("b.*")
			_, err := s.Change(nil, []string{"b.*"}, nil)
			require.NoError(k, err)
			s.patterns = map[string]*pattern{"a.*.y": {session: s, name: "a.*.y"}} // a request with it is refused
			all = append(all, s)
		}
		slow, _ := k.openAll("v.*")
		k.publishN("v.1", 1)
		k.registry.Reload(cfg)
		for range 300 {
			for _, s := range all {
				s.mu.Lock()
				s.matched.leaveOut("t") // as after each search that does not end
				s.searchLaterLocked()
				s.mu.Unlock()
			}
			time.Sleep(time.Second)
			k.registry.Sweep(time.Now())
		}
		require.Equal(k, 1, slow.subs.len())
	})
}

// A session whose topics do not fit, without a poll: its visits come in time.
func TestASessionWithoutAPollFollowsAgain(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Second}, Config{PatternBytes: room(1, "a.1"), InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("a.*")
		k.publishN("a.1", 1)
		require.Equal(k, "a.11", k.poll(s, 0))
		require.Empty(k, k.poll(s, 1))
		k.publish("a.2")
		synctest.Wait()
		k.registry.Sweep(time.Now()) // without room, the next visit is in 16 s
		time.Sleep(1500 * time.Millisecond)
		k.publish("a.2")
		k.broker.Sweep(time.Now())
		require.Zero(k, s.subs.len(), "a.1 is forgotten")
		k.sweepOften(time.Second)
		require.Equal(k, "gap(unfollowed a.20-0) gap(unfollowed a.20-2)", k.poll(s, 1))
	})
}

// The budget is the sum of what the session follows for its patterns, whatever happens.
func (s *Session) checkMatched(t *testing.T) {
	t.Helper()
	topics, bytes := 0, 0
	for topic, sub := range s.subs.all() {
		if !sub.named {
			topics, bytes = topics+1, bytes+broker.BytesOf(topic)
		}
	}
	if s.matched == nil {
		require.Zero(t, topics)
		return
	}
	require.Equal(t, topics, s.matched.topics)
	require.Equal(t, bytes, s.matched.bytes)
	require.GreaterOrEqual(t, s.matched.unfollowed, 0)
	require.LessOrEqual(t, s.unfollowedGapsLocked(), maxUnfollowedGaps+maxPatterns)
}

func TestAClientNamesAsManyTopicsAsFitTwice(t *testing.T) {
	cfg := Config{PatternBytes: room(100, "a.000"), Subscriptions: 10}.WithDefaults()
	story(t, broker.Config{}, cfg, func(k *kit) {
		starts := []string{"a.*@EPOCH:0"}
		for i := range cfg.mostNamed() - 1 {
			starts = append(starts, fmt.Sprintf("a.%03d@EPOCH:1", i))
		}
		require.GreaterOrEqual(k, len(starts), 200)
		k.openAll(starts...)
		_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts(append(slices.Clone(starts), "a.more@EPOCH:1")...)}, time.Now())
		require.ErrorIs(k, err, problem.New(wire.CodeTooManySubscriptions, "", ""))
	})
}

// A client that names a topic gets it, although its pattern leaves it out.
func TestAClientMayNameATopicThatItsPatternLeavesOut(t *testing.T) {
	story(t, broker.Config{}, Config{PatternBytes: room(1, "a.1"), Subscriptions: 2, InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("a.*")
		k.publishN("a.1", 1)
		k.publishN("a.2", 1)
		k.publishN("a.3", 1)
		require.Equal(k, "gap(unfollowed a.20-0) gap(unfollowed a.30-0) a.11", k.poll(s, 0))
		positions, err := s.Change(k.starts("a.2"), nil, nil)
		require.NoError(k, err)
		require.Equal(k, []string{"a.2:1"}, texts(positions))
		k.publishN("a.2", 1)
		require.Equal(k, "a.22", k.poll(s, 3))
		_, err = s.Change(k.starts("a.3@oldest"), nil, nil)
		require.ErrorContains(k, err, "at most 2 topics and patterns in a session; got 3", "all names are in use")
		require.Equal(k, "", k.poll(s, 4))
	})
}
