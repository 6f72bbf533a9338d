package request

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAnIdempotencyKeyIsBareOrQuoted(t *testing.T) {
	for value, want := range map[string]string{
		"6f1c2a54-7a5e-4a0e-9a57-2f3a3c1d9e01": "6f1c2a54-7a5e-4a0e-9a57-2f3a3c1d9e01",
		`"6f1c2a54"`:                           "6f1c2a54",
		`"a b, c"`:                             "a b, c",
		`"\"\\"`:                               `"\`,
		"a/b+c==;{}":                           "a/b+c==;{}",
		strings.Repeat("x", wire.MaxIDBytes):   strings.Repeat("x", wire.MaxIDBytes),
		`"` + strings.Repeat(`\\`, 255) + `"`:  strings.Repeat(`\`, 255),
	} {
		id, err := parseIdempotencyKey(value)
		require.NoError(t, err, value)
		require.Equal(t, want, id)
	}
	for _, value := range []string{
		"", `""`, `"`, `"a`, `a"`, `"a"b`, `"a";p=1`, `"a", "b"`, "a, b", "a,b", "a b", `"\a"`, `"\`, `a\b`,
		"ä", "\"ä\"", "a\tb", "\"a\x7f\"", strings.Repeat("x", wire.MaxIDBytes+1), `"` + strings.Repeat("x", wire.MaxIDBytes+1) + `"`,
	} {
		_, err := parseIdempotencyKey(value)
		require.Error(t, err, "%q", value)
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{"a", `"a\"b"`, `a b`, `"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		id, err := parseIdempotencyKey(value)
		if err != nil {
			return
		}
		require.NoError(t, wire.CheckID(id))
		again, err := parseIdempotencyKey(wire.FormatIdempotencyKey(id))
		require.NoError(t, err)
		require.Equal(t, id, again)
	})
}
