package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// withPresence has presence on the topics that begin with chat.
var withPresence = broker.Config{Rules: []broker.Rule{{Name: "chat", Pattern: "chat.>", Presence: true}}}

// present is a story on topics with presence, which are swept every second.
func present(t *testing.T, tell func(k *kit)) {
	story(t, withPresence, session.Config{InactivityTimeout: time.Hour}, func(k *kit) {
		tell(k)
		require.EqualValues(k, testutil.ToFloat64(k.metrics.SessionsOpened), k.entered.Load())
	})
}

// wait lets seconds pass, with a sweep in each.
func (k *kit) wait(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		k.registry.Sweep(time.Now())
		k.broker.Sweep(time.Now())
		synctest.Wait()
	}
}

// openingAs is the opening of a client, "subject/client", which subscribes to topics.
func (k *kit) openingAs(who string, topics ...string) session.Opening {
	subject, client, _ := strings.Cut(who, "/")
	g := &auth.Grant{Subject: subject}
	if subject != "" {
		g.Claims = []byte(`{"name":"` + strings.ToUpper(subject) + `"}`)
	}
	return session.Opening{Topics: k.starts(topics...), Ack: true, Grant: g, Client: client, Brief: true}
}

// enter opens a session with a poll that waits for ever.
func (k *kit) enter(who string, topics ...string) *session.Session {
	k.Helper()
	s, _, err := k.registry.Open(context.Background(), k.openingAs(who, topics...), time.Now())
	require.NoError(k, err)
	k.entered.Add(1)
	k.attach(s)
	return s
}

// attach begins a poll of a session.
func (k *kit) attach(s *session.Session) *session.Reader {
	k.Helper()
	p := &session.Reader{}
	require.NoError(k, p.Begin(s, 0, session.AcksNext, session.Arrival{}, time.Now()))
	return p
}

// pollAs is a poll without a session, which ends after a while.
func (k *kit) pollAs(who string, long time.Duration, topics ...string) {
	k.Helper()
	s, _, err := k.registry.OpenEphemeral(k.openingAs(who, topics...), time.Now())
	require.NoError(k, err)
	time.Sleep(long)
	k.registry.End(s)
}

// on returns who is on a topic, such as "ann/ bob/c1 +2": two are anonymous.
func (k *kit) on(topic string) string {
	k.Helper()
	p, err := k.members.List(topic, time.Now())
	require.NoError(k, err)
	require.Len(k, p.Members, p.Count)
	require.True(k, p.Exact)
	var keys []string
	for _, m := range p.Members {
		keys = append(keys, m.Key)
	}
	slices.Sort(keys)
	if p.Anonymous > 0 {
		keys = append(keys, fmt.Sprint("+", p.Anonymous))
	}
	return strings.Join(keys, " ")
}

// A watcher follows the presence of a topic as a client does: it reads the list, follows
// the presence topic from the list's position, and reads the list again after a gap.
type watcher struct {
	k       *kit
	topic   string
	at      wire.Position
	members map[string]wire.Member
	counts  wire.PresenceCounts
	events  []string // such as "join ann/", and "gap"
}

func (k *kit) watch(topic string) *watcher {
	k.Helper()
	w := &watcher{k: k, topic: topic}
	w.load()
	return w
}

func (w *watcher) load() {
	w.k.Helper()
	p, err := w.k.members.List(w.topic, time.Now())
	require.NoError(w.k, err)
	w.at, w.counts, w.members = p.Position, p.PresenceCounts, map[string]wire.Member{}
	for _, m := range p.Members {
		w.members[m.Key] = m.Member
	}
}

// follow takes the news, and returns the events.
func (w *watcher) follow() string {
	w.k.Helper()
	w.events = nil
	for {
		_, err := w.k.broker.Watch(wire.PresenceTopic(w.topic), time.Now()) // a subscription creates it, too
		require.NoError(w.k, err)
		frames, _ := w.k.broker.ReadTopic(wire.StartAfter(w.at), frame.Limit{Frames: 1, Bytes: 1}, time.Now())
		switch {
		case len(frames) == 0:
			return strings.Join(w.events, ", ")
		case frames[0].Gap() != nil:
			w.events = append(w.events, "gap")
			w.load()
		default:
			w.at = frames[0].Position()
			w.take(frames[0].Message())
		}
	}
}

