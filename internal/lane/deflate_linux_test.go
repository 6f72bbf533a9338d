package lane_test

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/gobwas/httphead"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsflate"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// dialDeflating opens a WebSocket that negotiates permessage-deflate.
func (k *kit) dialDeflating(path string) (net.Conn, io.Reader) {
	k.Helper()
	d := ws.Dialer{
		NetDial:    func(context.Context, string, string) (net.Conn, error) { return k.Dial() },
		Extensions: []httphead.Option{wsflate.Parameters{ServerNoContextTakeover: true, ClientNoContextTakeover: true}.Option()},
	}
	conn, buffered, hs, err := d.Dial(context.Background(), "ws://pubsubd"+path)
	require.NoError(k, err)
	require.Len(k, hs.Extensions, 1, "compression is negotiated")
	if buffered != nil {
		return conn, buffered
	}
	return conn, conn
}

// inflated reads one message, inflates it if necessary, and reports whether it was
// deflated.
func inflated(t *testing.T, r io.Reader) (string, bool) {
	t.Helper()
	frame := socketFrame(t, r)
	deflated, err := wsflate.IsCompressed(frame.Header)
	require.NoError(t, err)
	if !deflated {
		return string(frame.Payload), false
	}
	const tail = "\x00\x00\xff\xff\x01\x00\x00\xff\xff"
	text, err := io.ReadAll(flate.NewReader(io.MultiReader(bytes.NewReader(frame.Payload), strings.NewReader(tail))))
	require.NoError(t, err)
	return string(text), true
}

// The daemon deflates a long message once for all WebSockets and polls. It sends short
// messages as they are. Commands may be deflated too.
func TestMessagesOfAWebSocketAreDeflated(t *testing.T) {
	for _, way := range []lane.Way{lane.Off, lane.HandOff} {
		k := newLaneKit(t, way)
		conn, r := k.dialDeflating("/v1/ws?topic=a")
		_, deflated := inflated(t, r) // hello
		require.False(t, deflated)
		long := `"` + strings.Repeat("deflated ", 500) + `"`
		for _, data := range []string{"1", long, "2", long} {
			k.Publish("a", data)
			text, deflated := inflated(t, r)
			require.Contains(t, text, `"data":`+data)
			require.Equal(t, data == long, deflated, way)
		}
		require.Less(t, k.Counted("pubsubd_compressed_bytes_total", "after"), k.Counted("pubsubd_compressed_bytes_total", "before")/10)

		command, err := json.Marshal(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("a", long)})
		require.NoError(t, err)
		frame, err := wsflate.CompressFrame(ws.NewTextFrame(command))
		require.NoError(t, err)
		require.NoError(t, ws.WriteFrame(conn, ws.MaskFrameInPlace(frame)))
		text, _ := inflated(t, r)
		require.Contains(t, text, `{"reply":{"ref":1,"position":"a@`)
		text, deflated = inflated(t, r)
		require.Contains(t, text, `"data":`+long)
		require.True(t, deflated)

		bomb, err := wsflate.CompressFrame(ws.NewTextFrame(bytes.Repeat([]byte(" "), 2<<20)))
		require.NoError(t, err)
		require.NoError(t, ws.WriteFrame(conn, ws.MaskFrameInPlace(bomb)))
		text, _ = inflated(t, r)
		require.Contains(t, text, string(wire.CodeMessageTooLarge))
		conn.Close()
	}
}

// socketFrame reads one WebSocket frame of less than 1 MiB.
func socketFrame(t *testing.T, r io.Reader) ws.Frame {
	t.Helper()
	head, err := ws.ReadHeader(r)
	require.NoError(t, err)
	require.Less(t, head.Length, int64(1<<20))
	frame := ws.Frame{Header: head, Payload: make([]byte, head.Length)}
	_, err = io.ReadFull(r, frame.Payload)
	require.NoError(t, err)
	return frame
}
