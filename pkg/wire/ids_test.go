package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckClient(t *testing.T) {
	for _, id := range []string{"a", "A-1_b.c:d", strings.Repeat("x", MaxClientBytes)} {
		require.NoError(t, CheckClient(id), id)
	}
	for _, id := range []string{"", strings.Repeat("x", MaxClientBytes+1), "a b", "a/b", "ä", "a\n", "a@b", "\x00", "a%41"} {
		require.ErrorContains(t, CheckClient(id), "the client's id ", "%q", id)
	}
}
