package lane

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A descriptor is closed and used anew while what happened to its first owner is
// under way: that is nobody's any more.
func TestWhatHappenedToAnEarlierOwnerIsIgnored(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer closeFD(pair[0])
	defer closeFD(pair[1])
	r := new(reader)
	defer r.close()
	earlier := &conn{output: output{fd: pair[0]}}
	owner := &conn{output: output{fd: pair[0]}}

	require.NoError(t, r.join(earlier))
	wantFound(t, r, earlier, earlier)
	r.leave(earlier)
	wantFound(t, r, earlier, nil)

	require.NoError(t, r.join(owner))
	wantFound(t, r, earlier, nil)
	wantFound(t, r, owner, owner)

	r.leave(earlier) // again, late: it is not his to leave
	wantFound(t, r, owner, owner)
	r.leave(owner)
	wantFound(t, r, owner, nil)
}

// wantFound says to whom an event happens that came for c.
func wantFound(t *testing.T, r *reader, c, want *conn) {
	t.Helper()
	events := []syscall.EpollEvent{{Events: syscall.EPOLLIN, Fd: int32(c.fd), Pad: c.number}}
	found := []*conn{c}
	r.find(events, found)
	require.Same(t, want, found[0])
}

// Each event of one taking is its own connection's.
func TestEachOfManyEventsFindsItsOwner(t *testing.T) {
	r := new(reader)
	var events []syscall.EpollEvent
	var all, want []*conn
	for range 6 {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer closeFD(pair[0])
		defer closeFD(pair[1])
		c := &conn{output: output{fd: pair[0]}}
		require.NoError(t, r.join(c))
		all = append(all, c)
		events = append(events,
			syscall.EpollEvent{Fd: int32(c.fd), Pad: c.number - 1},
			syscall.EpollEvent{Fd: int32(c.fd), Pad: c.number})
		want = append(want, nil, c)
	}
	found := make([]*conn, len(want))
	r.find(events, found)
	for i := range want {
		require.Same(t, want[i], found[i], "event %d", i)
	}
	for _, c := range all { // before the descriptors are closed
		r.leave(c)
	}
	r.close()
}

// A connection may come just as the lane closes: an upgrade, once it was answered.
func TestNobodyJoinsWhatIsClosed(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer closeFD(pair[0])
	defer closeFD(pair[1])
	r := new(reader)
	r.close()
	c := &conn{output: output{fd: pair[0]}}
	require.ErrorIs(t, r.join(c), net.ErrClosed)
	r.leave(c) // as who could not join does
	r.running.Wait()
}
