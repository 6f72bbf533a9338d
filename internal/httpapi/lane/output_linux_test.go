package lane

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A client reads a part of an answer that did not fit. What is written next comes
// after the rest of it, though there is room now; and no memory that is kept is
// used for others' answers.
func TestWhatIsKeptComesFirst(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer closeFD(pair[0])
	defer closeFD(pair[1])
	o := &output{lane: &Lane{metrics: metrics.New("test")}, fd: pair[0]}

	var want, got []byte
	for o.kept == nil {
		s := takeScratch()
		s.bytes = append(s.bytes, bytes.Repeat([]byte{byte(len(want))}, 30_001)...)
		want = append(want, s.bytes...)
		require.NoError(t, o.writeScratch(s))
	}
	for range 16 { // others' answers
		s := takeScratch()
		s.bytes = append(s.bytes, bytes.Repeat([]byte("x"), 30_001)...)
		defer scratches.Put(s)
	}
	got = appendAll(t, got, pair[1])
	require.NoError(t, o.write([]byte("next")))
	want = append(want, "next"...)
	for o.Kept() {
		o.flush()
		got = appendAll(t, got, pair[1])
	}
	require.False(t, o.failed)
	require.True(t, bytes.Equal(want, got))
}

// appendAll appends what fd has to read now.
func appendAll(t *testing.T, dst []byte, fd int) []byte {
	t.Helper()
	var b [4096]byte
	for {
		n, errno := rawRead(fd, b[:])
		if errno == syscall.EAGAIN {
			return dst
		}
		require.Zero(t, errno)
		dst = append(dst, b[:n]...)
	}
}
