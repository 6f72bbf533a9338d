package pubsub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/daemon"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// presenceStory is a story of a Presence of the topic chat and a fake daemon.
type presenceStory struct {
	*testing.T
	fake    *fake
	client  *Client
	watched *Presence

	// Guarded by fake.mu while a read is under way.
	list    wire.PresenceList // which the daemon answers, at the head of the presence topic
	lists   int               // how often it was read
	refuses *wire.Problem     // instead of the list; nil: nothing

	before func() // called before the list is answered
}

const presenceOfChat = "_presence.chat"

func withPresence(t *testing.T, tell func(s *presenceStory)) {
	synctest.Test(t, func(t *testing.T) {
		s := &presenceStory{T: t, fake: newFake()}
		s.client = serveFake(t, s.fake)
		s.list = wire.PresenceList{Topic: "chat", PresenceCounts: wire.PresenceCounts{Exact: true}}
		s.fake.script = s.answers
		tell(s)
		if s.watched != nil {
			s.watched.Close()
			_, err := s.watched.Next(t.Context())
			require.Error(t, err)
		}
	})
}

func (s *presenceStory) answers(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != "/v1/topics/chat/presence" {
		return false
	}
	s.fake.mu.Lock()
	s.lists++
	refuses := s.refuses
	s.list.Position = s.fake.headLocked(presenceOfChat)
	text, err := json.Marshal(s.list)
	s.fake.mu.Unlock()
	if refuses != nil {
		refuse(w, refuses)
		return true
	}
	require.NoError(s, err)
	if s.before != nil {
		s.before()
	}
	_, _ = w.Write(text)
	return true
}

// isOn sets who is on the topic, such as "ann bob:2" (with claims of 2).
func (s *presenceStory) isOn(who string) {
	s.list.Members = []wire.ListedMember{}
	for _, word := range strings.Fields(who) {
		s.list.Members = append(s.list.Members, member(word))
	}
	s.list.Count = len(s.list.Members)
}

func member(word string) wire.ListedMember {
	name, claims, _ := strings.Cut(word, ":")
	m := wire.ListedMember{Key: name + "/", Member: wire.Member{Subject: name, Since: 17}}
	if claims != "" {
		m.Claims = json.RawMessage(`{"n":` + claims + `}`)
	}
	return m
}

// tells publishes a join or a leave, and says text as it is.
func (s *presenceStory) tells(event, word string) {
	m := member(word)
	if event == wire.PresenceLeave {
		m.Since = 0
	}
	text, err := json.Marshal(wire.PresenceEvent{Event: event, Member: m.Member})
	require.NoError(s, err)
	s.fake.add(presenceOfChat, wire.Message{Key: m.Key, Data: text})
}

func (s *presenceStory) says(text string) {
	s.fake.add(presenceOfChat, wire.Message{Key: "count", Data: []byte(text)})
}

func (s *presenceStory) watch(opts ...SubscribeOption) {
	s.Helper()
	var err error
	s.watched, err = s.client.Presence(s.Context(), "chat", opts...)
	require.NoError(s, err)
}

// wants checks the next change, who is there then, and the counts if they are not those of an exact
// list without anonymous ones.
func (s *presenceStory) wants(change, who string, counts ...wire.PresenceCounts) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Hour)
	defer cancel()
	c, err := s.watched.Next(ctx)
	require.NoError(s, err)
	require.Equal(s, change, strings.TrimSpace(c.Event+" "+c.Member.Key))
	members := s.watched.Members()
	require.Equal(s, who, spell(members))
	if len(counts) == 0 {
		counts = []wire.PresenceCounts{{Count: len(members), Exact: true}}
	}
	require.Equal(s, counts[0], s.watched.Counts())
}

// spell is the opposite of isOn.
func spell(members map[string]wire.ListedMember) string {
	words := []string{}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		word := members[key].Subject + ":" + strings.TrimSuffix(strings.TrimPrefix(string(members[key].Claims), `{"n":`), "}")
		words = append(words, strings.TrimSuffix(word, ":"))
	}
	return strings.Join(words, " ")
}

