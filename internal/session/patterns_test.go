package session

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// texts formats positions as "a.*:0 a.b:3".
func texts(positions []wire.Position) (said []string) {
	for _, p := range positions {
		said = append(said, fmt.Sprintf("%s:%d", p.Topic, p.Offset))
	}
	return said
}

func (k *kit) openAll(topics ...string) (*Session, []string) {
	k.Helper()
	s, positions, err := k.registry.Open(context.Background(), Opening{Topics: k.starts(topics...), Ack: true}, time.Now())
	require.NoError(k, err)
	return s, texts(positions)
}

func TestAPatternMatchesPresentAndLaterTopics(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("chat.go", 2)
		k.publishN("chat.go.deep", 1)
		s, positions := k.openAll("chat.*", "news")
		require.Equal(k, []string{"chat.*:0", "news:0", "chat.go:2"}, positions)
		waiting := k.park(s, 0)
		k.publishN("chat.rust", 1)
		waiting.wantFrames("chat.rust1")
		k.publishN("chat.go", 1)
		k.publishN("chat", 1)
		k.publishN("chat.rust", 1)
		require.Equal(k, "chat.go3 chat.rust2", k.poll(s, 1))
		require.Equal(k, []string{"chat.*"}, patternsOf(s))
	})
}

func TestAPatternResumesFromItsPositionAndThoseOfItsTopics(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 2}, Config{}, func(k *kit) {
		k.publishN("a.x", 1)
		s, _ := k.openAll("a.>")
		k.publishN("a.x", 1)
		require.Equal(k, "a.x2", k.poll(s, 0))
		k.registry.End(s)
		k.publishN("a.x", 1)
		k.publishN("a.y", 3)
		s, positions := k.openAll("a.>@EPOCH:0", "a.x@EPOCH:2")
		require.Equal(k, []string{"a.>:0", "a.x:2", "a.y:0"}, positions)
		require.Equal(k, "a.x3 gap(evicted a.y0-1) a.y2 a.y3", k.poll(s, 0), "what it could not know of, it gets from the begin")
		s, _ = k.openAll("a.>@k3:0")
		require.Equal(k, "gap(restarted a.>0-0) a.x2 a.x3 a.y2 a.y3", k.poll(s, 0), "one gap for all that it does not name")
	})
}

func TestAPatternBeginsWithTheNewestMessagesOfEachTopic(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a.x", 3)
		k.publishN("a.y", 1)
		k.publishN("a.z", 5)
		s, positions := k.openAll("a.*@newest-2", "a.z@newest-1")
		require.Equal(k, []string{"a.*:0", "a.z:4"}, positions[:2])
		require.ElementsMatch(k, []string{"a.x:1", "a.y:0"}, positions[2:])
		require.ElementsMatch(k, []string{"a.x2", "a.x3", "a.y1", "a.z5"}, strings.Fields(k.poll(s, 0)))
		k.publishN("a.new", 3)
		require.Equal(k, "a.new1 a.new2 a.new3", k.poll(s, 4), "a later topic begins with its first message")
	})
}

func TestTopicsOfAPatternCanBeForgottenAndCreatedAgain(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Minute}, Config{Subscriptions: 3, InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("job.*")
		acked := uint64(0)
		for i := range 10 {
			k.publishN(fmt.Sprintf("job.%d", i), 1)
			require.NotEmpty(k, k.poll(s, acked))
			acked++
			time.Sleep(time.Hour / 30)
			k.broker.Sweep(time.Now())
		}
		require.Nil(k, s.ended, "it holds three, but not at the same time")
		k.publishN("job.9", 1)
		got := k.poll(s, acked)
		require.Regexp(k, `^job\.9\d+$`, got, "made again, and no gap")
		require.LessOrEqual(k, s.subs.len(), 2)
	})
}

