package httpapi

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A WebSocket that answers no ping times out, off the lane too.
func TestASilentWebSocketTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		d := ws.Dialer{NetDial: func(context.Context, string, string) (net.Conn, error) { return k.Dial() }}
		conn, buffered, _, err := d.Dial(context.Background(), "ws://pubsubd/v1/ws?topic=a")
		require.NoError(t, err)
		defer conn.Close()
		begun := time.Now()
		if buffered != nil {
			_, err = io.Copy(io.Discard, buffered)
		} else {
			_, err = io.Copy(io.Discard, conn)
		}
		require.NoError(t, err)
		require.Equal(t, k.Parts.Silence(), time.Since(begun))
	})
}

// The daemon pings a busy client between messages. The client stays connected while it
// answers.
func TestABusyWebSocketStaysOpenWhileItAnswersPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Connect(wire.Start{Topic: "a"})
		defer s.Close()
		s.Hello()
		for range 60 {
			time.Sleep(5 * time.Second)
			k.Publish("a", "1")
			_, err := s.Next()
			require.NoError(t, err)
		}
	})
}
