package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// heardPresence notes what it learns, such as "ann joined chat.a/c1 {}".
type heardPresence struct {
	begun time.Time

	mu    sync.Mutex
	heard []string
}

func (h *heardPresence) Joined(topic string, m wire.Member, _ time.Time) {
	h.note("joined", topic, m, "")
}

func (h *heardPresence) Renewed(topic string, m wire.Member, issued time.Time) {
	h.note("renewed", topic, m, " of "+issued.Sub(h.begun).String())
}

func (h *heardPresence) Left(topic string, m wire.Member, at time.Time) {
	when := " for good"
	if !at.IsZero() {
		when = " at " + at.Sub(h.begun).String()
	}
	h.note("left", topic, m, when)
}

func (h *heardPresence) Flush()          {}
func (h *heardPresence) Sweep(time.Time) {}

func (h *heardPresence) note(what, topic string, m wire.Member, when string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, fmt.Sprintf("%s %s %s/%s %s%s", m.Subject, what, topic, m.Client, m.Claims, when))
}

// wants checks what it has learnt since the last call.
func (h *heardPresence) wants(t testing.TB, heard ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Equal(t, heard, h.heard)
	h.heard = nil
}

// withPresence is a story on topics with presence: chat.> with a grace of 5 s, and slow.> with one of 30 s.
func withPresence(t *testing.T, tell func(k *kit, heard *heardPresence)) {
	heard := &heardPresence{}
	story(t, broker.Config{Rules: presenceRules(5 * time.Second)}, Config{Presence: heard}, func(k *kit) {
		heard.begun = time.Now()
		tell(k, heard)
	})
}

func presenceRules(grace time.Duration) []broker.Rule {
	return []broker.Rule{
		{Name: "chat", Pattern: "chat.>", Presence: true, PresenceGrace: grace},
		{Name: "slow", Pattern: "slow.>", Presence: true, PresenceGrace: 30 * time.Second},
	}
}

// openAnn opens a session of ann, without a poll.
func (k *kit) openAnn(topics ...string) *Session {
	k.Helper()
	return k.openAs(&auth.Grant{Subject: "ann"}, topics...)
}

// A session that has ended stays away, although a reload visits it late.
func TestPresenceLearnsWhoJoinsAndLeavesOnce(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s, _, err := k.registry.Open(context.Background(), Opening{
			Topics: k.starts("chat.a", "other"), Grant: &auth.Grant{Subject: "ann", Claims: []byte(`{}`)}, Client: "c1",
		}, time.Now())
		require.NoError(k, err)
		k.begin(s)
		time.Sleep(time.Minute)
		s.reappear()
		_, err = s.Change(k.starts("chat.b"), []string{"chat.a", "other"}, nil)
		require.NoError(k, err)
		time.Sleep(time.Second)
		k.registry.End(s)
		s.reappear()
		heard.wants(k, "ann joined chat.a/c1 {}", "ann left chat.a/c1 {} for good", "ann joined chat.b/c1 {}", "ann left chat.b/c1 {} at 1m1s")
	})
}

// The session lives on without a poll; its client does not stay on the topic.
func TestPresenceFollowsTheConnection(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("chat.a")
		heard.wants(k, "ann joined chat.a/ ")
		k.sweep(4 * time.Second)
		heard.wants(k)
		k.sweep(2 * time.Second)
		heard.wants(k, "ann left chat.a/  at 0s") // it has had no poll since it was opened

		p := k.begin(s)
		heard.wants(k, "ann joined chat.a/ ")
		k.sweep(40 * time.Second)
		for range 10 {
			p.Done(time.Now())
			k.sweep(4 * time.Second)
			p = k.begin(s)
		}
		heard.wants(k) // each poll began within the grace
		p.Done(time.Now())
		k.sweep(6 * time.Second)
		heard.wants(k, "ann left chat.a/  at 1m26s")
		k.sweep(30 * time.Second)
		heard.wants(k)
		k.registry.End(s)
		heard.wants(k)
	})
}

