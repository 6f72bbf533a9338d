package daemon

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// README is the front door: what takes more lines has a guide of its own. The walk has few
// commands, and needs no option that curl 7.68 lacks.
func TestTheREADMEIsShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 150)
	walk := regexp.MustCompile(`(?m)^\$ .*curl .*$`).FindAllString(string(text), -1)
	require.NotEmpty(t, walk)
	require.LessOrEqual(t, len(walk), 10)
	for _, command := range walk {
		require.NotContains(t, command, "--json", "curl has it since 7.82")
	}
}