// take applies a message. Joins and leaves of an exact list always change it.
func (w *watcher) take(m *wire.Message) {
	w.k.Helper()
	var e wire.PresenceEvent
	require.NoError(w.k, json.Unmarshal(m.Data, &e))
	switch e.Event {
	case wire.PresenceJoin:
		if was, there := w.members[m.Key]; there {
			require.NotEqual(w.k, string(was.Claims), string(e.Claims), "%s joins twice", m.Key)
			require.Equal(w.k, was.Since, e.Since)
		}
		w.members[m.Key] = e.Member
		w.events = append(w.events, "join "+m.Key)
	case wire.PresenceLeave:
		require.Contains(w.k, w.members, m.Key, "%s leaves, and is not there", m.Key)
		delete(w.members, m.Key)
		w.events = append(w.events, "leave "+m.Key)
	case wire.PresenceCount:
		w.counts = *e.PresenceCounts
		w.events = append(w.events, fmt.Sprintf("count %d+%d %v", e.Count, e.Anonymous, e.Exact))
	default:
		require.Fail(w.k, "unknown event", e.Event)
	}
}

func TestJoinsAndLeavesAreTold(t *testing.T) {
	present(t, func(k *kit) {
		k.enter("dan/", "other", "chat.b")
		w := k.watch("chat.a")
		ann := k.enter("ann/", "chat.a")
		require.Equal(k, "join ann/", w.follow(), "at once")
		bob := k.enter("/c1", "chat.a")
		cat := k.enter("cat/c1", "other")
		_, err := cat.Change(k.starts("chat.a"), nil, nil)
		require.NoError(k, err)
		require.Equal(k, "join /c1, join cat/c1", w.follow())
		require.Equal(k, "/c1 ann/ cat/c1", k.on("chat.a"))
		require.Equal(k, 4, k.members.Count())

		k.registry.End(ann)
		_, err = cat.Change(nil, []string{"chat.a"}, nil)
		require.NoError(k, err)
		k.wait(1)
		require.Equal(k, "leave cat/c1", w.follow(), "at once: she does not come back")
		k.wait(3)
		require.Empty(k, w.follow())
		require.Equal(k, "/c1 ann/", k.on("chat.a"), "until the grace has passed")
		k.wait(2)
		require.Equal(k, "leave ann/", w.follow())
		require.Equal(k, "/c1", k.on("chat.a"))

		k.registry.End(bob)
		k.wait(10)
		require.Equal(k, "leave /c1", w.follow())
		require.Len(k, k.members.audiences, 1, "of chat.b")
	})
}

// The bytes of the list and of the messages.
func TestPresenceOnTheWire(t *testing.T) {
	present(t, func(k *kit) {
		p, err := k.members.List("chat.a", time.Now())
		require.NoError(k, err)
		k.enter("ann/c1", "chat.a")
		k.enter("", "chat.a")
		k.wait(1)
		list, err := k.members.List("chat.a", time.Now())
		require.NoError(k, err)
		text, err := json.Marshal(list)
		require.NoError(k, err)
		require.JSONEq(k, fmt.Sprintf(`{"topic":"chat.a","position":"%s","count":1,"anonymous":1,"exact":true,
			"members":[{"key":"ann/c1","subject":"ann","client":"c1","claims":{"name":"ANN"},"since":946684800000}]}`, list.Position), string(text))
		frames, _ := k.broker.ReadTopic(wire.StartAfter(p.Position), everything, time.Now())
		require.Len(k, frames, 2)
		join, count := frames[0].Message(), frames[1].Message()
		require.Equal(k, "ann/c1", join.Key)
		require.Equal(k, `{"event":"join","subject":"ann","client":"c1","claims":{"name":"ANN"},"since":946684800000}`, string(join.Data))
		require.Equal(k, "count", count.Key)
		require.Equal(k, `{"event":"count","count":1,"anonymous":1,"exact":true}`, string(count.Data))
	})
}

func TestAReconnectWithinTheGraceIsSilent(t *testing.T) {
	present(t, func(k *kit) {
		s := k.enter("ann/c1", "chat.a")
		w := k.watch("chat.a")
		for range 5 {
			k.registry.End(s)
			k.wait(4)
			s = k.enter("ann/c1", "chat.a")
		}
		for range 5 {
			_, err := s.Change(k.starts("chat.a"), []string{"chat.a"}, nil)
			require.NoError(k, err)
		}
		require.Empty(k, w.follow())
		require.Equal(k, "ann/c1", k.on("chat.a"))
	})
}

