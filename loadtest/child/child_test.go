package child

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that does not come up says why, and is gone.
func TestAServerThatDoesNotStartSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		command []string
		says    string
	}{
		"no such program": {[]string{"/there/is/no/such/program"}, "/there/is/no/such/program"},
		"ends at once":    {[]string{"sh", "-c", "echo 'no luck' >&2; exit 7", "sh"}, "no luck"},
		"odd addresses": {[]string{"sh", "-c", `while [ "$1" != --addresses-file ]; do shift; done; echo '{}' > "$2"; exec sleep 60`, "sh"},
			"names no public address"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Server(t.Context(), c.command)
			require.ErrorContains(t, err, c.says)
			require.True(t, s == nil || s.IsGone())
		})
	}
}
