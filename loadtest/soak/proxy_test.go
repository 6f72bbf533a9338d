package soak

import (
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An echo answers what it is sent, until that ends.
func newEcho(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		all.Wait()
	})
	return listener.Addr().String()
}

func newTestProxy(t *testing.T, f fate) *proxy {
	upstream := newEcho(t)
	p, err := newProxy(1, func(*rand.Rand) fate { return f })
	require.NoError(t, err)
	t.Cleanup(p.close)
	p.lead(upstream)
	return p
}

func connect(t *testing.T, p *proxy) *net.TCPConn {
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn.(*net.TCPConn)
}

// exchange sends text and the end, and returns what comes back until it ends.
func exchange(conn *net.TCPConn, text string) (string, error) {
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	_ = conn.CloseWrite()
	got, err := io.ReadAll(conn)
	return string(got), err
}

var long = strings.Repeat("0123456789", 10_000)

func TestWhatNothingBefallsPassesWhole(t *testing.T) {
	p := newTestProxy(t, fate{})
	got, err := exchange(connect(t, p), long)
	require.NoError(t, err)
	require.Equal(t, long, got)
	require.Zero(t, p.cuts())
}

// A connection is cut at the byte that its fate says, in the direction it says.
func TestConnectionsAreCutAtTheirByte(t *testing.T) {
	for _, what := range []misfortune{closed, reset, halfClosed, stalled} {
		for _, toward := range []direction{up, down} {
			t.Run(misfortuneNames[what]+map[direction]string{up: " up", down: " down"}[toward], func(t *testing.T) {
				lasts := time.Millisecond
				if what == halfClosed { // longer than the other half takes
					lasts = 10 * time.Second
				}
				p := newTestProxy(t, fate{what: what, toward: toward, after: 4321, lasts: lasts})
				got, err := exchange(connect(t, p), long)
				require.LessOrEqual(t, len(got), 4321)
				require.True(t, strings.HasPrefix(long, got))
				if toward == down && what == halfClosed {
					require.NoError(t, err)
					require.Len(t, got, 4321)
				}
				require.EqualValues(t, 1, p.cuts())
			})
		}
	}
}

func TestWhatIsDelayedOrTrickledArrivesWhole(t *testing.T) {
	for _, what := range []misfortune{delayed, trickled} {
		t.Run(misfortuneNames[what], func(t *testing.T) {
			p := newTestProxy(t, fate{what: what, toward: down, after: 17, lasts: time.Millisecond, narrow: true})
			got, err := exchange(connect(t, p), long)
			require.NoError(t, err)
			require.True(t, long == got, "%d bytes came back of %d", len(got), len(long))
			require.EqualValues(t, 1, p.count[what].Load())
		})
	}
}

// Once all is calm, who is to be cut is cut at once, and nobody after.
func TestCalmEndsMisfortune(t *testing.T) {
	p := newTestProxy(t, fate{what: stalled, toward: down, after: 3, lasts: time.Hour})
	conn := connect(t, p)
	_, err := conn.Write([]byte("01234"))
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 3))
	require.NoError(t, err)
	p.calm()
	p.calm()
	_, err = io.ReadAll(conn)
	_ = err // by a reset or not
	got, err := exchange(connect(t, p), long)
	require.NoError(t, err)
	require.True(t, long == got)
}

func TestWithoutADaemonClientsAreRefused(t *testing.T) {
	p := newTestProxy(t, fate{})
	p.lead("")
	got, _ := exchange(connect(t, p), "x")
	require.Empty(t, got)
}

// The same seed draws the same fates, and there is one of each.
func TestFatesAreDrawnBySeed(t *testing.T) {
	draw := func() (all []fate) {
		for n := range uint64(500) {
			all = append(all, drawFate(rand.New(rand.NewPCG(5, n))))
		}
		return all
	}
	fates := draw()
	require.Equal(t, fates, draw())
	seen, early := map[misfortune]bool{}, 0
	for _, f := range fates {
		seen[f.what] = true
		if f.after < 200 {
			early++
		}
	}
	require.Len(t, seen, int(misfortunes))
	require.Positive(t, early, "within a head")
}