// The daemon is full, and a topic would be one subscription more.
func TestASessionLeavesOutATopicForWhichTheDaemonHasNoRoom(t *testing.T) {
	story(t, broker.Config{MaxSubscriptions: 2}, Config{InactivityTimeout: time.Hour}, func(k *kit) {
		s, _ := k.openAll("job.*")
		k.publishN("job.1", 1)
		k.publishN("job.2", 1)
		require.Equal(k, "job.11 job.21", k.poll(s, 0))
		k.publishN("job.3", 1)
		require.Equal(k, "gap(unfollowed job.30-0)", k.poll(s, 2))
		k.broker.Reload(broker.Config{MaxSubscriptions: 3}, time.Now())
		k.sweepOften(3 * time.Second)
		k.publishN("job.3", 1)
		require.Equal(k, "gap(unfollowed job.30-1) job.32", k.poll(s, 3))
		require.Equal(k, 0, s.Unfollowed())
	})
}

// followers returns the followers of a topic of that name.
func (k *kit) followers(topic string) []broker.Follower { return k.broker.Followers(topic) }

func TestPatternsChangeWhileAPollWaits(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a.x", 1)
		k.publishN("a.y", 1)
		s, _ := k.openAll("a.x")
		positions, err := s.Change(k.starts("a.*", "a.>"), nil, nil)
		require.NoError(k, err)
		require.Equal(k, []string{"a.*:0", "a.>:0", "a.y:1"}, texts(positions))
		positions, err = s.Change(k.starts("a.*", "a.y@oldest", "b.y"), []string{"a.>", "a.x"}, nil)
		require.NoError(k, err)
		require.Equal(k, []string{"a.*:0", "a.y:1", "b.y:0"}, texts(positions), "the first two are there already")
		k.publishN("a.x", 1)
		k.publishN("a.z.deep", 1)
		require.Equal(k, "a.x2", k.poll(s, 0), "the topic stays for the pattern that is left")
		_, err = s.Change(nil, []string{"a.*"}, nil)
		require.NoError(k, err)
		k.publishN("a.x", 1)
		k.publishN("a.new", 1)
		k.publishN("a.y", 1)
		k.publishN("b.y", 1)
		require.Equal(k, "b.y1", k.poll(s, 1), "with the pattern goes what it stands for")
		require.Len(k, subscriptionsOf(s), 1)
		require.Empty(k, k.followers("a.x"))
	})
}

// The first messages of many topics race with sessions that open, change and end.
func TestNoFirstMessageIsMissed(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		const topics, sessions = 50, 20
		var all sync.WaitGroup
		opened := make([]*Session, sessions)
		for i := range sessions {
			all.Go(func() {
				s, _ := k.openAll("race.*@oldest", fmt.Sprintf("race.%d", i))
				opened[i] = s
			})
		}
		for i := range topics {
			all.Go(func() {
				_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: fmt.Sprintf("race.%d", i)}, Data: []byte("1")}, 0, time.Now())
				require.NoError(k, err)
			})
		}
		all.Wait()
		synctest.Wait()
		for i, s := range opened {
			acked, got := uint64(0), map[string]bool{}
			for len(got) < topics-1 {
				p, err := s.Poll(acked, false, time.Now())
				require.NoError(k, err)
				frames, err := p.Take(t.Context(), everything, time.Second)
				require.NoError(k, err)
				require.NotEmpty(k, frames, "session %d has %d topics", i, len(got))
				acked += uint64(len(frames))
				for _, f := range frames {
					require.False(k, got[f.Position().Topic], "twice")
					got[f.Position().Topic] = true
				}
				p.Done(time.Now())
			}
		}
	})
}

func (s *Session) ackedPositions() []wire.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ackedPositionsLocked()
}

func TestANewPatternReplacesARemovedOne(t *testing.T) {
	for _, add := range []string{"a.>", "a.*", "a.x"} {
		story(t, broker.Config{}, Config{}, func(k *kit) {
			k.publishN("a.x", 1)
			s, _ := k.openAll("a.*")
			k.publishN("a.x", 1)
			_, err := s.Change(k.starts(add), []string{"a.*"}, nil)
			require.NoError(k, err)
			k.publishN("a.x", 1)
			require.Equal(k, "a.x3", k.poll(s, 0), "removals come first: what was not sent goes with them")
			require.Len(k, subscriptionsOf(s), 1)
		})
	}
}

