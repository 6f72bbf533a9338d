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

// carryOutUntil carries an attack out, for longer each time, until it has found what
// is wanted: how much an attack gets done in a time is up to the machine.
func carryOutUntil(t *testing.T, a attack, target string, wanted func(Raid) bool) Raid {
	t.Helper()
	for lasts := 400 * time.Millisecond; ; lasts *= 2 {
		found := carryOut(t.Context(), a, target, lasts)
		if wanted(found) {
			return found
		}
		require.Less(t, lasts, 10*time.Second, "%+v", found)
	}
}

func hasBegun(r Raid) bool { return r.NotBegun == "" && r.Operations > 0 && r.Connections > 0 }

func TestWhoIsCutOffComesAgain(t *testing.T) {
	a := attack{name: "hold", sources: 2, pace: 200, crowd: 3, run: func(ctx context.Context, r *raid) error {
		r.stand(ctx, func(int) stance { return stance{nag: []byte("x")} })
		return nil
	}}
	found := carryOutUntil(t, a, closer(t, "HTTP/1.1 503 Service Unavailable\r\n\r\n"), func(r Raid) bool {
		return r.Connections > int64(a.crowd) && r.Cut > 0 && r.Answers["503"] > 0
	})
	require.LessOrEqual(t, found.MostOpen, a.crowd)
}

func TestWhoGetsNoAnswerIsCounted(t *testing.T) {
	a := attack{name: "ask", sources: 1, pace: 100, crowd: 2, run: func(ctx context.Context, r *raid) error {
		r.request(ctx, func(int, int) []byte { return get("/") })
		return nil
	}}
	found := carryOutUntil(t, a, closer(t, ""), func(r Raid) bool { return r.Cut > 0 })
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