func (s *presenceStory) wantsNothing(during time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), during)
	defer cancel()
	c, err := s.watched.Next(ctx)
	require.ErrorIs(s, err, context.DeadlineExceeded, c)
}

func TestPresenceIsALiveList(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann bob")
		s.watch()
		s.wants("list", "ann bob")
		s.tells(wire.PresenceJoin, "cat:1")
		s.wants("join cat/", "ann bob cat:1")
		s.tells(wire.PresenceLeave, "ann")
		s.wants("leave ann/", "bob cat:1")
		s.tells(wire.PresenceJoin, "cat:2")
		s.wants("join cat/", "bob cat:2")
		s.says(`{"event":"count","count":2,"anonymous":3,"exact":true}`)
		s.wants("count", "bob cat:2", wire.PresenceCounts{Count: 2, Anonymous: 3, Exact: true})
		s.says(`{"event":"wave","subject":"bob"}`) // a newer daemon's
		s.tells(wire.PresenceLeave, "bob")
		s.wants("leave bob/", "cat:2", wire.PresenceCounts{Count: 1, Anonymous: 3, Exact: true})
		s.wantsNothing(time.Minute)
		require.Equal(s, 1, s.lists)

		members := s.watched.Members()
		delete(members, "cat/")
		require.Equal(s, "cat:2", spell(s.watched.Members()), "it is the caller's copy")
	})
}

// What happens between the list and the subscription comes after the list.
func TestPresenceMissesNothingAtItsBeginning(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann")
		s.before = func() { s.tells(wire.PresenceJoin, "bob") }
		s.watch()
		s.wants("list", "ann")
		s.wants("join bob/", "ann bob")
	})
}

// After a restart, or a gap, the list is read again. What the subscription brings meanwhile, it has.
func TestPresenceIsRightAgainAfterAGap(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann")
		s.watch()
		s.wants("list", "ann")
		s.tells(wire.PresenceJoin, "bob")
		s.wants("join bob/", "ann bob")
		s.fake.restart("k4")
		s.isOn("cat")
		s.wants("list", "cat")
		s.tells(wire.PresenceLeave, "cat")
		s.wants("leave cat/", "")

		for _, reason := range []wire.GapReason{wire.GapDeleted, wire.GapEvicted, wire.GapSlow, wire.GapRestarted} {
			s.isOn("dan eve")
			s.watched.take(s.gap(reason, 0)) // older than the list
			s.wantsNothing(time.Second)
			s.watched.take(s.gap(reason, 1))
			s.tells(wire.PresenceJoin, "eve") // the list has it
			s.wants("list", "dan eve")
			s.wantsNothing(time.Second)
		}
		s.watched.take(s.gap(wire.GapConflated, 1))
		s.wantsNothing(time.Second)
	})
}

// gap returns a gap that ends so many messages after the list.
func (s *presenceStory) gap(reason wire.GapReason, after uint64) Item {
	at := s.watched.at
	at.Offset += after
	return Item{Gap: &wire.Gap{Topic: presenceOfChat, Reason: reason, After: s.watched.at, Position: at}}
}

// A message of an earlier epoch, which was under way while the list was read, changes nothing.
func TestPresenceIgnoresWhatIsOlderThanTheList(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann")
		s.watch()
		s.wants("list", "ann")
		old := wire.Message{Position: wire.Position{Topic: presenceOfChat, Epoch: "k2", Offset: 99}, Key: "ann/", Data: []byte(`{"event":"leave","subject":"ann"}`)}
		require.Zero(s, s.watched.take(Item{Message: &old}))
		require.Equal(s, "ann", spell(s.watched.Members()))
	})
}