// Unacked messages keep their topic, however long the client does not poll.
func TestATopicIsNotForgottenBeforeItsMessagesAreAcked(t *testing.T) {
	story(t, broker.Config{HistoryAge: 5 * time.Second}, Config{InactivityTimeout: time.Hour}, func(k *kit) {
		forget := func() {
			time.Sleep(6 * time.Second)
			k.broker.Sweep(time.Now())
		}
		s, _ := k.openAll("job.*")
		k.publishN("job.1", 3)
		forget()
		k.publishN("job.1", 1)
		require.Equal(k, span("job.1", 1, 4), k.poll(s, 0), "queued")
		forget()
		require.NotZero(k, s.subs.len(), "sent, but not acked")
		require.Empty(k, k.poll(s, 4))
		forget()
		require.Zero(k, s.subs.len(), "nobody has anything of it to come")
		require.Equal(k, []string{"job.*:2"}, texts(s.ackedPositions()), "two were forgotten, of which one is the kit's")
		k.publishN("job.1", 1)
		require.Equal(k, "job.15", k.poll(s, 4), "made again, and no gap")
	})
}

func TestOwnMessagesKeepNoTopic(t *testing.T) {
	story(t, broker.Config{HistoryAge: 5 * time.Second}, Config{InactivityTimeout: time.Hour}, func(k *kit) {
		s, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("job.*"), Ack: true, Client: "me", NoEcho: true}, time.Now())
		require.NoError(k, err)
		for _, client := range []string{"you", "me"} {
			_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "job.1"}, Client: client}, 0, time.Now())
			require.NoError(k, err)
			synctest.Wait()
		}
		require.Equal(k, "job.11 moved(job.12)", k.poll(s, 0))
		require.Equal(k, "moved(job.12)", k.poll(s, 1))
		time.Sleep(6 * time.Second)
		k.broker.Sweep(time.Now())
		require.Zero(k, s.subs.len())
	})
}

func TestAPatternAnnouncesTopicsForgottenWhileTheClientWasAway(t *testing.T) {
	story(t, broker.Config{HistoryAge: 5 * time.Second}, Config{InactivityTimeout: time.Hour}, func(k *kit) {
		forget := func() {
			time.Sleep(6 * time.Second)
			k.broker.Sweep(time.Now())
		}
		s, positions := k.openAll("a.*", "b.*")
		require.Equal(k, []string{"a.*:0", "b.*:0"}, positions)
		k.publishN("a.had", 2)
		require.Equal(k, "a.had1 a.had2", k.poll(s, 0))
		k.registry.End(s)
		forget()
		k.publishN("a.missed", 3)
		forget()
		k.publishN("a.new", 1)

		s, positions = k.openAll("a.*@EPOCH:0", "b.*@EPOCH:0", "a.had@EPOCH:2")
		require.Equal(k, []string{"a.*:0", "b.*:3", "a.had:0", "a.new:5"}, positions, "a.had was forgotten; what comes of it is new")
		require.Equal(k, "gap(evicted a.*0-3) a.new6", k.poll(s, 0), "of b.* nothing was lost, of a.* what is not there any more")
		require.Equal(k, []string{"a.*:0", "b.*:3", "a.new:5"}, texts(s.ackedPositions()))
		require.Empty(k, k.poll(s, 2))
		require.Equal(k, []string{"a.*:3", "b.*:3", "a.new:6"}, texts(s.ackedPositions()))

		s, _ = k.openAll("a.*@EPOCH:2", "a.missed@EPOCH:5", "a.new@EPOCH:6")
		k.publishN("a.missed", 1)
		require.Equal(k, "a.missed6", k.poll(s, 0), "who had all of it lost nothing")
		s, _ = k.openAll("a.*@EPOCH:99")
		require.Contains(k, k.poll(s, 0), "gap(restarted a.*99-3)")
	})
}

