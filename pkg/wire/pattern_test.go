package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhichTopicsPatternsStandFor(t *testing.T) {
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
		{"a.>", "a._b", true},
		{"a.*", "ab.c", false},
	} {
		require.Equal(t, c.want, Matches(c.pattern, c.topic), "%s on %s", c.pattern, c.topic)
	}
}

func TestPatternsThatAreNone(t *testing.T) {
	for _, good := range []string{"a", "a.b", "*", ">", "a.*", "*.a", "a.*.b.>", "*.*"} {
		require.NoError(t, CheckPattern(good), good)
	}
	for bad, why := range map[string]string{
		"":                              "is empty",
		"a.>.b":                         "comes last",
		">.a":                           "comes last",
		"a*":                            "whole tokens",
		"a.b>":                          "whole tokens",
		"a.**":                          "whole tokens",
		"a..*":                          `"a..*" has an empty token`,
		"*.":                            "empty token",
		"a b.*":                         "only ASCII letters",
		strings.Repeat("*.", 16) + ">":  "tokens",
		"*." + strings.Repeat("a", 255): "255",
		"a." + strings.Repeat(">", 2):   "whole tokens",
		"a.*.b@k3:1":                    "only ASCII letters",
	} {
		err := CheckPattern(bad)
		require.ErrorContains(t, err, why, "%q", bad)
		require.Equal(t, CodeInvalidTopic, CodeOf(err), "%q", bad)
	}
}

func TestTheMoreSpecificPatternIsOneOfTwo(t *testing.T) {
	inOrder := []string{"a.b.c", "a.b.*", "a.b.>", "a.*.c", "a.*.*", "a.*.>", "a.>", "*.b.c", "*.b.>", "*.*.c", "*.*.*", "*.>", ">"}
	for i, x := range inOrder {
		require.True(t, Matches(x, "a.b.c"), x)
		for j, y := range inOrder {
			require.Equal(t, i < j, MoreSpecific(x, y), "%s before %s", x, y)
		}
	}
}