func TestPresenceOfALargeAudienceIsCounts(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann bob")
		s.list.PresenceCounts = wire.PresenceCounts{Count: 812, Anonymous: 1}
		s.watch()
		s.wants("list", "ann bob", s.list.PresenceCounts)
		s.says(`{"event":"count","count":900,"anonymous":2,"exact":false}`)
		s.wants("count", "ann bob", wire.PresenceCounts{Count: 900, Anonymous: 2})
		s.isOn("cat")
		s.list.PresenceCounts = wire.PresenceCounts{Count: 1, Exact: true}
		s.watched.take(s.gap(wire.GapDeleted, 1))
		s.wants("list", "cat")
	})
}

// A refusal ends the Presence with the daemon's problem, at its opening and later.
func TestPresenceThatIsRefused(t *testing.T) {
	for _, code := range []wire.Code{wire.CodeNotFound, wire.CodeForbidden, wire.CodeUnauthorized} {
		withPresence(t, func(s *presenceStory) {
			s.refuses = problem.New(code, "", "no")
			_, err := s.client.Presence(s.Context(), "chat")
			require.ErrorIs(s, err, &wire.Problem{Code: code})
			require.ErrorContains(s, err, `presence of "chat": `)
			require.Equal(s, 1, s.lists)

			s.refuses = nil
			s.isOn("ann")
			s.watch()
			s.wants("list", "ann")
			s.refuses = problem.New(code, "", "no longer")
			s.watched.take(s.gap(wire.GapForbidden, 0))
			ctx, cancel := context.WithTimeout(s.Context(), time.Hour)
			defer cancel()
			for range 2 {
				_, err = s.watched.Next(ctx)
				require.ErrorIs(s, err, &wire.Problem{Code: code})
				require.ErrorContains(s, err, "no longer")
			}
			require.Equal(s, 3, s.lists)
		})
	}
	withPresence(t, func(s *presenceStory) {
		_, err := s.client.Presence(s.Context(), "chat..")
		require.ErrorContains(s, err, "empty")
		_, err = s.client.Presence(s.Context(), "chat", WithMode("loud"))
		require.ErrorContains(s, err, "loud")
	})
}

// What may pass is retried with the waits of a subscription: as long as an opening may take, and
// then without an end.
func TestPresenceRetries(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		var waits []time.Duration
		note := WithRetryNotify(func(err error, wait time.Duration) {
			require.ErrorIs(s, err, &wire.Problem{Code: wire.CodeOverloaded})
			s.fake.set(func() { waits = append(waits, wait) })
		})
		s.refuses = problem.New(wire.CodeOverloaded, "", "wait")
		_, err := s.client.Presence(s.Context(), "chat", note, WithOpenTimeout(3*time.Second))
		require.ErrorIs(s, err, errOpenTimeout)
		require.ErrorIs(s, err, &wire.Problem{Code: wire.CodeOverloaded})
		require.Greater(s, len(waits), 3)

		s.isOn("ann")
		s.refuses = nil
		s.watch(note)
		s.wants("list", "ann")
		s.refuses, waits = problem.New(wire.CodeOverloaded, "", "wait"), nil
		s.watched.take(s.gap(wire.GapDeleted, 1))
		s.wantsNothing(10 * time.Minute)
		s.fake.set(func() { // it goes on reading
			require.LessOrEqual(s, slices.Max(waits), DefaultMaxBackoff)
			require.Greater(s, len(waits), 50)
			require.Less(s, len(waits), 200)
			s.refuses = nil
		})
		s.wants("list", "ann")
	})
}

// A program that calls Next often, and waits a little each time, reads the list no more often.
func TestPresenceWaitsFromOneNextToAnother(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann")
		s.watch()
		s.wants("list", "ann")
		s.refuses = problem.New(wire.CodeOverloaded, "", "wait").Retry(5 * time.Second)
		s.watched.take(s.gap(wire.GapDeleted, 1))
		for range 99 {
			s.wantsNothing(100 * time.Millisecond)
		}
		s.fake.set(func() {
			require.Equal(s, 1+2, s.lists, "two attempts in 9.9 seconds")
			s.refuses = nil
		})
		s.wants("list", "ann")
		s.watched.take(s.gap(wire.GapDeleted, 1))
		s.wants("list", "ann")
		require.Equal(s, 1+2+2, s.lists)

		s.fake.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v1/topics/chat/presence" {
				holdUp(r, 3*time.Second)
			}
			return s.answers(w, r)
		}
		s.isOn("bob")
		s.watched.take(s.gap(wire.GapDeleted, 1))
		for range 29 {
			s.wantsNothing(100 * time.Millisecond)
		}
		s.wants("list", "bob") // although each Next was shorter than the answer took
		require.Equal(s, 1+2+2+1, s.lists)
	})
}