// A client that resumes a pattern names topics that were forgotten since. They are not
// created again, and count against no limit.
func TestForgottenTopicsOfAResumedPatternTakeNoRoom(t *testing.T) {
	story(t, broker.Config{}, Config{Subscriptions: 2}, func(k *kit) {
		k.publishN("a.x", 2)
		s, positions := k.openAll("a.*@EPOCH:0", "a.gone@EPOCH:1", "a.x@EPOCH:1", "a.past@EPOCH:2")
		require.Equal(k, []string{"a.*:0", "a.gone:0", "a.x:1", "a.past:0"}, positions)
		require.Equal(k, "a.x2", k.poll(s, 0))
		require.False(k, k.broker.Has("a.gone"))
		k.openAll("a.*@EPOCH:0", "a.x@EPOCH:1", "b")
		_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a.*@EPOCH:0", "a.x@EPOCH:1", "b", "c")}, time.Now())
		require.ErrorIs(k, err, problem.New(wire.CodeTooManySubscriptions, "", ""))
	})
}

func TestPatternsAreBounded(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		var starts []string
		for i := range maxPatterns + 1 {
			starts = append(starts, fmt.Sprintf("p%d.*", i))
		}
		_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts(starts...)}, time.Now())
		require.ErrorIs(k, err, problem.New(wire.CodeTooManySubscriptions, "", ""))
		s, _ := k.openAll(starts[1:]...)
		_, err = s.Change(k.starts(starts[0]), nil, nil)
		require.ErrorIs(k, err, problem.New(wire.CodeTooManySubscriptions, "", ""))
		require.Empty(k, k.followers("p0.x"))
	})
}

// A publisher does not notify many followers itself. They still miss nothing.
func TestManyFollowersReadTheFirstMessageFromHistory(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		var all []*Session
		for range 20 {
			s, _ := k.openAll("a.*")
			all = append(all, s)
		}
		waiting := k.park(all[0], 0)
		k.publish("a.x")
		k.publish("a.x")
		synctest.Wait()
		<-waiting.done
		if waiting.said == "a.x1" { // the poll ended before the second publish
			waiting.said += " " + k.poll(all[0], 1)
		}
		waiting.wantFrames("a.x1 a.x2")
		for _, s := range all[1:] {
			require.Equal(k, "a.x1 a.x2", k.poll(s, 0))
		}
	})
}

// Acks come one by one, for queued messages and for messages read from the history.
func TestATopicIsKeptUntilItsLastMessageIsAcked(t *testing.T) {
	for _, queue := range []int{1, 8} {
		story(t, broker.Config{HistoryAge: 5 * time.Second}, Config{Queue: queue, InactivityTimeout: time.Hour}, func(k *kit) {
			s, _ := k.openAll("job.*")
			k.publishN("job.1", 3)
			require.Equal(k, span("job.1", 1, 3), k.poll(s, 0))
			require.Equal(k, span("job.1", 2, 3), k.poll(s, 1))
			time.Sleep(6 * time.Second)
			k.broker.Sweep(time.Now())
			require.Equal(k, 1, s.subs.len(), "two are not acked")
			require.Equal(k, "gap(expired job.11-2) gap(expired job.12-3)", k.poll(s, 1))
		})
	}
}

func TestANameThatIsRemovedAndAddedMovesThoughAPatternMatches(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.publishN("a.x", 2)
		s := k.open("a.x")
		_, err := s.Change(k.starts("a.*"), nil, nil)
		require.NoError(k, err)
		positions, err := s.Change(k.starts("a.x@oldest"), []string{"a.x"}, nil)
		require.NoError(k, err)
		require.Equal(k, []string{"a.x:0"}, texts(positions))
		require.Equal(k, "a.x1 a.x2", k.poll(s, 0))
	})
}

func TestASessionThatEndedEarlyIsNotListed(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		k.registry.End(s)
		require.ErrorIs(k, k.registry.list(s), closedProblem)
		k.registry.sessions.each(func(*Session) { require.Fail(k, "it is listed") })
	})
}

