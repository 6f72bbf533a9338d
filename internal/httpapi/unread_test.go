package httpapi

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Bytes that a client has not read count against its address until it reads them. Bytes
// of messages count as queued instead.
func TestUnreadBytesAreCounted(t *testing.T) {
	large := `"` + strings.Repeat("x", 50_000) + `"`
	bodies := func(i int) string { // two large messages, and many topics for a long list
		if i < 2 {
			return large
		}
		return "1"
	}
	for _, tt := range []struct {
		path string
		own  bool
	}{
		{"/v1/topics?limit=1000", true},
		{"/v1/openapi.yaml", true},
		{"/v1/topics/a.0/messages", false},
		{"/v1/poll?topic=a.0@oldest", false},
		{"/v1/poll?topic=a.0@oldest&mode=stream", false},
		{"/v1/sse?topic=a.0@oldest", false},
		{"/v1/sse?topic=a.0@oldest&topic=a.1@oldest", true}, // composed for this client
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{})
			account := k.api.Polls.Memory()
			for i := range 200 {
				k.wantOK(fmt.Sprintf("/v1/topics/a.%d/messages", i), bodies(i), lanetest.JSONType)
			}
			conn := k.dialFrom(1)
			_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", tt.path)
			require.NoError(t, err)
			synctest.Wait()
			from := k.api.Limiter.WhoAt(netip.MustParseAddr("10.0.0.1")).Client()
			require.Equal(t, tt.own, account.Of(memory.Unread) > 4000, tt.path)
			if tt.own {
				require.True(t, from.Holds(), tt.path)
			} else {
				require.Greater(t, account.Of(memory.Queued), int64(40_000), "its message is pinned: %s", tt.path)
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			synctest.Wait()
			require.Zero(t, account.Of(memory.Unread), tt.path)
			require.Zero(t, account.Of(memory.Queued), tt.path)
			require.False(t, from.Holds())
			conn.Close()
		})
	}
}

// While memory is short, lists and histories are refused, and polls are not.
func TestListsAreRefusedWhileMemoryIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{MemoryBudget: 32 << 20}})
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		k.api.Polls.Memory().Press(memory.High)
		for _, path := range []string{"/v1/topics", "/v1/topics/a/messages"} {
			p := k.WantProblem(wire.CodeOverloaded, "GET", path, "")
			require.Contains(t, p.Remedy, "memory.budget")
		}
		status, _ := k.Get("GET", "/v1/poll?topic=a@oldest", "")
		require.Equal(t, 200, status)
		k.api.Polls.Memory().Press(memory.Calm)
		status, _ = k.Get("GET", "/v1/topics", "")
		require.Equal(t, 200, status)
	})
}
