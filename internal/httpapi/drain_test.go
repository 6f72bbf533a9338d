//go:build linux

package httpapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A poll that is answered between the lane's drain and its session's end is
// answered, and its connection does not hold the drain up.
func TestAnAnswerDuringTheDrainEndsItsConnection(t *testing.T) {
	onBothWays(t, func(t *testing.T, way LaneWay) {
		for range 20 { // it may be parked anew before the message comes, or after
			k := newLaneKit(t, way)
			c := k.call()
			c.send(polling(k.openA(), 0))
			k.wantParked(1)
			drained := k.api.DrainLane()
			k.tell(1, 1, 10)
			c.wantMessages(1, 1)
			select {
			case <-drained:
			case <-time.After(10 * time.Second):
				require.Fail(t, "the connection holds the drain up")
			}
			c.wantClosed()
		}
	})
}
