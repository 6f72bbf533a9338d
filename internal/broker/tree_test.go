package broker

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The tree finds the patterns that wire.Matches finds, in the order of wire.MoreSpecific.
// Removed names leave no branches.
func TestATreeFindsTheMostSpecificPatternFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	name := func(tokens ...string) string {
		parts := make([]string, 1+random.IntN(4))
		for i := range parts {
			parts[i] = tokens[random.IntN(len(tokens))]
		}
		return strings.Join(parts, ".")
	}
	var patterns tree[string]
	have := map[string]bool{}
	branches := 0
	for range 3000 {
		pattern := name("a", "b", "_c", "*", ">")
		switch {
		case wire.CheckPattern(pattern) != nil:
		case have[pattern] && random.IntN(2) == 0:
			branches -= patterns.remove(pattern)
			delete(have, pattern)
		default:
			at, created := patterns.at(pattern, true)
			at.value = &pattern
			have[pattern], branches = true, branches+created
		}
		topic := name("a", "b", "_c")
		var want []string
		for pattern := range have {
			if wire.Matches(pattern, topic) {
				want = append(want, pattern)
			}
		}
		slices.SortFunc(want, func(x, y string) int {
			if wire.MoreSpecific(x, y) {
				return -1
			}
			return 1
		})
		var got []string
		for pattern := range patterns.matching(topic) {
			got = append(got, *pattern)
		}
		require.Equal(t, want, got, topic)
	}
	for pattern := range have {
		branches -= patterns.remove(pattern)
	}
	require.Empty(t, patterns.root.next)
	require.Zero(t, branches, "every branch that was created was removed")
	require.Zero(t, patterns.remove("never.put"))
}
