//go:build !race

package transport

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Composing an event for one client allocates nothing, with as many topics as an id may
// have.
func TestAnEventWithAnOwnIDAllocatesNothing(t *testing.T) {
	positions := make([]wire.Position, 40)
	for i := range positions {
		positions[i] = wire.Position{Topic: fmt.Sprintf("topic.%d", i), Epoch: "mabcdefghijkl", Offset: 1}
	}
	referring := &Events{at: EventID{Session: "s"}, hasPositions: true}
	referring.begin(positions)
	frames := []*frame.Frame{frameAt("topic.3", "mabcdefghijkl", 7), frameAt("topic.39", "mabcdefghijkl", 1<<40)}
	for _, e := range []*Events{EventsOf(positions), referring} {
		var to sink
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := e.send(&to, nil, frames); err != nil {
				t.Fatal(err)
			}
		}))
		require.NotEmpty(t, e.at.Positions)
	}
}

// A command that arrives whole allocates nothing before it is carried out.
func TestAReceivedCommandAllocatesNothing(t *testing.T) {
	for name, story := range map[string]struct {
		talk *Conversation
		b    []byte
	}{
		"a WebSocket": {newInflatingSocket(), frameOf(fin|text, `{"ack":17}`)},
		"TCP":         {newTCP(), []byte("\xa1\x63ack\x11")},
	} {
		t.Run(name, func(t *testing.T) {
			require.Zero(t, testing.AllocsPerRun(100, func() {
				n, a := story.talk.Receive(story.b, opened)
				if n != len(story.b) || a.Command == nil {
					t.Fatal(n, a)
				}
				story.talk.Reply(nil, nil, opened)
			}))
		})
	}
}

// A compressed command costs little garbage, because no rate has admitted it yet. Nor does one that
// cannot be inflated.
func TestACompressedCommandAllocatesLittle(t *testing.T) {
	for deflated, most := range map[string]uint64{deflated(`{"ack":17}`): 2 << 10, "\x07nonsense": 8 << 10} {
		b := frameOf(fin|rsv1|text, deflated)
		const times = 1000
		var all []*Conversation
		for range times {
			all = append(all, newInflatingSocket())
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, c := range all {
			if n, _ := c.Receive(b, opened); n == 0 {
				t.Fatal("the frame was not read")
			}
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/times, most, "%q", deflated)
	}
}
