package soak

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/child"
)

// Each port leads to the daemon's own, and nowhere while there is no daemon.
func TestEachPortLeadsToItsOwn(t *testing.T) {
	p, err := newPorts(1)
	require.NoError(t, err)
	defer p.close()
	p.calm()
	answer := func(from *proxy, through string) string {
		conn, err := net.Dial("tcp", from.address())
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, _ = io.WriteString(conn, through) // which may be closed already
		_ = conn.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
	p.lead(child.Addresses{TCP: newEcho(t)})
	require.Equal(t, "bare", answer(p.bare, "bare"))
	require.Empty(t, answer(p.http, "HTTP"))
	p.lead(child.Addresses{Public: newEcho(t)})
	require.Equal(t, "HTTP", answer(p.http, "HTTP"))
	require.Empty(t, answer(p.bare, "bare"))
}

// There are clients without HTTP in the crowd.
func TestTheCrowdIsOnBareConnectionsToo(t *testing.T) {
	names := make([]string, subscriberForms)
	for form := range names {
		names[form] = formName(form)
	}
	require.Contains(t, names, "Go client, tcp")
	require.Contains(t, (&environment{}).flags(), "--listen-tcp=127.0.0.1:0")
}
