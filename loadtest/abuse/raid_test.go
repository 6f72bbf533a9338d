package main

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// closer is a server that ends every connection at once, having said something.
func closer(t *testing.T, says string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(says))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func TestWhoIsCutOffComesAgain(t *testing.T) {
	a := attack{name: "hold", sources: 2, pace: 200, crowd: 3, run: func(ctx context.Context, r *raid) error {
		r.stand(ctx, func(int) stance { return stance{nag: []byte("x")} })
		return nil
	}}
	found := carryOut(t.Context(), a, closer(t, "HTTP/1.1 503 Service Unavailable\r\n\r\n"), 500*time.Millisecond)
	require.Greater(t, found.Connections, int64(a.crowd))
	require.Positive(t, found.Cut)
	require.Positive(t, found.Answers["503"])
	require.LessOrEqual(t, found.MostOpen, a.crowd)
}

func TestWhoGetsNoAnswerIsCounted(t *testing.T) {
	a := attack{name: "ask", sources: 1, pace: 100, crowd: 2, run: func(ctx context.Context, r *raid) error {
		r.request(ctx, func(int, int) []byte { return get("/") })
		return nil
	}}
	found := carryOut(t.Context(), a, closer(t, ""), 300*time.Millisecond)
	require.Positive(t, found.Cut)
	require.Empty(t, found.Answers)
}

func TestAttackersHaveAddressesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for n := range 600 {
		address := sourceAddress(n)
		seen[address.String()] = true
		require.True(t, address.IP.IsLoopback())
		require.NotEqual(t, byte(1), address.IP.To4()[2], "those are the victims'")
	}
	require.Len(t, seen, 600)
}
