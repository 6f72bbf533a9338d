package lane_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A slowLog numbers entries by one sequence, and applies an Append when the test answers.
type slowLog struct {
	broker   *broker.Broker
	appended chan func()
	last     uint64 // used by answers, one at a time
}

func newSlowLog() *slowLog { return &slowLog{appended: make(chan func(), 1000)} }

func (l *slowLog) open(b *broker.Broker) broker.Log {
	l.broker = b
	return l
}

func (l *slowLog) Append(e []broker.Entry, done func([]broker.Result)) {
	l.appended <- func() {
		results := make([]broker.Result, len(e))
		for i := range e {
			l.last++
			at := &e[i].Message.Position
			at.Epoch, at.Offset = l.broker.Epoch(at.Topic), l.last
			results[i].Time = e[i].Message.Time
			results[i].Position, results[i].Err = l.broker.Apply(e[i])
		}
		done(results)
	}
}

func (*slowLog) Feed(context.Context, func(broker.Entry) error) error { return nil }
func (*slowLog) Partitions() int                                      { return 1 }
func (*slowLog) Partition(string) int                                 { return 0 }
func (*slowLog) Applied(wire.Position) bool                           { return false }

// answer answers one Append.
func (l *slowLog) answer() { (<-l.appended)() }

// onSlowLog serves a log, and returns connections on the lane.
func onSlowLog(t *testing.T, way lane.Way, connections int) (*kit, *slowLog, []*lanetest.Caller) {
	l := newSlowLog()
	k := newLaneWith(t, way, lanetest.Settings{Log: l.open}, nil)
	var all []*lanetest.Caller
	for range connections {
		all = append(all, k.CallOnLane())
	}
	return k, l, all
}

// Publishes that wait for the log block no loop, and have no goroutine. Each is answered
// when the log has it, in the order of the connection's requests.
func TestPublishesOnTheLaneWaitForTheLogWithoutGoroutines(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		const connections = 20
		k, l, callers := onSlowLog(t, way, connections)
		before := runtime.NumGoroutine()
		for i, c := range callers {
			c.Send(lanetest.Publishing("t"+fmt.Sprint(i), "1"), lanetest.Publishing("t"+fmt.Sprint(i), "2"))
		}
		for range 2 {
			var answers []func()
			for range callers {
				answers = append(answers, <-l.appended)
			}
			require.LessOrEqual(t, runtime.NumGoroutine(), before+connections/4)
			require.Empty(t, l.appended, "a connection serves one request at a time")
			for _, answer := range answers {
				answer()
			}
		}
		for i, c := range callers {
			first := c.WantPublished("t" + fmt.Sprint(i))
			require.Less(t, first, c.WantPublished("t"+fmt.Sprint(i)))
		}
		k.WantOnLane(connections)
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))
	})
}

// A client leaves while its publish waits for the log. The message is published, and the
// connection ends.
func TestAClientLeavesWhileItsPublishWaitsForTheLog(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k, l, callers := onSlowLog(t, way, 1)
		callers[0].Send(lanetest.Publishing("b", "1"))
		answer := <-l.appended
		require.NoError(t, callers[0].Conn.Close())
		answer()
		k.WantOnLane(0)
		require.Equal(t, 1, len(k.Held("b")))
	})
}

// While a command waits for the log, its client receives messages. Its later commands wait
// for their turn.
func TestACommandWaitsForTheLogWithoutAGoroutine(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		l := newSlowLog()
		k := newLaneWith(t, way, lanetest.Settings{Log: l.open}, nil)
		s := k.Connect(wire.Start{Topic: "a"})
		s.Hello()
		for n := range uint64(3) {
			s.Send(wire.Command{Ref: new(n), Publish: lanetest.Item("b", fmt.Sprint(n))})
		}
		s.Send(wire.Command{Ref: new(uint64(3)), Ping: true})
		var others sync.WaitGroup
		for n := range uint64(3) {
			answer := <-l.appended
			require.Empty(t, l.appended)
			others.Go(func() { k.Publish("a", fmt.Sprint(n)) })
			l.answer()
			s.WantFrame(fmt.Sprint("a", 2*n+1), fmt.Sprint(n))
			answer()
			require.EqualValues(t, 2*n+2, s.WantReply(n).Position.Offset)
		}
		s.WantReply(3)
		others.Wait()
		s.Close()
		k.WantNoLaneConnections()
	})
}
