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
	require.Equal(t, "; did you mean history.age?", DidYouMean("history.aeg", "", known))
	require.Equal(t, "; did you mean history.bytes?", DidYouMean("history.byte", "", known))
	require.Equal(t, "; did you mean log?", DidYouMean("logs", "", known))
	require.Equal(t, "; did you mean history.age?", DidYouMean("age", "", known))
	require.Equal(t, "; did you mean limits.pending_messages_per_session?", DidYouMean("limits.pending_messages", "", []string{"limits.pending_sessions", "limits.pending_messages_per_session"}))
	require.Equal(t, "; did you mean --topics?", DidYouMean("--topic", "--", []string{"--clients-per-topic", "--topics"}), "a letter is missing rather than a part")
	require.Empty(t, DidYouMean("colour", "", known))
	require.Empty(t, DidYouMean("--colour", "--", []string{"--config"}))
}
