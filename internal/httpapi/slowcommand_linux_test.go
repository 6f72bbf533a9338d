package httpapi

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// ended returns the number of connections that ended for this reason.
func (k *kit) ended(why metrics.Ending) int {
	return int(testutil.ToFloat64(k.Parts.Metrics.ConnectionsEnded.WithLabelValues(string(why))))
}

// halves are ways to send half of a command.
var halves = map[string][]byte{
	"half a frame":      ws.MustCompileFrame(ws.MaskFrame(ws.NewTextFrame([]byte(`{"ping":true}`))))[:9],
	"half a head":       ws.MustCompileFrame(ws.MaskFrame(ws.NewTextFrame([]byte(`{"ping":true}`))))[:3],
	"half a message":    ws.MustCompileFrame(ws.MaskFrame(ws.NewFrame(ws.OpText, false, []byte(`{"ping":`)))),
	"one and a half":    append(ws.MustCompileFrame(ws.MaskFrame(ws.NewTextFrame([]byte(`{"ping":true}`)))), 0x81),
	"one, half another": append(ws.MustCompileFrame(ws.MaskFrame(ws.NewTextFrame([]byte(`{"ping":true}`)))), ws.MustCompileFrame(ws.MaskFrame(ws.NewTextFrame([]byte(`{}`))))[:7]...),
}

// soon times out before the first heartbeat, which an in-memory client would have to
// read.
var soon = lanetest.Settings{Transport: transport.Config{RestTimeout: time.Second}}

// A client must finish a command in time. Otherwise, it could make the daemon hold an
// unfinished command for as long as it likes. Clients with complete commands stay
// connected.
func TestTheRestOfACommandTimesOut(t *testing.T) {
	for name, half := range halves {
		t.Run(name, func(t *testing.T) {
			t.Run("off", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { newKit(t, soon).wantRestOfACommand(half) })
			})
			t.Run("handoff", func(t *testing.T) { newLaneKit(t, lane.HandOff).wantRestOfACommand(half) })
		})
	}
}

func (k *kit) wantRestOfACommand(half []byte) {
	good, slow := k.Connect(wire.Start{Topic: "a"}), k.Connect(wire.Start{Topic: "a"})
	good.Hello()
	slow.Hello()
	k.wantSlow(slow.Conn, half, func() {
		good.Send(wire.Command{Ping: true, Ref: new(uint64(1))})
		good.WantReply(1)
	})
	_, err := slow.Next()
	require.ErrorIs(k, err, &wire.Problem{Code: wire.CodeInvalidRequest})
	k.Publish("a", "1")
	good.WantFrame("a1", "1")
	good.Close()
	slow.Close()
}

// wantSlow sends half a command and waits until its connection ends for that reason. Off
// the lane, the caller needs a synctest bubble, because Tick does not shorten the wait.
func (k *kit) wantSlow(conn net.Conn, half []byte, meanwhile func()) {
	k.Helper()
	_, err := conn.Write(half)
	require.NoError(k, err)
	begun := time.Now()
	for now := begun; k.ended(metrics.SlowBody) == 0; now = now.Add(time.Second) {
		require.Less(k, time.Since(begun), lanetest.Surely, "it is still there")
		k.api.Lane.Tick(now) // advances the lane's clock faster
		meanwhile()
		time.Sleep(20 * time.Millisecond)
	}
	require.Equal(k, 1, k.ended(metrics.SlowBody))
	require.Zero(k, k.ended(metrics.Silent))
}

// As TestTheRestOfACommandTimesOut, on a TCP connection without HTTP.
func TestTheRestOfACBORItemTimesOut(t *testing.T) {
	t.Run("off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := newBareKit(t, soon)
			k.wantRestOfAnItem(k.dialBare())
		})
	})
	t.Run("handoff", func(t *testing.T) {
		k := newLaneKit(t, lane.HandOff)
		conn, err := net.Dial("tcp", k.OpenPort())
		require.NoError(t, err)
		k.wantRestOfAnItem(conn)
	})
}

func (k *kit) wantRestOfAnItem(conn net.Conn) {
	defer conn.Close()
	_, err := conn.Write(lanetest.AsCBOR(`{"topics":["a"]}`))
	require.NoError(k, err)
	frames := wire.NewCBORDecoder(conn)
	c, err := frames.Next()
	require.NoError(k, err)
	require.NotNil(k, c.Hello)
	whole := lanetest.AsCBOR(`{"publish":{"topic":"a","data":"` + strings.Repeat("x", 1000) + `"}}`)
	k.wantSlow(conn, whole[:900], func() {})
	for c.End == nil {
		c, err = frames.Next()
		require.NoError(k, err)
	}
	require.Equal(k, wire.CodeInvalidRequest, c.End.Code)
	_, err = io.Copy(io.Discard, conn)
	require.NoError(k, err)
}
