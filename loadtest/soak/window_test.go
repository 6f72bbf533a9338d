package soak

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAFrameThatComesAgainIsTheSame(t *testing.T) {
	message := func(offset string) frame { return frame{position: at(offset)} }
	gap := func(reason wire.GapReason, after, position string) frame {
		return frame{gap: reason, after: at(after), position: at(position)}
	}
	var w window
	take := func(n uint64, f frame, want arrival) {
		t.Helper()
		got, err := w.take(n, f)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	take(1, message("1"), isNew)
	take(2, message("2"), isNew)
	take(3, gap(wire.GapSlow, "2", "5"), isNew)
	require.EqualValues(t, 3, w.had())
	w.ack(1)
	require.EqualValues(t, 3, w.had())
	take(2, message("2"), again)
	take(3, gap(wire.GapSlow, "2", "5"), again)
	take(4, message("6"), isNew)
	take(2, gap(wire.GapEvicted, "1", "2"), gone)
	take(2, gap(wire.GapEvicted, "1", "2"), again)
	for name, f := range map[string]frame{
		"a gap is a message again":    message("2"),
		"a gap has changed":           gap(wire.GapExpired, "1", "2"),
		"a gap goes elsewhere":        gap(wire.GapEvicted, "1", "3"),
		"a gap begins somewhere else": gap(wire.GapEvicted, "0", "2"),
	} {
		_, err := w.take(2, f)
		require.Error(t, err, name)
	}
	for name, f := range map[string]frame{
		"another message":        message("7"),
		"a gap over another one": gap(wire.GapEvicted, "5", "7"),
		"a restart":              gap(wire.GapRestarted, "5", "6"),
	} {
		_, err := w.take(4, f)
		require.Error(t, err, name)
	}
	w.ack(4)
	take(5, message("7"), isNew)
	for _, n := range []uint64{4, 7} {
		_, err := w.take(n, message("8"))
		require.Error(t, err, "frame %d is acked, or too far", n)
	}
}