// After a crash a loss is announced once: by the pattern, or by the topic if the pattern's
// position is of the new epoch.
func TestATopicOrItsPatternAnnouncesANewEpoch(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, positions := k.openAll("a.*@k3:7", "a.x@k3:16")
		require.Equal(k, []string{"a.*:7", "a.x:0"}, positions)
		k.publishN("a.x", 1)
		require.Equal(k, "gap(restarted a.*7-0) a.x1", k.poll(s, 0))
		s, _ = k.openAll("a.*@EPOCH:0", "a.y@k3:16")
		k.publishN("a.y", 1)
		require.Equal(k, "gap(restarted a.y16-0) a.x1 a.y1", k.poll(s, 0))
	})
}

// Only a pattern that resumes from a position announces a forgotten topic. A pattern that
// starts now, or that the session has already, announces nothing of the past.
func TestALossIsAnnouncedOnce(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, _ := k.openAll("a.*@k3:7", "a.>@EPOCH:0", "a.x@k3:16")
		k.publishN("a.x", 1)
		require.Equal(k, "gap(restarted a.*7-0) a.x1", k.poll(s, 0))

		s, _ = k.openAll("b.*", "b.x@EPOCH:2")
		require.Equal(k, "gap(restarted b.x2-0)", k.poll(s, 0))

		s, _ = k.openAll("c.*")
		_, err := s.Change(k.starts("c.*@EPOCH:0", "c.x@EPOCH:2"), nil, nil)
		require.NoError(k, err)
		require.Equal(k, "gap(restarted c.x2-0)", k.poll(s, 0))
	})
}

func (k *kit) wantForgotten(topic string) {
	k.Helper()
	time.Sleep(time.Hour)
	k.broker.Sweep(time.Now())
	_, there := k.broker.Topic(topic)
	require.False(k, there, "%s should have been forgotten", topic)
}

// The client's own messages come after others in one offer, or too early for the pace.
func TestOwnMessagesAmongOthersKeepNoTopic(t *testing.T) {
	for _, every := range []time.Duration{0, time.Second} {
		story(t, broker.Config{HistoryAge: time.Minute}, Config{InactivityTimeout: 100 * time.Hour}, func(k *kit) {
			starts := k.starts("a.*")
			starts[0].Every = every
			s, _, err := k.registry.Open(context.Background(), Opening{Topics: starts, Ack: true, Client: "me", NoEcho: true}, time.Now())
			require.NoError(k, err)
			g := make(gate)
			held, err := k.broker.Join(wire.Start{Topic: "a.x"}, g, true)
			require.NoError(k, err)
			for key, client := range []string{"me", "you", "me"} { // the first blocks in the gate, the others come together
				go func() {
					_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a.x"}, Client: client, Key: fmt.Sprint(key)}, 0, time.Now())
					require.NoError(k, err)
				}()
				synctest.Wait()
			}
			close(g)
			synctest.Wait()
			require.Equal(k, "a.x2 moved(a.x3)", k.poll(s, 0))
			go func() { _, _ = k.tryPoll(s, 1, everything) }() // acks
			held.Leave()
			k.wantForgotten("a.x")

			_, err = k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a.own"}, Client: "me"}, 0, time.Now())
			require.NoError(k, err)
			k.wantForgotten("a.own")
		})
	}
}

func TestAPendingGapKeepsItsTopic(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Minute}, Config{InactivityTimeout: 100 * time.Hour}, func(k *kit) {
		k.publishN("a.x", 2)
		pin := k.open("a.x")
		time.Sleep(2 * time.Minute)
		k.broker.Sweep(time.Now()) // all messages have expired, but the topic exists
		s, _ := k.openAll("a.*@EPOCH:0", "a.x@k3:7")
		k.registry.End(pin)
		k.broker.Sweep(time.Now())
		require.Equal(k, "gap(restarted a.x7-2)", k.poll(s, 0))
		go func() { _, _ = k.tryPoll(s, 1, everything) }()
		k.wantForgotten("a.x")
	})
}

