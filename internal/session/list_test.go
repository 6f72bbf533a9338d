package session

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// listed formats a list as "2:a+3 1:": the number, the worst topic and the lag.
func listed(list wire.SessionList) []string {
	words := []string{}
	for _, s := range list.Sessions {
		words = append(words, fmt.Sprintf("%d:%s+%d", s.Number, s.Worst, s.Lag))
	}
	return words
}

func TestSessionsWithTheLargestLagAreListedFirst(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.open("a")
		time.Sleep(time.Second)
		k.open("a", "b")
		closed := k.open("a", "b")
		k.open("quiet")
		k.open("y", "x")
		k.publishN("a", 2)
		k.publishN("b", 3)
		k.publishN("x", 2)
		k.publishN("y", 2)
		k.registry.End(closed)
		_, open := closed.listed(time.Now())
		require.False(k, open, "it may end while a list is made")
		stateless, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a@oldest")}, time.Now())
		require.NoError(k, err)
		defer k.registry.End(stateless)

		list := k.registry.List(10, ByLag, time.Now())
		require.Equal(k, []string{"2:b+5", "5:x+4", "1:a+2", "4:+0"}, listed(list))
		require.Equal(k, 4, list.Open)
		require.Equal(k, 1, list.Stateless)
		require.Zero(k, list.Connections)
		require.Equal(k, []string{"2:b+5"}, listed(k.registry.List(1, ByLag, time.Now())))
		require.Equal(k, 4, k.registry.List(1, ByLag, time.Now()).Open, "listed or not")

		text, err := json.Marshal(list)
		require.NoError(k, err)
		k.registry.sessions.each(func(s *Session) { require.NotContains(k, string(text), s.id[:8]) })
	})
}

// A connection without an id is listed with its client, and ended by its number.
func TestConnectionsAreListedWithTheirClient(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.open("a")
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a"), Peer: &Peer{"tcp", "192.0.2.1", unique.Make("agent")}}, time.Now())
		require.NoError(k, err)
		list := k.registry.List(10, ByLag, time.Now())
		require.Equal(k, []int{1, 1, 1}, []int{list.Open, list.Connections, list.Stateless})
		require.Equal(k, wire.ListedSession{Number: 2, Subscriptions: 1, Transport: "tcp", Address: "192.0.2.1", Agent: "agent"}, list.Sessions[1])
		require.True(k, k.registry.EndNumber(s.number))
		require.Zero(k, k.registry.List(10, ByLag, time.Now()).Connections)
	})
}

func TestSessionsThatAreIdleLongestAreListedFirst(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		k.open("a")
		k.open("a")
		time.Sleep(5 * time.Second)
		polled := k.open("a")
		poll := k.park(polled, 0)
		time.Sleep(time.Second)
		list := k.registry.List(2, ByIdle, time.Now())
		require.Equal(k, []string{"1:+0", "2:+0"}, listed(list), "of equals the older first")
		require.EqualValues(k, 6000, list.Sessions[0].IdleMS)
		last := k.registry.List(3, ByIdle, time.Now()).Sessions[2]
		require.Equal(k, wire.ListedSession{Number: 3, AgeMS: 1000, Polling: true, Subscriptions: 1}, last)
		poll.wantFrames("")
	})
}

func TestAListHoldsOnlyAFewSessionsInMemory(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		for i := range 100 {
			k.open(fmt.Sprintf("t%d@oldest", i))
			k.publishN(fmt.Sprintf("t%d", i), i%10)
		}
		list := k.registry.List(3, ByLag, time.Now())
		require.Equal(k, []string{"10:t9+9", "20:t19+9", "30:t29+9"}, listed(list))
		require.LessOrEqual(k, cap(list.Sessions), 32, "no memory for those that are not listed")
	})
}

func TestAListSaysWhatASessionWaitsFor(t *testing.T) {
	for _, c := range []struct {
		want string
		lag  uint64
		tell func(k *kit) *Reader
	}{
		{"", 0, func(k *kit) *Reader { k.open("a"); return nil }},
		{waitPoll, 3, func(k *kit) *Reader { k.open("a"); k.publishN("a", 3); return nil }},
		{waitAck, 3, func(k *kit) *Reader {
			s := k.open("a")
			k.publishN("a", 5)
			k.poll(s, 0) // takes 2, the limit of unacked frames
			return nil
		}},
		{waitHistory, 3, func(k *kit) *Reader {
			k.publishN("a", 3)
			return k.begin(k.open("a@oldest"))
		}},
		{waitReader, 8, func(k *kit) *Reader {
			p := k.begin(k.open("a"))
			k.publishN("a", 8) // the queue takes 4
			return p
		}},
		{waitRate, 1, func(k *kit) *Reader {
			s := k.openPaced(time.Hour, "a")
			k.publishN("a", 1)
			k.poll(s, 0)
			p, err := s.Poll(1, false, time.Now())
			require.NoError(k, err)
			k.publishN("a", 1)
			return p
		}},
		{"", 0, func(k *kit) *Reader {
			k.openNoEcho("me", "a")
			k.publishAs("me", "me")
			return nil
		}},
		{"", 2, func(k *kit) *Reader {
			p := k.begin(k.open("a"))
			k.publishN("a", 2) // the poll is about to take them
			return p
		}},
	} {
		story(t, broker.Config{}, Config{Queue: 4, Unacked: 2}, func(k *kit) {
			p := c.tell(k)
			synctest.Wait()
			got := k.registry.List(1, ByLag, time.Now()).Sessions[0]
			require.Equal(k, c.want, got.Why)
			require.Equal(k, c.lag, got.Lag)
			if p != nil {
				_, err := p.Take(context.Background(), everything, 0)
				require.NoError(k, err)
				p.Done(time.Now())
			}
		})
	}
}

// begin begins a poll that has not taken anything yet.
func (k *kit) begin(s *Session) *Reader {
	k.Helper()
	p, err := s.Poll(0, false, time.Now())
	require.NoError(k, err)
	return p
}
