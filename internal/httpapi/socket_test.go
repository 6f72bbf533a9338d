package httpapi

import (
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAWebSocketDeliversTheSame(t *testing.T) {
	for i, w := range everySocket() {
		t.Run(w.String(), func(t *testing.T) {
			transporttest.Run(t, someStories(i, 4), func(t *testing.T, b transporttest.Bounds) transporttest.System {
				return w.on(newKit(t, boundsOf(b)))
			})
		})
	}
}

// A socketWay is a way to open a WebSocket.
type socketWay struct {
	format   frame.Format
	attached bool // attaches to a session opened before
}

func everySocket() (all []socketWay) {
	for _, format := range []frame.Format{frame.NDJSON, frame.CBOR} {
		all = append(all, socketWay{format, false}, socketWay{format, true})
	}
	return all
}

func (w socketWay) String() string {
	if w.attached {
		return formatNames[w.format] + " of a session"
	}
	return formatNames[w.format]
}

func (w socketWay) on(k *kit) *duplexSystem {
	return &duplexSystem{system: system{kit: k}, attached: w.attached, dial: func(request wire.ConnectRequest) (duplexConn, error) {
		k.Helper()
		q := url.Values{"format": {formatNames[w.format]}}
		lanetest.AddTopics(q, request.Topics)
		self := ""
		if request.Client != nil {
			self = *request.Client
		}
		addWishes(q, request.Topics, self)
		if request.Session != nil {
			q.Set("session", *request.Session)
			q.Set("ack", strconv.FormatUint(*request.Ack, 10))
		}
		return k.TryDialSocket("/v1/ws?" + q.Encode())
	}}
}

// The daemon reads pongs while a write to their client is blocked. A client answers a
// ping before it reads on.
func TestPongsAreReadDuringLongWrites(t *testing.T) {
	k := newKit(t, lanetest.Settings{})
	s := k.Connect(wire.Start{Topic: "a"})
	s.Hello()
	for range 3 {
		k.Publish("a", `1`) // the receiver holds one; the connection buffers none
	}
	require.NoError(t, s.Conn.SetWriteDeadline(time.Now().Add(time.Minute)))
	for range 50 {
		require.NoError(t, ws.WriteFrame(s.Conn, ws.MaskFrame(ws.NewPongFrame(nil))))
	}
	s.Close()
}
