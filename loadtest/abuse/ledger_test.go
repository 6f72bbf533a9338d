package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryMessageOnceAndInOrder(t *testing.T) {
	l := newLedger(1)
	l.begins(0, 0)
	for n := 1; n <= 3; n++ {
		require.True(t, l.comes(0, n))
	}
	require.Zero(t, l.missing(1, 3))
	require.Zero(t, l.take())
}

func TestAMessageThatIsPassedOverIsLost(t *testing.T) {
	l := newLedger(1)
	l.begins(0, 0)
	l.comes(0, 1)
	require.True(t, l.comes(0, 4))
	require.Equal(t, Deliveries{Lost: 2}, l.take())
	require.Zero(t, l.take(), "it is counted once")
	require.False(t, l.comes(0, 3), "too late")
	require.Equal(t, Deliveries{Duplicates: 1}, l.take())
}

func TestAMessageThatComesAgainIsADuplicate(t *testing.T) {
	l := newLedger(1)
	l.begins(0, 0)
	l.comes(0, 1)
	require.False(t, l.comes(0, 1))
	require.Equal(t, Deliveries{Duplicates: 1}, l.take())
}

func TestTheFirstMessagesAreExpectedToo(t *testing.T) {
	l := newLedger(2)
	l.begins(0, 5)
	l.begins(1, 5)
	require.True(t, l.comes(0, 5), "it was under way")
	require.True(t, l.comes(0, 6))
	require.True(t, l.comes(1, 8))
	require.Equal(t, Deliveries{Lost: 2}, l.take(), "6 and 7 were published after it had subscribed")
}

func TestWhatHasNotComeIsMissing(t *testing.T) {
	l := newLedger(3)
	l.begins(0, 0)
	l.begins(1, 0)
	l.begins(2, 8)
	l.comes(0, 1)
	require.Equal(t, int64(9+10+2), l.missing(1, 10))
	require.Equal(t, int64(3+3+2), l.missing(8, 10), "of a window, what belongs to it")
	require.True(t, l.leaves(1))
	require.False(t, l.leaves(1))
	require.Equal(t, int64(3+2), l.missing(8, 10), "who is gone is another matter")
}