// While the list and the subscription both fail, notify is called once at a time, as for a subscription.
func TestPresenceNotifiesOneAtATime(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann")
		var running, most, calls atomic.Int32
		s.watch(WithRetryNotify(func(error, time.Duration) {
			most.Store(max(most.Load(), running.Add(1)))
			calls.Add(1)
			time.Sleep(time.Second)
			running.Add(-1)
		}))
		s.wants("list", "ann")
		s.watched.take(s.gap(wire.GapDeleted, 1))
		s.fake.goDown()
		s.wantsNothing(10 * time.Minute)
		require.Greater(s, calls.Load(), int32(100), "both were retried")
		require.EqualValues(s, 1, most.Load())
	})
}

// A proxy's page, or JSON of another shape, is not the daemon's word.
func TestPresenceOutlivesForeignAnswers(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		foreign := []string{"<html>", `{"topic":"other"}`, `{"topic":"chat","posi`, ""}
		s.fake.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v1/topics/chat/presence" && s.lists < 2*len(foreign) {
				if s.lists%2 == 0 {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = fmt.Fprint(w, foreign[s.lists/2])
				s.lists++
				return true
			}
			return s.answers(w, r)
		}
		s.isOn("ann")
		s.watch(WithOpenTimeout(time.Hour))
		s.wants("list", "ann")
		require.Equal(s, 9, s.lists)
	})
}

// Close ends a Next that waits, also one that reads the list; so does the end of the context.
func TestPresenceEnds(t *testing.T) {
	withPresence(t, func(s *presenceStory) {
		s.isOn("ann")
		gone := errors.New("gone")
		for _, reads := range []bool{false, true} {
			for _, byContext := range []bool{false, true} {
				ctx, cancel := context.WithCancelCause(s.Context())
				p, err := s.client.Presence(ctx, "chat")
				require.NoError(s, err)
				_, err = p.Next(s.Context())
				require.NoError(s, err)
				want := ErrClosed
				if reads {
					s.refuses, s.watched = problem.New(wire.CodeOverloaded, "", ""), p
					p.take(s.gap(wire.GapDeleted, 1))
					s.watched = nil
				}
				ended := make(chan error)
				go func() {
					_, err := p.Next(s.Context())
					ended <- err
				}()
				synctest.Wait()
				if byContext {
					want = gone
					cancel(gone)
					require.ErrorIs(s, <-ended, want)
					p.Close()
				} else {
					go p.Close()
					require.ErrorIs(s, <-ended, want)
				}
				for _, err := range p.All(s.Context()) { // after Close it ends without an error
					require.True(s, byContext)
					require.ErrorIs(s, err, gone)
				}
				cancel(nil)
				synctest.Wait()
				s.refuses = nil
			}
		}
	})
}

