package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A hook that may have every place is allowed: all that a daemon does may be to publish
// what an application looked at.
func TestDoubtsAreNoErrors(t *testing.T) {
	hooked := []string{"PUBSUBD_HOOKS_PUBLISH_SECRET=" + strings.Repeat("k", 24), "PUBSUBD_HOOKS_PUBLISH_URL=http://127.0.0.1:9000/publish"}
	require.Empty(t, read(t, hooked).Doubts(), "by default there are places for others")
	require.Empty(t, read(t, hooked, "--limits-calls=16", "--hooks-publish-calls=15").Doubts())
	require.Empty(t, read(t, nil, "--limits-calls=16").Doubts(), "there is no hook")

	s := read(t, hooked, "--limits-calls=16", "--hooks-publish-calls=16")
	require.Len(t, s.Doubts(), 1)
	require.Contains(t, s.Doubts()[0], "hooks.publish.calls is 16, not less than limits.calls (16): ")
	require.Contains(t, s.Summary(), "\nwarning   hooks.publish.calls is 16")
}
