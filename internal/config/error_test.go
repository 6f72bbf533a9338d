package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEditDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "abd", 1},
		{"abc", "acb", 2}, {"kitten", "sitting", 3}, {"history.max_age", "history.age", 4},
	} {
		require.Equal(t, tt.want, editDistance(tt.a, tt.b), "%s, %s", tt.a, tt.b)
		require.Equal(t, tt.want, editDistance(tt.b, tt.a), "%s, %s", tt.b, tt.a)
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"history.age", "history.bytes", "log"}
	require.Equal(t, "; did you mean history.age?", didYouMean("history.aeg", "", known))
	require.Equal(t, "; did you mean history.bytes?", didYouMean("history.byte", "", known))
	require.Equal(t, "; did you mean log?", didYouMean("logs", "", known))
	require.Equal(t, "; did you mean history.age?", didYouMean("age", "", known))
	require.Equal(t, "; did you mean limits.pending_messages_per_session?", didYouMean("limits.pending_messages", "", []string{"limits.pending_sessions", "limits.pending_messages_per_session"}))
	require.Empty(t, didYouMean("colour", "", known))
	require.Empty(t, didYouMean("--colour", "--", []string{"--config"}))
}