func TestTwoTabsAreOneMember(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		one, two := k.enter("ann/", "chat.a"), k.enter("ann/", "chat.a")
		k.enter("ann/phone", "chat.a")
		require.Equal(k, "join ann/, join ann/phone", w.follow())
		k.registry.End(one)
		k.wait(10)
		require.Empty(k, w.follow())
		k.registry.End(two)
		k.wait(10)
		require.Equal(k, "leave ann/", w.follow())
	})
}

// A poll without a session is a member while it waits, and for the grace.
func TestAPollIsPresentUntilItsGraceHasPassed(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		for range 3 {
			k.pollAs("ann/c1", 20*time.Second, "chat.a")
			k.wait(4)
			w.follow()
			require.Len(k, w.members, 1)
		}
		require.Empty(k, w.events)
		k.wait(2)
		require.Equal(k, "leave ann/c1", w.follow())
	})
}

// Nobody can tell anonymous sessions without a name apart, so they are only counted.
func TestAnonymousSessionsAreCounted(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		var all []*session.Session
		for range 3 {
			all = append(all, k.enter("", "chat.a"))
		}
		require.Equal(k, "+3", k.on("chat.a"))
		k.wait(1)
		require.Equal(k, "count 0+3 true", w.follow())
		k.wait(3)
		require.Empty(k, w.follow(), "nothing has changed")
		for _, s := range all {
			k.registry.End(s)
		}
		k.wait(1)
		require.Equal(k, "count 0+0 true", w.follow(), "without a grace")
		require.Empty(k, k.members.audiences)
	})
}

// Through a pattern, a client is on the topics that exist.
func TestPatternsMakeMembers(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		s := k.enter("ann/", "chat.*")
		require.Empty(k, k.on("chat.a"))
		k.publish("chat.a")
		k.wait(1)
		require.Equal(k, "join ann/", w.follow())
		k.take(s)
		require.NoError(k, s.Ack(1))
		require.Equal(k, 1, k.members.Count())
		k.wait(61)
		require.False(k, k.broker.Has("chat.a"))
		w.follow()
		k.wait(6)
		require.Equal(k, "leave ann/", w.follow(), "the topic was forgotten")
		k.publish("chat.a")
		_, err := s.Change(nil, []string{"chat.*"}, nil)
		require.NoError(k, err)
		require.Equal(k, "join ann/", w.follow())
		k.wait(6)
		require.Equal(k, "leave ann/", w.follow())
	})
}

// A restart begins without members. Who had a position reads the list again.
func TestARestartLeavesNoGhosts(t *testing.T) {
	present(t, func(k *kit) {
		k.enter("ann/", "chat.a")
		w := k.watch("chat.a")
		require.Len(k, w.members, 1)
		m := metrics.New("test")
		k.broker.Close()
		k.broker = broker.New(withPresence, m, time.Now())
		k.members, k.metrics = New(k.broker, m), m
		k.entered.Store(0)
		k.registry = session.NewRegistry(session.Config{Presence: k.members}, k.broker, m)
		require.Equal(k, "gap", w.follow())
		require.Empty(k, w.members)
		k.enter("bob/", "chat.a")
		require.Equal(k, "join bob/", w.follow())
	})
}

// Sessions that a drain ends come back to the next daemon.
func TestADrainTellsNoLeaves(t *testing.T) {
	present(t, func(k *kit) {
		k.enter("ann/", "chat.a")
		w := k.watch("chat.a")
		k.registry.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(1)
		k.wait(10)
		require.Empty(k, w.follow())
		require.Equal(k, "ann/", k.on("chat.a"))
	})
}

func TestAReloadGivesAndTakesPresence(t *testing.T) {
	story(t, broker.Config{}, session.Config{}, func(k *kit) {
		s := k.enter("ann/", "chat.a", "other")
		reload := func(cfg broker.Config) {
			k.broker.Reload(cfg, time.Now())
			k.registry.Reload(session.Config{})
		}
		reload(withPresence)
		reload(withPresence)
		w := k.watch("chat.a")
		require.Equal(k, []string{"ann/"}, slices.Collect(maps.Keys(w.members)))
		require.Equal(k, 1, k.members.Count())
		reload(broker.Config{})
		k.wait(6)
		require.Equal(k, "leave ann/", w.follow())
		reload(withPresence)
		k.wait(1)
		require.Equal(k, "join ann/", w.follow())
		k.registry.End(s)
		reload(withPresence)
		k.wait(6)
		require.Equal(k, "leave ann/", w.follow(), "an ended session does not come back")
		require.Zero(k, k.members.Count())
	})
}

