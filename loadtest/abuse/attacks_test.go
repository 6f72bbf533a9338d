package main

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// openFiles is what many machines allow a process.
const openFiles = 20_000

func TestAttacksAreBounded(t *testing.T) {
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	names := map[string]bool{}
	addresses := 0
	for _, a := range attacks() {
		require.False(t, names[a.name], a.name)
		names[a.name] = true
		require.Positive(t, a.pace, a.name)
		require.LessOrEqual(t, a.pace, 5000, a.name)
		require.Less(t, a.crowd+o.count, openFiles, "%s: the daemon has the victims, too", a.name)
		require.Equal(t, addresses, a.first, "%s has addresses of its own", a.name)
		addresses += a.sources + besideSources
	}
	require.Less(t, addresses, 4*254)

	live := time.Duration(len(names)) * o.lasts
	require.GreaterOrEqual(t, live, 3*time.Minute)
	require.Less(t, 2*(live+time.Duration(len(names))*o.settle), 15*time.Minute)
}

func TestASmallAttackStillIsOne(t *testing.T) {
	for _, a := range attacks() {
		small, ok := attackNamed(a.name, true)
		require.True(t, ok)
		require.Positive(t, small.sources)
		require.Positive(t, small.pace)
		require.Positive(t, small.crowd)
		require.Less(t, small.pace, a.pace)
	}
	_, ok := attackNamed("nothing", false)
	require.False(t, ok)
}

// What an attacker gets from a sink is what it would get without any limit: each
// attack has to come up to its pace there, or live figures would say nothing.
func TestEveryAttackIsCarriedOutOnASink(t *testing.T) {
	s := runSink(t)
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			found := carryOutUntil(t, a.small(), s.address(), hasBegun)
			require.Zero(t, found.NotConnected)
			require.Zero(t, found.Unanswered)
		})
	}
}

func TestAnAttackThatCannotBeginSaysWhy(t *testing.T) {
	a, ok := attackNamed("guesses", true)
	require.True(t, ok)
	s := runSink(t)
	a.run = halfOpen
	carryOutUntil(t, a, s.address(), hasBegun)
	require.Contains(t, carryOut(t.Context(), a, "127.0.0.1:1", 200*time.Millisecond).NotBegun, "could not begin: ")
}

func TestAGuessLooksLikeAnIDAndIsNone(t *testing.T) {
	const known = "n1-0aZ9_bcdEF"
	seen := map[string]bool{}
	for range 100 {
		g := guess(known)
		require.Regexp(t, `^[a-z][0-9]-[0-9][a-z][A-Z][0-9]_[a-z]{3}[A-Z]{2}$`, g)
		seen[g] = true
	}
	require.Greater(t, len(seen), 90)
}
