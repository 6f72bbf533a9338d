package soak

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestClaimsThatDisagreeAreFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		claim func(c *court)
		want  Kind
	}{
		{"two messages at one position", func(c *court) {
			c.ledger.accepted(c.lasting(77), wire.Published{Position: at("1"), Time: 0})
		}, Payload},
		{"one message at two positions", func(c *court) {
			c.ledger.accepted(c.lasting(1001), wire.Published{Position: at("2"), Time: 0})
		}, Double},
		{"another time", func(c *court) {
			c.ledger.accepted(c.lasting(1001), wire.Published{Position: at("1"), Time: 5})
		}, Payload},
		{"a publish that was refused", func(c *court) {
			c.ledger.refusedBy(c.lasting(1002))
			c.ledger.accepted(c.lasting(1002), wire.Published{Position: at("2"), Time: 5})
		}, Protocol},
		{"a changed payload", func(c *court) {
			m := c.message("1")
			m.Data[12] ^= 1
			c.ledger.delivered("s", m)
		}, Payload},
		{"a message of another topic", func(c *court) {
			m := c.message("1")
			m.Position.Topic = "b"
			c.ledger.delivered("s", m)
		}, Payload},
	} {
		t.Run(c.name, func(t *testing.T) {
			court := newCourt(t)
			court.published("e1", 1, 1, 0)
			court.saw(court.subscriber(), 10, "1")
			c.claim(court)
			require.Equal(t, map[Kind]int{c.want: 1}, court.ledger.faults.count, court.ledger.faults.kept)
		})
	}
}

// A publish whose answer was lost is settled by whoever sees the message.
func TestALostAnswerIsSettledByADelivery(t *testing.T) {
	c := newCourt(t)
	unseen := func() int64 { bytes, _ := c.ledger.unseen(0); return bytes }
	c.ledger.lostAnswer(c.lasting(1001))
	c.ledger.lostAnswer(c.lasting(1002))
	require.Positive(t, unseen())
	c.saw(c.subscriber(), 10, "1", "2")
	require.Zero(t, unseen())
	require.EqualValues(t, 2, c.ledger.head(0, c.ledger.epoch("e1")))
	require.Empty(t, c.judge())
	c.ledger.lostAnswer(c.lasting(1002)) // the publisher is the last to know
	require.Zero(t, unseen())
}

func TestTheLedgerKnowsWhatATopicHad(t *testing.T) {
	c := newCourt(t)
	c.published("e1", 1, 2, 100)
	e := c.ledger.epoch("e1")
	require.True(t, c.ledger.has(0, e, 100))
	require.False(t, c.ledger.has(0, e, 99))
	require.False(t, c.ledger.has(1, e, 100))
	require.Zero(t, c.ledger.head(1, e))
}

func TestEpochsSortByTime(t *testing.T) {
	require.True(t, olderEpoch("zz", "100"))
	require.True(t, olderEpoch("k3", "k4"))
	require.False(t, olderEpoch("k4", "k4"))
	require.False(t, olderEpoch("100", "zz"))
}

// Two million messages must fit: what one costs is bounded.
func TestAMessageCostsLittleInTheLedger(t *testing.T) {
	c := newCourt(t)
	const messages = 100_000
	before := heap()
	for n := range uint64(messages) {
		c.ledger.accepted(newIdentity(0, 0, n), wire.Published{Position: wire.Position{Topic: "a", Epoch: "e1", Offset: n + 1}})
	}
	require.Less(t, (heap()-before)/messages, uint64(150), "bytes a message")
	require.EqualValues(t, messages, c.ledger.head(0, c.ledger.epoch("e1")))
	require.Empty(t, c.ledger.faults.kept)
}

// heap returns the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