// 5,000 join in ten seconds. A watcher gets 500 joins, and then a digest each second.
func TestALargeAudienceIsTheDigestOfEachSecond(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		var all []*session.Session
		joins, digests := 0, 0
		watch := func() {
			for _, e := range strings.Split(w.follow(), ", ") {
				switch {
				case strings.HasPrefix(e, "join"):
					joins++
				case strings.HasPrefix(e, "count"):
					digests++
				default:
					require.Empty(k, e)
				}
			}
		}
		for range 100 {
			for range 50 {
				all = append(all, k.enter(fmt.Sprint("user", len(all), "/"), "chat.a"))
			}
			time.Sleep(100 * time.Millisecond)
			k.registry.Sweep(time.Now())
			watch()
		}
		require.Equal(k, crowd, joins)
		require.LessOrEqual(k, digests, 11)
		k.wait(1)
		watch()
		require.Equal(k, wire.PresenceCounts{Count: 5000}, w.counts)
		p, err := k.members.List("chat.a", time.Now())
		require.NoError(k, err)
		require.Equal(k, wire.PresenceCounts{Count: 5000}, p.PresenceCounts)
		require.Len(k, p.Members, crowd)

		for _, s := range all[calm+1:] {
			k.registry.End(s)
		}
		k.wait(7)
		require.Equal(k, "count 401+0 false", w.follow())
		k.registry.End(all[calm])
		k.wait(7)
		require.Equal(k, "gap", w.follow())
		require.Len(k, w.members, calm)
		for n := len(w.members); n < crowd; n++ {
			all = append(all, k.enter(fmt.Sprint("user", len(all), "/"), "chat.a"))
		}
		w.follow()
		require.Len(k, w.members, crowd)
		require.True(k, w.counts.Exact)
	})
}

// Many leave at once: the list is shorter than the events.
func TestTooManyChangesAreOneGap(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		p := k.members
		p.mu.Lock()
		for range crowd + 1 {
			p.changedLocked(p.audienceLocked("chat.a"), news{"x", wire.PresenceEvent{Event: wire.PresenceJoin}})
		}
		p.mu.Unlock()
		p.Flush()
		require.Equal(k, "gap", w.follow())
		require.Empty(k, w.members)
	})
}

// What cannot be told, since there is no memory, is a gap once it can be.
func TestWhatCannotBeToldIsAGap(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		account := k.broker.Memory()
		_, budget := account.Held()
		account.Add(memory.Unread, budget)
		k.members.Joined("chat.a", wire.Member{Subject: "ann"}, time.Time{})
		k.members.Flush()
		require.Empty(k, w.follow())
		account.Add(memory.Unread, -budget)
		k.wait(1)
		require.Equal(k, "gap", w.follow())
		require.Equal(k, []string{"ann/"}, slices.Collect(maps.Keys(w.members)))
	})
}

func TestTheMemoryOfMembersIsCounted(t *testing.T) {
	present(t, func(k *kit) {
		k.wait(130)
		k.enter("", "chat")
		used := k.broker.Memory().Of(memory.Topics)
		s := k.enter("ann/", "chat.a")
		k.wait(1)
		require.Greater(k, k.broker.Memory().Of(memory.Topics)-used, int64(memberBytes+audienceBytes))
		k.registry.End(s)
		k.wait(10)
		require.Empty(k, k.members.audiences)
		require.Empty(k, k.members.due)
		require.Zero(k, k.members.Count())
		k.wait(130)
		require.Equal(k, used, k.broker.Memory().Of(memory.Topics))
	})
}

// Whatever happens, a watcher that reads the list and then the messages ends with the true
// list, and no message repeats what it knows. Watchers come back after long times, too.
func TestWatchersAlwaysHaveTheTrueList(t *testing.T) {
	for seed := uint64(0); seed < 20; seed += uint64(exhaustive.Step(5)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { present(t, func(k *kit) { k.watchRandomly(rand.New(rand.NewPCG(seed, 1))) }) })
	}
}

