//go:build !race

package transport

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An event that is put together for one client allocates nothing, with as many topics
// as an id may name.
func TestAnEventWithAnOwnIDAllocatesNothing(t *testing.T) {
	positions := make([]wire.Position, 40)
	for i := range positions {
		positions[i] = wire.Position{Topic: fmt.Sprintf("topic.%d", i), Epoch: "mabcdefghijkl", Offset: 1}
	}
	e := EventsOf(positions)
	frames := []*frame.Frame{frameAt("topic.3", "mabcdefghijkl", 7), frameAt("topic.39", "mabcdefghijkl", 1<<40)}
	var to sink
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := e.send(&to, nil, frames); err != nil {
			t.Fatal(err)
		}
	}))
}
