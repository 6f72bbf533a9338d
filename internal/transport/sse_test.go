package transport

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// sink is a Sink that remembers the last part.
type sink struct {
	lead   []byte
	frames int
}

func (s *sink) Whole([]byte, []*frame.Frame) (int, error) { panic("BUG: a stream has no length") }

func (s *sink) Send(lead []byte, frames []*frame.Frame) (int, error) {
	s.lead, s.frames = append(s.lead[:0], lead...), len(frames)
	return 0, nil
}

func frameAt(topic, epoch string, offset uint64) *frame.Frame {
	p := wire.Position{Topic: topic, Epoch: epoch, Offset: offset}
	return frame.New(&wire.Message{Position: p, Time: 1, Data: []byte("1")}, time.Now(), 0, nil)
}

// Positions get longer and shorter, and change their epoch. Each id has all of them.
func TestAnOwnIDHasThePositionsOfAllTopics(t *testing.T) {
	positions := []wire.Position{{Topic: "b", Epoch: "k3", Offset: 9}, {Topic: "a", Epoch: "k3", Offset: 0}, {Topic: "c.d", Epoch: "old", Offset: 123}}
	e := EventsOf(positions)
	var to sink
	for _, f := range []*frame.Frame{
		frameAt("b", "k3", 10), frameAt("c.d", "k3", 1), frameAt("a", "k3", 100000), frameAt("b", "k4", 1), frameAt("c.d", "k3", 2), frameAt("a", "k3", 100001),
	} {
		want := make([]string, len(positions))
		for i := range positions {
			if positions[i].Topic == f.Position().Topic {
				positions[i] = f.Position()
			}
			want[i] = positions[i].String()
		}
		n, err := e.send(&to, []byte("lead\n"), []*frame.Frame{f})
		require.NoError(t, err)
		require.Zero(t, to.frames)
		require.Equal(t, "lead\ndata: "+string(f.Bytes(frame.NDJSON))+"id: "+strings.Join(want, ",")+"\n\n", string(to.lead))
		require.Equal(t, len(to.lead)-len("lead\n"), n)
	}
}

// Moved positions change the id, but not its count.
func TestMovedPositionsAreInTheID(t *testing.T) {
	at := func(topic string, offset uint64) wire.Position {
		return wire.Position{Topic: topic, Epoch: "k3", Offset: offset}
	}
	moved := []*frame.Frame{frame.NewMoved([]wire.Position{at("a", 12), at("b", 5)})}
	var to sink
	several := EventsOf([]wire.Position{at("a", 9), at("b", 2), at("c", 1)})
	_, err := several.send(&to, nil, moved)
	require.NoError(t, err)
	require.Equal(t, "event: moved\ndata: "+`{"moved":{"positions":["a@k3:12","b@k3:5"]}}`+"\nid: a@k3:12,b@k3:5,c@k3:1\n\n", string(to.lead))

	refers := &Events{at: EventID{Session: "s", Count: 7, Positions: []wire.Position{at("a", 9)}}, hasPositions: true}
	_, err = refers.send(&to, nil, moved)
	require.NoError(t, err)
	require.Contains(t, string(to.lead), "\nid: ~s:7,a@k3:12,b@k3:5\n\n")

	one := EventsOf([]wire.Position{at("a", 9)})
	_, err = one.send(&to, nil, []*frame.Frame{frame.NewMoved([]wire.Position{at("a", 12)})})
	require.NoError(t, err)
	require.Equal(t, "a@k3:12", string(one.at.Append(nil)))
}

func TestAnEventOfOneTopicIsShared(t *testing.T) {
	e := EventsOf([]wire.Position{{Topic: "a", Epoch: "k3", Offset: 9}})
	var to sink
	_, err := e.send(&to, nil, []*frame.Frame{frameAt("a", "k3", 10), frameAt("a", "k3", 11)})
	require.NoError(t, err)
	require.Equal(t, 2, to.frames)
	require.Empty(t, to.lead)
	require.Equal(t, "a@k3:11", string(e.at.Append(nil)))
}

func TestALongIDIsAReference(t *testing.T) {
	starts := []wire.Start{{Topic: "a"}}
	length := longestPosition("a")
	for i := 0; ; i++ {
		start := wire.Start{Topic: fmt.Sprintf("topic.%d", i)}
		length += len(",") + longestPosition(start.Topic)
		starts = append(starts, start)
		require.Equal(t, length >= maxEventID, NeedSession(starts))
		if NeedSession(starts) {
			break
		}
	}
	require.True(t, NeedSession([]wire.Start{{Topic: "a.*"}}))
	require.False(t, NeedSession([]wire.Start{{Topic: strings.Repeat("a", 200)}}))
}