func (k *kit) watchRandomly(r *rand.Rand) {
	topics := []string{"chat.a", "chat.b", "chat.c"}
	type stay struct {
		*session.Session
		key, topic string
	}
	var stays []stay
	watchers := map[int]*watcher{}
	open := func() {
		topic, user := topics[r.IntN(len(topics))], r.IntN(12)
		who := fmt.Sprintf("u%d/c%d", user, r.IntN(2))
		if r.IntN(4) == 0 {
			k.pollAs(who, 0, topic)
			return
		}
		stays = append(stays, stay{k.enter(who, topic), who, topic})
	}
	for range 300 {
		switch i := r.IntN(100); {
		case i < 30:
			open()
		case i < 32: // a large audience, for a while
			for j := range crowd + 20 {
				stays = append(stays, stay{k.enter(fmt.Sprint("many", j, "/"), "chat.c"), fmt.Sprint("many", j, "/"), "chat.c"})
			}
		case i < 34:
			stays = slices.DeleteFunc(stays, func(s stay) bool {
				if s.topic == "chat.c" {
					k.registry.End(s.Session)
				}
				return s.topic == "chat.c"
			})
		case i < 60 && len(stays) > 0:
			j := r.IntN(len(stays))
			k.registry.End(stays[j].Session)
			stays = slices.Delete(stays, j, j+1)
		case i < 65:
			k.wait(70) // histories expire, topics are forgotten
		case i < 85:
			k.wait(1 + r.IntN(4))
		default:
			if w := watchers[r.IntN(6)]; w != nil {
				w.follow()
			} else {
				watchers[r.IntN(6)] = k.watch(topics[r.IntN(len(topics))])
			}
		}
	}
	k.wait(10)
	for _, w := range watchers {
		w.follow()
		truth := map[string]bool{}
		for _, s := range stays {
			if s.topic == w.topic {
				truth[s.key] = true
			}
		}
		if !w.counts.Exact {
			require.Equal(k, len(truth), w.counts.Count)
			continue
		}
		require.Equal(k, slices.Sorted(maps.Keys(truth)), slices.Sorted(maps.Keys(w.members)))
	}
}

// Many come and go at once, while others watch by name and by a pattern, read the list, and
// time passes.
func TestPresenceOfManyAtOnce(t *testing.T) {
	present(t, func(k *kit) {
		k.enter("", "_presence.>")
		for range 3 {
			k.enter("", "_presence.chat.a")
		}
		var all sync.WaitGroup
		const clients, rounds = 8, 50
		last := make([]*session.Session, clients)
		for i := range clients {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			all.Go(func() {
				for range rounds {
					s := k.enter(fmt.Sprintf("u%d/", i/2), "chat.*", "_presence.chat.b")
					_, err := s.Change(k.starts("chat.a", "chat.b"), []string{"chat.*"}, nil)
					require.NoError(k, err)
					k.publish(fmt.Sprint("chat.", r.IntN(50)))
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
					if last[i] != nil {
						k.registry.End(last[i])
					}
					last[i] = s
				}
			})
		}
		all.Go(func() {
			for range rounds {
				time.Sleep(time.Second)
				k.registry.Sweep(time.Now())
			}
		})
		for range 3 {
			all.Go(func() {
				w := k.watch("chat.a")
				for range rounds {
					time.Sleep(500 * time.Millisecond)
					w.follow()
				}
			})
		}
		all.Wait()
		k.wait(10)
		require.Equal(k, "u0/ u1/ u2/ u3/", k.on("chat.a"))
		require.Equal(k, "u0/ u1/ u2/ u3/", k.on("chat.b"))
		for _, s := range last {
			k.registry.End(s)
		}
		k.wait(10)
		require.Empty(k, k.on("chat.a"))
		require.Empty(k, k.members.audiences)
	})
}

// A session outlives its connection by a minute; its client leaves after the grace, and comes back with the next poll.
func TestABrokenConnectionLeavesAfterTheGrace(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		s := k.enter("ann/", "chat.a")
		unpolled, _, err := k.registry.Open(context.Background(), k.openingAs("bob/", "chat.a"), time.Now())
		require.NoError(k, err)
		k.entered.Add(1)
		p := k.attach(s)
		require.Equal(k, "join ann/, join bob/", w.follow())
		k.wait(4)
		require.Empty(k, w.follow())
		p.Done(time.Now())
		k.wait(2)
		require.Equal(k, "leave bob/", w.follow(), "its session was never polled")
		k.wait(2)
		require.Empty(k, w.follow())
		k.wait(2)
		require.Equal(k, "leave ann/", w.follow())
		k.attach(s)
		k.attach(unpolled)
		require.Equal(k, "join ann/, join bob/", w.follow(), "at once")
	})
}

