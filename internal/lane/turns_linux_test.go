package lane_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// takeTurns takes all turns, for calls of others, and returns how to end them.
func (k *kit) takeTurns() (leave func()) {
	k.Helper()
	turns, n := k.Parts.Limiter.Turns(), max(1, runtime.GOMAXPROCS(0)/2)
	for range n {
		require.NoError(k, turns.Enter(k.Context(), nil))
	}
	return func() {
		for range n {
			turns.Leave()
		}
	}
}

// A command with many topics waits for its turn. Meanwhile others are served, messages of the
// session continue, and its later commands wait. The reply precedes the messages of the topics.
func TestACommandThatTakesLongWaitsForItsTurn(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		k := newLane(t, way)
		s := k.Connect(wire.Start{Topic: "a"})
		s.Hello()
		other := k.Connect(wire.Start{Topic: "a"})
		other.Hello()
		k.Publish("b0", "0")
		topics := []wire.Start{{Topic: "b0", From: wire.FromOldest}}
		for i := 1; i < 900; i++ {
			topics = append(topics, wire.Start{Topic: fmt.Sprintf("b%d", i)})
		}
		for ref, long := range []wire.Command{{Subscribe: topics[:100]}, {Subscribe: topics}, {Subscribe: []wire.Start{{Topic: "c.*"}}}} {
			leave := k.takeTurns()
			long.Ref = new(uint64(ref))
			s.Send(long)
			s.Send(wire.Command{Ping: true, Ref: new(uint64(99))})
			require.Eventually(t, func() bool { return k.WaitingFor("turns") == 1 }, lanetest.Surely, time.Millisecond)
			require.Empty(t, s.Replies)
			k.Publish("a", "1")
			other.WantFrame(fmt.Sprintf("a%d", ref+1), "1")
			s.WantFrame(fmt.Sprintf("a%d", ref+1), "1")
			leave()
			if ref == 0 {
				s.WantFrame("b01", "0")
				require.NotEmpty(t, s.Replies, "the reply was first")
			}
			require.Len(t, s.WantReply(uint64(ref)).Positions, len(long.Subscribe))
			s.WantReply(99)
		}
		s.Close()
		other.Close()
		k.WantNoLaneConnections()
	})
}

// A client that leaves gives up the turn of its command.
func TestACommandOfAClientThatLeftTakesNoTurn(t *testing.T) {
	k := newLane(t, lane.HandOff)
	defer k.takeTurns()()
	s := k.Connect(wire.Start{Topic: "a"})
	s.Hello()
	s.Send(wire.Command{Subscribe: []wire.Start{{Topic: "c.*"}}})
	require.Eventually(t, func() bool { return k.WaitingFor("turns") == 1 }, lanetest.Surely, time.Millisecond)
	s.Close()
	require.Eventually(t, func() bool { return k.WaitingFor("turns") == 0 }, lanetest.Surely, time.Millisecond)
	k.WantNoLaneConnections()
}
