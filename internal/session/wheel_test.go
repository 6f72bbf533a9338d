package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A watch is a map of sessions with slots of a second, and one session in it.
type watch struct {
	*testing.T
	m     *wheel
	s     *Session
	begun time.Time
	next  time.Duration // what a look says, from the beginning
	then  func()        // called by a look
}

func newWatch(t *testing.T) *watch {
	begun := time.Now()
	w := &watch{T: t, m: newWheel(maxAhead*time.Second, begun), s: &Session{id: "a"}, begun: begun, then: func() {}}
	w.m.put(w.s)
	return w
}

// looks is how often a turn at the given time looks at the session.
func (w *watch) looks(at time.Duration) int {
	n := 0
	w.m.visitDue(w.begun.Add(at), func(*Session) time.Time {
		n++
		w.then()
		return w.begun.Add(w.next)
	})
	return n
}

func TestASessionIsLookedAtWhenItsTimeComes(t *testing.T) {
	w := newWatch(t)
	w.next = 10 * time.Second
	require.Equal(t, 1, w.looks(0), "as soon as can be")
	require.Zero(t, w.looks(9*time.Second))
	require.Equal(t, 1, w.looks(10*time.Second))
	require.Equal(t, 1, w.looks(10*time.Second), "it is still 10 s")
	w.next = time.Hour
	require.Equal(t, 1, w.looks(11*time.Second))
	require.Zero(t, w.looks((11+maxAhead-1)*time.Second))
	require.Equal(t, 1, w.looks((11+maxAhead)*time.Second), "no later than each must be")
	require.Equal(t, 1, w.looks(24*time.Hour), "once, however long no turn came")
}

func TestASessionMayBeLookedAtSooner(t *testing.T) {
	w := newWatch(t)
	w.next = time.Minute
	require.Equal(t, 1, w.looks(0))
	w.m.visitBy(w.s, w.begun.Add(20*time.Second))
	w.m.visitBy(w.s, w.begun.Add(30*time.Second))
	require.Zero(t, w.looks(19*time.Second))
	w.then = func() { w.m.visitBy(w.s, w.begun.Add(25*time.Second)) } // while it is looked at
	require.Equal(t, 1, w.looks(20*time.Second))
	require.Zero(t, w.looks(24*time.Second))
	require.Equal(t, 1, w.looks(25*time.Second))
}

func TestASessionThatWasRemovedIsNotLookedAt(t *testing.T) {
	w := newWatch(t)
	w.m.remove(w.s)
	w.m.visitBy(w.s, w.begun)
	require.Zero(t, w.looks(time.Hour))
	w.m.put(w.s)
	w.then = func() { w.m.remove(w.s) }
	require.Equal(t, 1, w.looks(2*time.Hour))
	require.Zero(t, w.looks(4*time.Hour))
}