// All sessions of a member count, and it leaves when the last one has been away for the grace.
func TestAMemberIsThereWhileOneOfItsSessionsIs(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		one, two, three := k.enter("ann/", "chat.a"), k.enter("ann/", "chat.a"), k.enter("ann/", "chat.a")
		poll, last := k.attach(one), k.attach(three)
		require.Equal(k, "join ann/", w.follow())
		poll.Done(time.Now())
		k.wait(4)
		k.registry.End(two)
		last.Done(time.Now().Add(-2 * time.Second)) // it broke earlier than it ended
		k.registry.End(three)
		k.wait(4)
		require.Empty(k, w.follow(), "one is away for longer than the grace, two is not")
		k.wait(2)
		require.Equal(k, "leave ann/", w.follow())
		k.attach(one)
		require.Equal(k, "join ann/", w.follow())
	})
}

// Sessions end in another order than their connections broke.
func TestMembersLeaveInTheOrderInWhichTheirConnectionsBroke(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		var sessions []*session.Session
		for i := range 4 {
			s := k.enter(fmt.Sprintf("u%d/", i), "chat.a")
			sessions = append(sessions, s)
			k.attach(s).Done(time.Now())
			k.wait(1)
		}
		w.follow()
		for _, i := range []int{2, 0, 3, 1} {
			k.registry.End(sessions[i])
		}
		require.Empty(k, w.follow())
		for i := range 4 {
			k.wait(1)
			require.Equal(k, fmt.Sprintf("leave u%d/", i), w.follow())
		}
		require.Empty(k, k.members.audiences)
	})
}

// claims returns the grant of ann by a token that was issued at a second, and names her.
func claims(second int, name string) *auth.Grant {
	return &auth.Grant{Subject: "ann", Claims: fmt.Appendf(nil, `{"name":"%s"}`, name), Issued: time.Unix(int64(second), 0), Expires: time.Now().Add(time.Hour)}
}

// The newest token of a member counts, whichever of its sessions has it.
func TestAMemberHasTheClaimsOfItsNewestToken(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		enter := func(g *auth.Grant) *session.Session {
			s, _, err := k.registry.Open(context.Background(), session.Opening{Topics: k.starts("chat.a", "other"), Grant: g}, time.Now())
			require.NoError(k, err)
			k.entered.Add(1)
			k.attach(s)
			return s
		}
		wants := func(name, events string) {
			k.Helper()
			require.Equal(k, events, w.follow())
			list, err := k.members.List("chat.a", time.Now())
			require.NoError(k, err)
			require.Len(k, list.Members, 1)
			require.Equal(k, fmt.Sprintf(`{"name":"%s"}`, name), string(list.Members[0].Claims))
			require.Equal(k, list.Members[0].Member, w.members["ann/"])
		}
		permits := func(string) bool { return true }
		one, two := enter(claims(100, "A")), enter(claims(200, "A"))
		wants("A", "join ann/")
		k.wait(1)
		used := k.broker.Memory().Of(memory.Topics)
		require.NoError(k, one.Renew(claims(300, "Ann"), permits))
		wants("Ann", "join ann/")
		require.Equal(k, used+2, k.broker.Memory().Of(memory.Topics), "two bytes more")
		require.NoError(k, one.Renew(claims(400, "Ann"), permits))
		wants("Ann", "")
		require.NoError(k, two.Renew(claims(300, "Anna"), permits))
		wants("Ann", "")
		enter(claims(399, "Anna"))
		wants("Ann", "")
		three := enter(claims(500, "Anne"))
		wants("Anne", "join ann/")
		k.registry.End(three)
		k.registry.End(one)
		k.wait(6)
		wants("Anne", "")
		require.NoError(k, two.Renew(claims(600, "Ann"), func(name string) bool { return name == "other" }))
		require.Empty(k, w.follow(), "it may not be here any more")
	})
}

// A member that comes back within the grace, with other claims, has those. Its key and since stay.
func TestAMemberComesBackWithOtherClaims(t *testing.T) {
	present(t, func(k *kit) {
		w := k.watch("chat.a")
		enter := func(g *auth.Grant) *session.Session {
			s, _, err := k.registry.OpenEphemeral(session.Opening{Topics: k.starts("chat.a"), Grant: g}, time.Now())
			require.NoError(k, err)
			return s
		}
		k.registry.End(enter(claims(100, "A")))
		require.Equal(k, "join ann/", w.follow())
		since := w.members["ann/"].Since
		k.wait(2)
		last := enter(claims(200, "Ann"))
		require.Equal(k, "join ann/", w.follow())
		require.Equal(k, `{"name":"Ann"}`, string(w.members["ann/"].Claims))
		require.Equal(k, since, w.members["ann/"].Since)
		k.registry.End(last)
	})
}