// A long poll that a fan-out answers is over without Done.
func TestAnAnswerByTheFanOutEndsTheStay(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("chat.a", "other")
		l := &line{k: k, then: Over}
		k.parkOn(l, s, false)
		k.sweep(10 * time.Second)
		heard.wants(k, "ann joined chat.a/ ")
		k.publishN("other", 1)
		l.wants("other1")
		k.sweep(6 * time.Second)
		heard.wants(k, "ann left chat.a/  at 10s")

		k.parkOn(l, k.openAnn("chat.b"), false)
		k.sweep(patience + 2*time.Second) // the poll times out in a visit
		l.wants("")
		k.sweep(5 * time.Second)
		heard.wants(k, "ann joined chat.b/ ", "ann left chat.b/  at 41s")
	})
}

// Connections and polls without a session have a client until they end.
func TestAConnectionIsPresentUntilItEnds(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("chat.a"), Grant: &auth.Grant{Subject: "ann"}}, time.Now())
		require.NoError(k, err)
		k.sweep(time.Minute)
		heard.wants(k, "ann joined chat.a/ ")
		k.registry.End(s)
		heard.wants(k, "ann left chat.a/  at 1m0s")
	})
}

func TestEachTopicHasItsGrace(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("slow.a", "chat.a")
		k.begin(s).Done(time.Now())
		heard.wants(k, "ann joined slow.a/ ", "ann joined chat.a/ ")
		k.sweep(6 * time.Second)
		heard.wants(k, "ann left chat.a/  at 0s")
		k.sweep(23 * time.Second)
		p := k.begin(s)
		heard.wants(k, "ann joined chat.a/ ")
		p.Done(time.Now())
		k.sweep(31 * time.Second)
		heard.wants(k, "ann left chat.a/  at 29s", "ann left slow.a/  at 29s")
		k.begin(s)
		require.Len(k, heard.heard, 2)
	})
}

// What a session subscribes to while its client is away has a member once there is a poll.
func TestANewTopicOfAnAbsentClientHasNoMember(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("other", "chat.*")
		k.sweep(4 * time.Second)
		_, err := s.Change(k.starts("chat.a"), nil, nil)
		require.NoError(k, err)
		heard.wants(k, "ann joined chat.a/ ") // within the grace
		k.sweep(2 * time.Second)
		heard.wants(k, "ann left chat.a/  at 0s")

		_, err = s.Change(k.starts("chat.b"), nil, nil)
		require.NoError(k, err)
		k.publish("chat.c") // the pattern matches it
		k.sweep(10 * time.Second)
		heard.wants(k)
		p := k.begin(s)
		require.ElementsMatch(k, []string{"ann joined chat.a/ ", "ann joined chat.b/ ", "ann joined chat.c/ "}, heard.heard)
		heard.heard = nil
		p.Done(time.Now())
		_, err = s.Change(nil, []string{"chat.a", "chat.b", "chat.*"}, nil)
		require.NoError(k, err)
		k.sweep(2 * time.Second)
		require.ElementsMatch(k, []string{"ann left chat.a/  for good", "ann left chat.b/  for good", "ann left chat.c/  for good"}, heard.heard)
	})
}

// A client that vanished left when it vanished, however late its session ends.
func TestTheEndOfASessionProlongsNoStay(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("chat.a")
		p := k.begin(s)
		k.sweep(3 * time.Second)
		p.Done(time.Now())
		k.sweep(2 * time.Second)
		k.registry.End(s)
		heard.wants(k, "ann joined chat.a/ ", "ann left chat.a/  at 3s")
	})
}

func TestAReloadChangesTheGrace(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		reload := func(rules []broker.Rule) {
			k.broker.Reload(broker.Config{Rules: rules}, time.Now())
			k.registry.Reload(Config{})
		}
		s := k.openAnn("slow.a", "chat.a")
		reload(presenceRules(2 * time.Second))
		k.sweep(3 * time.Second)
		heard.wants(k, "ann joined slow.a/ ", "ann joined chat.a/ ", "ann left chat.a/  at 0s")
		reload(nil)
		heard.wants(k, "ann left slow.a/  at 0s")
		k.sweep(5 * time.Second)
		reload(presenceRules(2 * time.Second))
		heard.wants(k, "ann joined slow.a/ ") // it has 22 s left
		k.sweep(30 * time.Second)
		heard.wants(k, "ann left slow.a/  at 0s")
		p := k.begin(s)
		heard.heard = nil
		reload(presenceRules(time.Hour))
		p.Done(time.Now())
		k.sweep(31 * time.Second)
		heard.wants(k, "ann left slow.a/  at 38s")
		k.sweep(31 * time.Second)
		heard.wants(k, "ann left chat.a/  at 38s") // with the session
		require.Equal(k, inactiveProblem, s.ended)
	})
}