// An ack of another epoch says nothing about this one.
func TestAnAckOfAnotherEpochSettlesNothing(t *testing.T) {
	story(t, broker.Config{HistoryAge: time.Minute}, Config{InactivityTimeout: 100 * time.Hour}, func(k *kit) {
		k.publishN("a.x", 1)
		s, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts("a.*@EPOCH:0", "a.x@k3:1000"), Ack: true, Client: "me", NoEcho: true}, time.Now())
		require.NoError(k, err)
		require.Equal(k, "gap(restarted a.x1000-0) a.x1", k.poll(s, 0))
		for _, client := range []string{"you", "me"} { // the first is queued, and not sent
			_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a.x"}, Client: client}, 0, time.Now())
			require.NoError(k, err)
			synctest.Wait()
		}
		time.Sleep(2 * time.Minute)
		k.broker.Sweep(time.Now())
		require.NotEmpty(k, k.poll(s, 2))
	})
}

// goesOn returns a kit whose broker continues from the state of k's.
func (k *kit) goesOn(bc broker.Config, sc Config) *kit {
	k.Helper()
	k.broker.Close()
	m := metrics.New("test")
	b := broker.New(bc, m, time.Now())
	require.NoError(k, k.broker.Export(func(e broker.Entry) error {
		_, err := b.Apply(e)
		return err
	}))
	return &kit{T: k.T, broker: b, registry: NewRegistry(sc, b, m), epoch: k.epoch}
}

func TestPatternsSurviveAPlannedRestart(t *testing.T) {
	bc, sc := broker.Config{HistoryAge: time.Minute}, Config{InactivityTimeout: 100 * time.Hour, Subscriptions: 20}
	story(t, bc, sc, func(k *kit) {
		k.publishN("old", 5)
		k.wantForgotten("old")
		at := fmt.Sprintf("a.*@EPOCH:%d", k.broker.PatternPosition("a.*").Offset)
		k.publishN("a.x", 1)
		k = k.goesOn(bc, sc)
		s, _ := k.openAll(at)
		require.Equal(k, "a.x6", k.poll(s, 0), "it began above the floor, so nothing is missing")
		k.registry.End(s)

		k.publishN("a.missed", 1)
		k.wantForgotten("a.missed")
		s, _ = k.openAll(at, "a.x@EPOCH:6")
		require.Regexp(k, `^gap\(evicted a\.\*`, k.poll(s, 0), "what is forgotten after a restart is remembered, too")
		k.registry.End(s)

		k = k.goesOn(bc, sc)
		s, _ = k.openAll("job.*")
		for i := range 60 { // short-lived topics are forgotten at once, also in the first minute
			k.publishN(fmt.Sprintf("job.%d", i), 1)
			_, err := k.tryPoll(s, s.window.sent, everything)
			require.NoError(k, err)
			if i%2 == 1 {
				require.Empty(k, k.poll(s, s.window.sent)) // acks, and waits
			}
			k.broker.Sweep(time.Now())
		}
	})
}

func TestATopicCreatedAgainReplacesTheForgottenOne(t *testing.T) {
	story(t, broker.Config{}, Config{Subscriptions: 2}, func(k *kit) {
		s, _ := k.openAll("job.*")
		k.publishN("job.1", 1)
		gone := s.subs.get("job.1")
		gone.joined.Leave() // as if the topic were forgotten and the session not notified yet
		s.patterns["job.*"].Made("job.1")
		require.Nil(k, s.ended)
		require.NotSame(k, gone, s.subs.get("job.1"))
	})
}

// A pattern that matches few of many topics is refused: the search would take too long.
func TestATooBroadPatternIsRefused(t *testing.T) {
	story(t, broker.Config{}, Config{Subscriptions: 3, PatternBytes: 1}, func(k *kit) {
		for i := range 3000 {
			k.publish(fmt.Sprintf("user.%d.inbox", i))
		}
		synctest.Wait()
		for _, pattern := range []string{"*.*.never", "user.*.never"} {
			_, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts(pattern)}, time.Now())
			require.ErrorIs(k, err, problem.New(wire.CodeTooManySubscriptions, "", ""))
			require.ErrorContains(k, err, "limits.pattern_bytes")
		}
		k.openAll("user.7.*")
	})
}
