package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTopicBoundaries(t *testing.T) {
	segments := func(n int) string { return strings.TrimSuffix(strings.Repeat("t.", n), ".") }
	for _, tt := range []struct {
		name, topic, wantErr string
	}{
		{"255 bytes", strings.Repeat("a", 255), ""},
		{"256 bytes", strings.Repeat("a", 256), "at most 255 bytes; it has 256"},
		{"16 segments", segments(16), ""},
		{"17 segments", segments(17), "at most 16 segments"},
		{"one byte", "a", ""},
		{"no byte", "", "is empty"},
		{"no segment", ".", "empty segment"},
		{"first segment empty", ".a", "empty segment"},
		{"last segment empty", "a.", "empty segment"},
		{"inner segment empty", "a..b", "empty segment"},
		{"presence of 255 bytes", PresenceTopic(strings.Repeat("a", 255)), ""},
		{"presence of 256 bytes", PresenceTopic(strings.Repeat("a", 256)), "at most 255 bytes; it has 256"},
		{"presence of 16 segments", PresenceTopic(segments(16)), ""},
		{"presence of 17 segments", PresenceTopic(segments(17)), "at most 16 segments"},
		{"presence of nothing", "_presence.", "is empty"},
		{"presence of presence is not longer", PresenceTopic(PresenceTopic(segments(16))), "at most 16 segments"},
		{"many dots", strings.Repeat(".", 255), "at most 16 segments"},
		{"below the digits", "a/b", "holds '/'"},
		{"above the digits", "a:b", "holds ':'"},
		{"below the capitals", "a@b", "holds '@'"},
		{"above the capitals", "a[b", "holds '['"},
		{"below the letters", "a`b", "holds '`'"},
		{"above the letters", "a{b", "holds '{'"},
		{"a character of two bytes", "cafe.é", `topic "cafe.é" holds 'é'`},
		{"a character of four bytes", "a🙂", "holds '🙂'"},
		{"half a character", "a\xc3", `holds '\xc3'`},
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

func TestPresenceOf(t *testing.T) {
	about, ok := PresenceOf(PresenceTopic("a.*"))
	require.True(t, ok)
	require.Equal(t, "a.*", about)
	for _, other := range []string{"_presence", "_presences.a", "a._presence.b", ">"} {
		about, ok = PresenceOf(other)
		require.False(t, ok)
		require.Equal(t, other, about)
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.b", "a", false},
		{"a.b", "a.b.c", false},
		{"a.*", "a.b", true},
		{"a.*", "a", false},
		{"a.*", "a.b.c", false},
		{"*.b", "a.b", true},
		{"*.*.c", "a.b.c", true},
		{"a.>", "a.b", true},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{"a.>", "b.a", false},
		{"a.*.>", "a.b", false},
		{"a.*.>", "a.b.c.d", true},
		{">", "a", true},
		{">", "a.b", true},
		{">", "_sys.a", false},
		{"*", "_sys", false},
		{"*.a", "_sys.a", false},
		{"_sys.>", "_sys.a", true},
		{">", "_presence.a", false},
		{"*.a", "_presence.a", false},
		{"_presence.>", "_presence.a.b", true},
		{"_presence.*", "_presence.a", true},
		{"a.>", "a._b", true},
		{"a.*", "ab.c", false},
	} {
		require.Equal(t, c.want, Matches(c.pattern, c.topic), "%s on %s", c.pattern, c.topic)
	}
}

func TestInvalidPatterns(t *testing.T) {
	for _, good := range []string{"a", "a.b", "*", ">", "a.*", "*.a", "a.*.b.>", "*.*", "_presence.>", PresenceTopic(strings.Repeat("*.", 15) + ">")} {
		require.NoError(t, CheckPattern(good), good)
	}
	for bad, why := range map[string]string{
		"":                              "is empty",
		"a.>.b":                         "must be last",
		">.a":                           "must be last",
		"a*":                            "whole segments",
		"a.b>":                          "whole segments",
		"a.**":                          "whole segments",
		"a..*":                          `"a..*" has an empty segment`,
		"*.":                            "empty segment",
		"a b.*":                         "only ASCII letters",
		strings.Repeat("*.", 16) + ">":  "segments",
		"*." + strings.Repeat("a", 255): "255",
		"a." + strings.Repeat(">", 2):   "whole segments",
		"a.*.b@k3:1":                    "only ASCII letters",
	} {
		err := CheckPattern(bad)
		require.ErrorContains(t, err, why, "%q", bad)
		require.Equal(t, CodeInvalidTopic, codeOf(err), "%q", bad)
	}
}

func TestMoreSpecific(t *testing.T) {
	inOrder := []string{"a.b.c", "a.b.*", "a.b.>", "a.*.c", "a.*.*", "a.*.>", "a.>", "*.b.c", "*.b.>", "*.*.c", "*.*.*", "*.>", ">"}
	for i, x := range inOrder {
		require.True(t, Matches(x, "a.b.c"), x)
		for j, y := range inOrder {
			require.Equal(t, i < j, MoreSpecific(x, y), "%s before %s", x, y)
		}
	}
}