// A member of a real daemon comes and goes, over each transport.
func TestPresenceOfADaemon(t *testing.T) {
	t.Parallel()
	withChat := func(c *config.Config) {
		c.Broker.Rules = []broker.Rule{{Name: "chat", Pattern: "chat.>", Presence: true, PresenceGrace: 100 * time.Millisecond}}
	}
	d := startRealDaemon(t, withChat)
	c, err := New("http://" + d.PublicAddr())
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.Presence(ctx, "other")
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeNotFound})

	for _, transport := range []Transport{WebSocket, HTTPStream, LongPoll} {
		p, err := c.Presence(ctx, "chat.a", WithTransport(transport))
		require.NoError(t, err)
		wants := func(change string, members int) {
			t.Helper()
			got, err := p.Next(ctx)
			require.NoError(t, err)
			require.Equal(t, change, strings.TrimSpace(got.Event+" "+got.Member.Key))
			require.Len(t, p.Members(), members)
			require.Equal(t, members, p.Counts().Count)
		}
		wants("list", 0)
		s, err := c.Subscribe(ctx, []wire.Start{FromNow("chat.a")}, WithoutOwn("c1"), WithTransport(transport))
		require.NoError(t, err)
		wants("join /c1", 1)
		s.Close()
		wants("leave /c1", 0)
		p.Close()
	}
}

// A cuttable network loses its connections, and then makes none until it is mended.
type cuttable struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (c *cuttable) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	down := c.down
	c.mu.Unlock()
	if down {
		return nil, syscall.ECONNREFUSED
	}
	conn, err := newDialer().DialContext(ctx, network, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case c.down:
		_ = conn.Close()
		return nil, syscall.ECONNREFUSED
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

func (c *cuttable) set(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down = down; down {
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.conns = nil
	}
}

// clientOver returns a client whose connections can be cut. It soon tries again.
func clientOver(t *testing.T, d *daemon.Daemon) (*Client, *cuttable) {
	network := &cuttable{}
	transport := newTransport()
	transport.DialContext = network.dial
	c, err := New("http://"+d.PublicAddr(), WithHTTPClient(&http.Client{Transport: transport}), WithMaxBackoff(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(transport.CloseIdleConnections)
	return c, network
}

// Members of a real daemon lose their connections at random, and come back; so do those who watch.
// After each step, all lists become the truth. Nothing is said of how soon.
func TestPresenceBecomesTheTruthOverRealConnections(t *testing.T) {
	t.Parallel()
	const steps, all = 12, 24
	d := startRealDaemon(t, func(c *config.Config) {
		c.Broker.Rules = []broker.Rule{{Name: "chat", Pattern: "chat.>", Presence: true, PresenceGrace: 300 * time.Millisecond}}
	})
	ways := []Transport{WebSocket, HTTPStream, LongPoll}
	r := rand.New(rand.NewPCG(32, 2))
	members, truth := make([]*cuttable, all), map[string]bool{}
	for i := range members {
		var c *Client
		c, members[i] = clientOver(t, d)
		s, err := c.Subscribe(t.Context(), []wire.Start{FromNow("chat.a")}, WithoutOwn(fmt.Sprint("c", i)), WithTransport(ways[i%len(ways)]))
		require.NoError(t, err)
		defer s.Close()
		truth[fmt.Sprint("/c", i)] = true
	}
	var watchers []*Presence
	var networks []*cuttable
	for _, way := range ways {
		c, network := clientOver(t, d)
		p, err := c.Presence(t.Context(), "chat.a", WithTransport(way))
		require.NoError(t, err)
		defer p.Close()
		watchers, networks = append(watchers, p), append(networks, network)
	}
	for step := range steps / exhaustive.Step(3) {
		for i, m := range members {
			if r.IntN(3) == 0 {
				key := fmt.Sprint("/c", i)
				m.set(truth[key])
				if truth[key] = !truth[key]; !truth[key] {
					delete(truth, key)
				}
			}
		}
		networks[step%len(networks)].set(true)
		networks[step%len(networks)].set(false)
		for _, p := range watchers {
			for !maps.Equal(truth, keysOf(p)) {
				_, err := p.Next(t.Context())
				require.NoError(t, err)
			}
			require.Equal(t, wire.PresenceCounts{Count: len(truth), Exact: true}, p.Counts())
		}
	}
	for _, n := range append(members, networks...) {
		n.set(false) // so that their sessions can be closed
	}
}

func keysOf(p *Presence) map[string]bool {
	keys := map[string]bool{}
	for key := range p.Members() {
		keys[key] = true
	}
	return keys
}
