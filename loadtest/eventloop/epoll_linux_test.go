package eventloop_test

import (
	"context"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/eventloop"
)

// A loop that was interrupted writes nothing once it is closed: its descriptors are
// somebody else's then.
func TestAnInterruptedLoopLeavesDescriptorsAlone(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	var from, to []*os.File
	for range 200 {
		l, err := eventloop.New(eventloop.Config{Target: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}})
		require.NoError(t, err)
		require.ErrorIs(t, l.Run(done, sleeping{}), context.Canceled)
		l.Close()
		r, w, err := os.Pipe() // on the same descriptors
		require.NoError(t, err)
		from, to = append(from, r), append(to, w)
	}
	for i := range from {
		require.NoError(t, to[i].Close())
		text, err := io.ReadAll(from[i])
		require.NoError(t, err)
		require.Empty(t, text)
		require.NoError(t, from[i].Close())
	}
}
