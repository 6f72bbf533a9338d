package frame

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The head of a WebSocket frame states the length in one of three sizes (RFC 6455,
// section 5.2).
func TestAWebSocketFrameStatesItsLength(t *testing.T) {
	empty := &wire.Message{Position: someTopic, Data: []byte(`""`)}
	around := len(New(empty, time.Time{}, 0, nil).Bytes(NDJSON))
	for _, length := range []int{125, 126, 127, 1<<16 - 1, 1 << 16} {
		m := *empty
		m.Data = strconv.AppendQuote(nil, string(bytes.Repeat([]byte("x"), length-around)))
		b := New(&m, time.Time{}, 0, nil).Bytes(NDJSON.OnSocket())
		head, err := ws.ReadHeader(bytes.NewReader(b))
		require.NoError(t, err)
		require.EqualValues(t, length, head.Length)
		require.True(t, head.Fin)
		require.Equal(t, ws.OpText, head.OpCode)
		require.Len(t, b, ws.HeaderSize(head)+length, "nothing follows")
		require.Equal(t, byte('{'), b[ws.HeaderSize(head)])
	}
}
