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

// A compressed command costs little garbage, because no rate has admitted it yet.
func TestACompressedCommandAllocatesLittle(t *testing.T) {
	c, b := newInflatingSocket(), frameOf(fin|rsv1|text, deflated(`{"ack":17}`))
	const times = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		if _, a := c.Receive(b, opened); string(a.Command) != `{"ack":17}` {
			t.Fatal(a)
		}
		c.Reply(nil, nil, opened)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(times*2<<10))
}
