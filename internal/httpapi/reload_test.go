package httpapi

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// A reload changes the write timeout. The daemon disconnects a client that does not read
// its answer in that time.
func TestAReloadedWriteTimeoutEndsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		k.Parts.Polls.Reload(transport.Config{WriteTimeout: time.Second}, k.Parts.Limits)
		conn, err := k.HTTP.Transport.(*http.Transport).DialContext(t.Context(), "", "")
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /v1/topics HTTP/1.1\r\nHost: h\r\n\r\n")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		n, err := conn.Read(make([]byte, 1))
		require.Zero(t, n)
		require.ErrorIs(t, err, io.EOF)
	})
}
