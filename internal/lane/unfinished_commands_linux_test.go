package lane_test

import (
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// When a connection ends in the middle of a command, the daemon stops counting the bytes
// received. It does not matter who closes the connection.
func TestUnfinishedCommandsAreFreedWithTheirConnections(t *testing.T) {
	lanetest.OnBothWaysToCarry(t, func(t *testing.T, way lane.Way) {
		for name, end := range map[string]func(*kit, net.Conn){
			"by its client": func(_ *kit, nc net.Conn) { nc.Close() },
			"by a drain":    func(k *kit, _ net.Conn) { k.Parts.Sessions.BeginDrain(lanetest.GoingAway()).End(math.MaxInt) },
			"by the daemon": func(k *kit, _ net.Conn) { k.Lane.Close() },
		} {
			t.Run(name, func(t *testing.T) {
				k := newLane(t, way)
				nc, err := net.Dial("tcp", k.OpenPort())
				require.NoError(t, err)
				defer nc.Close()
				_, err = nc.Write(append(lanetest.AsCBOR(`{"topics":["a"]}`), 0x5a, 0, 0x0f, 0x42, 0x40)) // announces 1,000,000 bytes
				require.NoError(t, err)
				_, err = nc.Write(make([]byte, 500_000))
				require.NoError(t, err)
				k.wantUnfinished(500_005 - 16<<10)
				end(k, nc)
				k.wantUnfinished(0)
			})
		}
	})
}

// wantUnfinished waits until unfinished bodies and commands count this many bytes. When
// it waits for 0, it advances the lane's clock faster than real time.
func (k *kit) wantUnfinished(bytes int64) {
	k.Helper()
	begun := time.Now()
	for now := begun; k.Parts.Polls.Memory().Of(memory.Unfinished) != bytes; now = now.Add(time.Second) {
		require.Less(k, time.Since(begun), lanetest.Surely, "%d are", k.Parts.Polls.Memory().Of(memory.Unfinished))
		if bytes == 0 {
			k.Lane.Tick(now)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
