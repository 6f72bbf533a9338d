package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckClient(t *testing.T) {
	for _, id := range []string{"a", "A-1_b.c:d", strings.Repeat("x", MaxClientBytes)} {
		require.NoError(t, CheckClient(id), id)
	}
	for _, id := range []string{"", strings.Repeat("x", MaxClientBytes+1), "a b", "a/b", "ä", "a\n", "a@b", "\x00", "a%41"} {
		require.ErrorContains(t, CheckClient(id), "allowed", "%q", id)
	}
}

func TestAnIdempotencyKeyIsReadBareAndInQuotes(t *testing.T) {
	for value, want := range map[string]string{
		"6f1c2a54-7a5e-4a0e-9a57-2f3a3c1d9e01": "6f1c2a54-7a5e-4a0e-9a57-2f3a3c1d9e01",
		`"6f1c2a54"`:                           "6f1c2a54",
		`"a b, c"`:                             "a b, c",
		`"\"\\"`:                               `"\`,
		"a/b+c==;{}":                           "a/b+c==;{}",
		strings.Repeat("x", MaxIDBytes):        strings.Repeat("x", MaxIDBytes),
		`"` + strings.Repeat(`\\`, 255) + `"`:  strings.Repeat(`\`, 255),
	} {
		id, err := ParseIdempotencyKey(value)
		require.NoError(t, err, value)
		require.Equal(t, want, id)
	}
	for _, value := range []string{
		"", `""`, `"`, `"a`, `a"`, `"a"b`, `"a";p=1`, `"a", "b"`, "a, b", "a,b", "a b", `"\a"`, `"\`, `a\b`,
		"ä", "\"ä\"", "a\tb", "\"a\x7f\"", strings.Repeat("x", MaxIDBytes+1), `"` + strings.Repeat("x", MaxIDBytes+1) + `"`,
	} {
		_, err := ParseIdempotencyKey(value)
		require.Error(t, err, "%q", value)
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{"a", `"a\"b"`, `a b`, `"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		id, err := ParseIdempotencyKey(value)
		if err != nil {
			return
		}
		require.NoError(t, CheckID(id))
		again, err := ParseIdempotencyKey(FormatIdempotencyKey(id))
		require.NoError(t, err)
		require.Equal(t, id, again)
	})
}
