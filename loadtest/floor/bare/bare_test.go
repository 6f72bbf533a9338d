package bare

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func start(t *testing.T) string {
	t.Helper()
	s, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- s.Serve() }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-ended)
	})
	return s.Addr().String()
}

func dial(t *testing.T, address, first string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, first)
	require.NoError(t, err)
	return conn
}

func wantRead(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func load(t *testing.T, address string, number byte, frames ...string) {
	t.Helper()
	all := make([][]byte, len(frames))
	for i, f := range frames {
		all[i] = []byte(f)
	}
	wantRead(t, dial(t, address, string(AppendLoad(nil, number, all))), "L")
}

func TestFramesComeInOrderThroughTheChannel(t *testing.T) {
	address := start(t)
	var frames []string
	all := ""
	for i := range 5 * buffered {
		frames = append(frames, fmt.Sprintf("frame %d ", i))
		all += frames[i]
	}
	load(t, address, 7, frames...)
	for range 2 { // they are kept
		wantRead(t, dial(t, address, "W\x07"), all)
	}
}

func TestEachRequestIsAnsweredWithTheNextFrame(t *testing.T) {
	address := start(t)
	load(t, address, 1, "one", "two", "three")
	conn := dial(t, address, "A\x01GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	wantRead(t, conn, "one")
	for _, part := range []string{"GET / HTTP/1.1\r", "\n\r", "\n"} {
		_, err := io.WriteString(conn, part)
		require.NoError(t, err)
	}
	wantRead(t, conn, "two")
}

// A client that goes away, or a stop, leaves nobody behind: goleak looks.
func TestAClientMayLeaveAtAnyTime(t *testing.T) {
	address := start(t)
	load(t, address, 0, make([]string, 100*buffered)...)
	for _, first := range []string{"", "W", "W\x00", "A\x00GET", "L\x00\x00\x00\x00\x09", "?\x00", "L\x00\xff\xff\xff\xff\xff\xff\xff\xff"} {
		dial(t, address, first).Close()
	}
	dial(t, address, "W\x00") // and one stays
}

// How many frames of a load test's message a second go through the channel.
func BenchmarkWrite(b *testing.B) {
	s, err := Listen("127.0.0.1:0")
	require.NoError(b, err)
	ended := make(chan error)
	go func() { ended <- s.Serve() }()
	defer func() {
		s.Stop()
		require.NoError(b, <-ended)
	}()
	const frames, size = 200_000, 245
	for range frames {
		s.frames[0] = append(s.frames[0], make([]byte, size))
	}
	buffer := make([]byte, 256<<10)
	for b.Loop() {
		conn, err := net.Dial("tcp", s.Addr().String())
		require.NoError(b, err)
		_, err = conn.Write([]byte{Write, 0})
		require.NoError(b, err)
		for left := frames * size; left > 0; {
			n, err := conn.Read(buffer)
			require.NoError(b, err)
			left -= n
		}
		conn.Close()
	}
	b.ReportMetric(float64(b.N)*frames/b.Elapsed().Seconds(), "frames/s")
}
