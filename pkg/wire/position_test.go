package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPositionRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Position
	}{
		{"a.b@k3:17", Position{"a.b", "k3", 17}},
		{"a@0:0", Position{"a", "0", 0}},
		{"a@zzzzzzzzzzzzzzzz:1", Position{"a", "zzzzzzzzzzzzzzzz", 1}},
		{"a@k3:9007199254740991", Position{"a", "k3", 1<<53 - 1}},
		{"a@oldest:5", Position{"a", "oldest", 5}},
	} {
		p, err := ParsePosition(tt.text)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, p)
		require.Equal(t, tt.text, p.String())
		require.Equal(t, "x"+tt.text, string(p.Append([]byte("x"))))

		var fromJSON Position
		encoded, err := json.Marshal(p)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(encoded, &fromJSON))
		require.Equal(t, p, fromJSON)
	}
}

func TestPositionIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "no '@'",
		"a":                                   "no '@'",
		"@k3:1":                               "topic is empty",
		"a..b@k3:1":                           "empty segment",
		strings.Repeat("a", 256) + "@k3:1":    "it has 256",
		"a@k3":                                "no offset",
		"a@oldest":                            "no offset",
		"a@:1":                                "the epoch is",
		"a@K3:1":                              "the epoch is",
		"a@k_3:1":                             "the epoch is",
		"a@zzzzzzzzzzzzzzzzz:1":               "the epoch is",
		"a@k3@k3:1":                           "the epoch is",
		"a@k3:":                               "decimal number without sign",
		"a@k3:+1":                             "decimal number without sign",
		"a@k3:01":                             "decimal number without sign",
		"a@k3:00":                             "decimal number without sign",
		"a@k3:-1":                             "decimal number",
		"a@k3:-0":                             "decimal number",
		"a@k3:1_0":                            "decimal number",
		"a@k3:1:2":                            "decimal number",
		"a@k3:1 ":                             "decimal number",
		"a@k3:1.0":                            "decimal number",
		"a@k3:9007199254740992":               "up to 2^53-1",
		"a@k3:18446744073709551616":           "up to 2^53-1",
		"a@k3:" + strings.Repeat("9", 10_000): "up to 2^53-1",
	} {
		_, err := ParsePosition(text)
		require.ErrorContains(t, err, want, "%.60q", text)
		p := Position{Topic: "kept"}
		require.Error(t, p.UnmarshalText([]byte(text)))
		require.Equal(t, Position{Topic: "kept"}, p, "an error leaves the position alone")
	}
}

func TestStartRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Start
	}{
		{"a.b", Start{Topic: "a.b"}},
		{"oldest", Start{Topic: "oldest"}},
		{"a.b@oldest", Start{Topic: "a.b", From: FromOldest}},
		{"a.b@k3:17", Start{Topic: "a.b", From: FromPosition, Epoch: "k3", After: 17}},
		{"a.b@newest-1", Start{Topic: "a.b", From: FromNewest, Newest: 1}},
		{"a.*@newest-1000", Start{Topic: "a.*", From: FromNewest, Newest: 1000}},
		{"a@newest:5", Start{Topic: "a", From: FromPosition, Epoch: "newest", After: 5}},
		// An epoch may spell a word: only a position has an offset.
		{"a@oldest:5", Start{Topic: "a", From: FromPosition, Epoch: "oldest", After: 5}},
	} {
		s, err := ParseStart(tt.text)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, s)
		require.Equal(t, tt.text, s.String())
		if s.From == FromPosition {
			require.Equal(t, s, StartAfter(s.Position()))
		}
	}
}

func TestStartIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"":           "topic is empty",
		"@oldest":    "topic is empty",
		"a@":         "or topic@oldest",
		"a@Oldest":   "or topic@oldest",
		"a@oldest:":  "decimal number without sign",
		"a@oldest ":  "or topic@oldest",
		"a@now":      "or the topic alone for new messages",
		"a@k3:01":    "decimal number without sign",
		"a b@oldest": "holds ' '",
		"a@newest":   "or topic@oldest, topic@newest-50",

		"@newest-5":    "topic is empty",
		"a@newest-":    "a number from 1 to 1000",
		"a@newest-0":   "a number from 1 to 1000",
		"a@newest-01":  "a number from 1 to 1000",
		"a@newest-+1":  "a number from 1 to 1000",
		"a@newest--1":  "a number from 1 to 1000",
		"a@newest-1_0": "a number from 1 to 1000",
		"a@newest-5:1": "a number from 1 to 1000",
		"a@newest-5 ":  "a number from 1 to 1000",

		"a@newest-1001":                 "a number from 1 to 1000",
		"a@newest-18446744073709551617": "a number from 1 to 1000",
	} {
		_, err := ParseStart(text)
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func TestStartsInJSON(t *testing.T) {
	var r OpenRequest
	require.NoError(t, json.Unmarshal([]byte(`{"topics":["a","b@oldest","c@k3:4"]}`), &r))
	require.Equal(t, []Start{{Topic: "a"}, {Topic: "b", From: FromOldest}, {Topic: "c", From: FromPosition, Epoch: "k3", After: 4}}, r.Topics)
	encoded, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"topics":["a","b@oldest","c@k3:4"]}`, string(encoded))
	require.Error(t, json.Unmarshal([]byte(`{"topics":["a@"]}`), &r))
}

func FuzzParsePosition(f *testing.F) {
	for _, seed := range []string{"a.b@k3:17", "a@oldest", "a@k3:9007199254740992", "a@k3:+1", "@:", "a@k3:01"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			return
		}
		require.Equal(t, text, p.String(), "there is one text for a position")
		require.NoError(t, CheckTopic(p.Topic))
		require.LessOrEqual(t, p.Offset, uint64(MaxOffset))
	})
}

func FuzzParseStart(f *testing.F) {
	for _, seed := range []string{"a.b", "a.b@oldest", "a.b@k3:17", "a@oldest:5", "a@", "@oldest"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStart(text)
		if err != nil {
			return
		}
		require.Equal(t, text, s.String(), "there is one text for a start")
		require.NoError(t, CheckTopic(s.Topic))
	})
}
