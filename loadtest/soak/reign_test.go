package soak

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every ending has its turn, and with a state a kill follows a kept epoch.
func TestABagHoldsEveryEnding(t *testing.T) {
	for seed := range uint64(50) {
		k := &reign{rng: rand.New(rand.NewPCG(seed, 0))}
		require.ElementsMatch(t, []ending{killed, planned}, k.fillBag())
		k.state = true
		bag := k.fillBag()
		require.ElementsMatch(t, []ending{kept, kept, killed, planned}, bag)
		require.Equal(t, kept, bag[slices.Index(bag, killed)-1])
		k.state, k.store = false, "1s"
		require.ElementsMatch(t, []ending{killed, killed, killed, stillborn, kept}, k.fillBag(), "nothing ends the epoch")
	}
}

// Settings are drawn by seed, and are such as serve understands.
func TestEnvironmentsAreDrawnBySeed(t *testing.T) {
	lanes := map[string]bool{}
	for seed := range uint64(50) {
		e := drawEnvironment(rand.New(rand.NewPCG(seed, 0)), false)
		require.Equal(t, e, drawEnvironment(rand.New(rand.NewPCG(seed, 0)), false))
		require.GreaterOrEqual(t, e.Bytes, largestMessage)
		lanes[e.lane] = true
		require.GreaterOrEqual(t, drawEnvironment(rand.New(rand.NewPCG(seed, 0)), true).Age, time.Hour)
	}
	require.Len(t, lanes, 2)
}