// A renewal tells the claims of the new token, on the topics where the client is a member.
func TestPresenceLearnsOfANewToken(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAs(token(time.Minute), "chat.a", "chat.b", "other")
		p := k.begin(s)
		time.Sleep(time.Second)
		fresh := token(time.Hour)
		fresh.Claims = []byte(`{"n":1}`)
		heard.heard = nil
		require.NoError(k, s.Renew(fresh, only("chat.a", "other")))
		heard.wants(k, `ann left chat.b/ {"n":1} at 1s`, `ann renewed chat.a/ {"n":1} of 1s`)
		require.NoError(k, s.Renew(token(time.Second), anything))
		heard.wants(k)
		p.Done(time.Now())
		k.sweep(6 * time.Second)
		heard.wants(k, `ann left chat.a/ {"n":1} at 1s`)
		require.NoError(k, s.Renew(token(time.Hour), anything))
		heard.wants(k)
	})
}

// The wheel does not move for polls of sessions without presence.
func TestPollsWithoutPresenceAskForNoVisit(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("other")
		k.sweep(time.Second)
		before := s.slot.Load()
		k.begin(s).Done(time.Now())
		require.Equal(k, before, s.slot.Load())
		_, err := s.Change(k.starts("chat.a"), nil, nil)
		require.NoError(k, err)
		require.Less(k, s.slot.Load(), before)
	})
}

// While there is a poll, no visit is asked for, and the next poll does not look at each topic.
func TestPollsOfAPresentClientCostNothing(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		s := k.openAnn("chat.a")
		k.sweep(6 * time.Second)
		require.True(k, s.away)
		p := k.begin(s)
		require.False(k, s.away, "it has come back")
		k.sweep(20 * time.Second)
		before := s.slot.Load()
		_, err := s.Change(k.starts("chat.b"), []string{"chat.a"}, nil)
		require.NoError(k, err)
		require.Equal(k, before, s.slot.Load())
		p.Done(time.Now())
		require.Less(k, s.slot.Load(), before)
	})
}

// Whatever polls and sweeps do at the same time, joins and leaves of a topic alternate, and in the
// end those are members who have a poll.
func TestVisitsAndPollsAtTheSameTime(t *testing.T) {
	withPresence(t, func(k *kit, heard *heardPresence) {
		k.broker.Reload(broker.Config{Rules: presenceRules(time.Millisecond)}, time.Now())
		const sessions = 8
		var polls sync.WaitGroup
		var last [sessions]*Session
		for i := range sessions {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			topic := fmt.Sprint("chat.", i)
			last[i] = k.openAnn(topic, "slow.a")
			polls.Go(func() {
				for range 300 {
					p := k.begin(last[i])
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
					p.Done(time.Now())
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
				}
				if i%2 == 0 {
					k.begin(last[i])
				}
			})
		}
		polls.Go(func() {
			for range 2000 {
				k.registry.Sweep(time.Now())
				time.Sleep(time.Millisecond)
			}
		})
		polls.Wait()
		k.sweep(31 * time.Second)
		for i := range sessions {
			there := 0
			for _, h := range heard.heard {
				switch topic := fmt.Sprint("chat.", i); {
				case h == fmt.Sprintf("ann joined %s/ ", topic):
					there++
				case len(h) > 20 && h[:len("ann left ")+len(topic)] == "ann left "+topic:
					there--
				}
				require.Contains(k, []int{0, 1}, there)
			}
			require.Equal(k, 1-i%2, there)
		}
	})
}
