package session

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (k *kit) openNoEcho(client string, topics ...string) *Session {
	k.Helper()
	s, _, err := k.registry.Open(context.Background(), Opening{Topics: k.starts(topics...), Ack: true, Client: client, NoEcho: true}, time.Now())
	require.NoError(k, err)
	return s
}

// publishAs publishes one message of each client to topic a.
func (k *kit) publishAs(clients ...string) {
	k.Helper()
	for _, client := range clients {
		k.publishMessage(wire.Message{Client: client, Key: client})
	}
}

func TestOwnMessagesAreNotSentBack(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 2}, func(k *kit) {
		s, all := k.openNoEcho("me", "a"), k.open("a")
		waiting := k.park(s, 0)
		k.publishAs("me", "me", "you")
		waiting.wantFrames("a3")
		k.publishAs("you", "me", "me", "you", "me", "you", "you", "me")
		require.Equal(k, "a4 a7 a9 a10 moved(a11)", k.poll(s, 1), "live, and from history, without a gap")
		require.Equal(k, span("a", 1, 11), k.poll(all, 0))
		require.Equal(k, "a9 a10 moved(a11)", k.poll(k.openNoEcho("me", "a@EPOCH:7"), 0))
		require.Equal(k, "a8 a11", k.poll(k.openNoEcho("you", "a@EPOCH:7"), 0))
	})
}

func TestAGapBeginsAtTheLastFrameSent(t *testing.T) {
	story(t, broker.Config{HistoryMessages: 3}, Config{Queue: 1}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		k.publishAs("you", "me", "me", "me")
		require.Equal(k, "a1 moved(a4)", k.poll(s, 0), "nothing is lost that it would get")
		k.publishAs("me", "you", "you", "me", "me", "you")
		require.Equal(k, "a6 gap(slow a6-7) a10", k.poll(s, 1))
	})
}

func TestAGapAfterOwnMessagesBeginsBeforeThem(t *testing.T) {
	story(t, broker.Config{}, Config{Queue: 1}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		k.publishAs("you", "you", "me")
		_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Client: "you"}, time.Millisecond, time.Now())
		require.NoError(k, err)
		k.publishAs("you")
		time.Sleep(time.Second)
		require.Equal(k, "a1 a2 gap(expired a2-4) a5", k.poll(s, 0))
	})
}

// A client's own newer message replaces an older one of another client.
func TestConflationCountsOwnMessages(t *testing.T) {
	story(t, slow(broker.Conflate, 0), Config{Queue: 1}, func(k *kit) {
		s := k.openNoEcho("me", "a")
		for _, m := range []wire.Message{{Client: "you"}, {Client: "you", Key: "x"}, {Client: "me", Key: "x"}, {Client: "you", Key: "y"}} {
			k.publishMessage(m)
		}
		require.Equal(k, "a1 gap(conflated a1-2) a4", k.poll(s, 0))
	})
}
