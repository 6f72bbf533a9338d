package daemon

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The walk of README is short, and needs no option that curl 7.68 lacks.
func TestTheWalkIsShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	walk := regexp.MustCompile(`(?m)^\$ .*curl .*$`).FindAllString(string(text), -1)
	require.NotEmpty(t, walk)
	require.LessOrEqual(t, len(walk), 10)
	for _, command := range walk {
		require.NotContains(t, command, "--json", "curl has it since 7.82")
	}
}
