package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A watch is a wheel with slots of a second, and one session in it.
type watch struct {
	*testing.T
	m     *wheel
	s     *Session
	begun time.Time
	next  time.Duration // when the next visit is due, after begun
	then  func()        // called by a visit
}

func newWatch(t *testing.T) *watch {
	begun := time.Now()
	w := &watch{T: t, m: newWheel(maxAhead*time.Second, begun), s: &Session{id: "a"}, begun: begun, then: func() {}}
	w.m.put(w.s)
	return w
}

// visits runs visitDue at the given time and returns how often it visits the session.
func (w *watch) visits(at time.Duration) int {
	n := 0
	w.m.visitDue(w.begun.Add(at), func(*Session) time.Time {
		n++
		w.then()
		return w.begun.Add(w.next)
	})
	return n
}

func TestASessionIsVisitedWhenItIsDue(t *testing.T) {
	w := newWatch(t)
	w.next = 10 * time.Second
	require.Equal(t, 1, w.visits(0), "as soon as can be")
	require.Zero(t, w.visits(9*time.Second))
	require.Equal(t, 1, w.visits(10*time.Second))
	require.Equal(t, 1, w.visits(10*time.Second), "it is still 10 s")
	w.next = time.Hour
	require.Equal(t, 1, w.visits(11*time.Second))
	require.Zero(t, w.visits((11+maxAhead-1)*time.Second))
	require.Equal(t, 1, w.visits((11+maxAhead)*time.Second), "no later than each must be")
	require.Equal(t, 1, w.visits(24*time.Hour), "once, however long no turn came")
}

func TestAVisitCanMoveForward(t *testing.T) {
	w := newWatch(t)
	w.next = time.Minute
	require.Equal(t, 1, w.visits(0))
	w.m.visitBy(w.s, w.begun.Add(20*time.Second))
	w.m.visitBy(w.s, w.begun.Add(30*time.Second))
	require.Zero(t, w.visits(19*time.Second))
	w.then = func() { w.m.visitBy(w.s, w.begun.Add(25*time.Second)) } // during the visit
	require.Equal(t, 1, w.visits(20*time.Second))
	require.Zero(t, w.visits(24*time.Second))
	w.then = func() { w.m.visitBy(w.s, w.begun.Add(50*time.Second)) } // during a visit that returns an earlier time
	w.next = 30 * time.Second
	require.Equal(t, 1, w.visits(25*time.Second))
	require.Zero(t, w.visits(29*time.Second))
	require.Equal(t, 1, w.visits(30*time.Second))
}

func TestARemovedSessionIsNotVisited(t *testing.T) {
	w := newWatch(t)
	w.m.remove(w.s)
	w.m.visitBy(w.s, w.begun)
	require.Zero(t, w.visits(time.Hour))
	w.m.put(w.s)
	w.then = func() { w.m.remove(w.s) }
	require.Equal(t, 1, w.visits(2*time.Hour))
	require.Zero(t, w.visits(4*time.Hour))
}
