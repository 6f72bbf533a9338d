package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTopicBoundaries(t *testing.T) {
	tokens := func(n int) string { return strings.TrimSuffix(strings.Repeat("t.", n), ".") }
	for _, tt := range []struct {
		name, topic, wantErr string
	}{
		{"255 bytes", strings.Repeat("a", 255), ""},
		{"256 bytes", strings.Repeat("a", 256), "has 256 bytes: at most 255"},
		{"16 tokens", tokens(16), ""},
		{"17 tokens", tokens(17), "more than 16 tokens"},
		{"one byte", "a", ""},
		{"no byte", "", "is empty"},
		{"no token", ".", "empty token"},
		{"first token empty", ".a", "empty token"},
		{"last token empty", "a.", "empty token"},
		{"inner token empty", "a..b", "empty token"},
		{"many dots", strings.Repeat(".", 255), "more than 16 tokens"},
		{"below the digits", "a/b", "holds '/'"},
		{"above the digits", "a:b", "holds ':'"},
		{"below the capitals", "a@b", "holds '@'"},
		{"above the capitals", "a[b", "holds '['"},
		{"below the letters", "a`b", "holds '`'"},
		{"above the letters", "a{b", "holds '{'"},
		{"control character", "a\x00b", `holds '\x00'`},
		{"letter beyond ASCII", "caf\u00e9", "only ASCII"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := CheckTopic(tt.topic)
			if tt.wantErr == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.wantErr)
		})
	}
}

func TestTopicTakesExactlyTheseBytes(t *testing.T) {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for b := range 256 {
		name := string([]byte{'a', byte(b), 'a'})
		if b == '.' {
			continue
		}
		require.Equal(t, strings.IndexByte(allowed, byte(b)) >= 0, CheckTopic(name) == nil, "%q", name)
	}
}

func TestReservedTopic(t *testing.T) {
	for topic, want := range map[string]bool{"_": true, "_sys.nodes": true, "a._b": false, "a_": false, "": false} {
		require.Equal(t, want, ReservedTopic(topic), "%q", topic)
	}
}
