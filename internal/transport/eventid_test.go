package transport

import (
	"strings"
	"testing"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

func TestEventIDsAreReadStrictly(t *testing.T) {
	for text, want := range map[string]EventID{
		"a@k3:18":          {Positions: []wire.Position{{Topic: "a", Epoch: "k3", Offset: 18}}},
		"a.b@k3:18,c@k4:0": {Positions: []wire.Position{{Topic: "a.b", Epoch: "k3", Offset: 18}, {Topic: "c", Epoch: "k4", Offset: 0}}},
		"prices.>@k3:1":    {Positions: []wire.Position{{Topic: "prices.>", Epoch: "k3", Offset: 1}}},
		"~x1.aB-_9:0":      {Session: "x1.aB-_9"},
		"~s:1024":          {Session: "s", Count: 1024},
		"~s:7,a.*@k3:2,a.b@k3:18": {Session: "s", Count: 7, Positions: []wire.Position{
			{Topic: "a.*", Epoch: "k3", Offset: 2}, {Topic: "a.b", Epoch: "k3", Offset: 18},
		}},
	} {
		id, err := ParseEventID(text)
		require.NoError(t, err, text)
		require.Equal(t, want, id, text)
		require.Equal(t, text, string(id.Append(nil)))
	}
	for _, text := range []string{
		"", ",", "a", "a@oldest", "17", "a@k3:18,", ",a@k3:18", "a@k3:18, b@k3:4", "a@k3:18,a@k3:19", "a@k3:018",
		"~", "~s", "~s:", "~:1", "~s:-1", "~s:01", "~s:1:2", "~s:9007199254740992", "~s s:1", "~s\n:1", "~ä:1", "~" + strings.Repeat("s", 65) + ":1",
		"~s:1,", "~s:1,,a@k3:1", "~s:1,a", "~s:1, a@k3:1", "~s:1,~s:2", "a@k3:1,~s:1", "~s:1,a@k3:1,a@k3:2", "~s:1" + strings.Repeat(",b@k3:1", 300),
		strings.Repeat("a", 200) + "@k3:1" + strings.Repeat(",b@k3:1", 300),
	} {
		_, err := ParseEventID(text)
		require.Error(t, err, text)
	}
}

// Clients can send any id. An id that can be read has only one text, and contains nothing
// that ends a line or an event.
func FuzzParseEventID(f *testing.F) {
	for _, text := range []string{"", "a@k3:18", "a@k3:18,b.c@0:4", "~x1.aB-_9:17", "~x1.aB-_9:17,a.>@k3:2,a.b@k3:1", "~s:", "a@k3:1,a@k3:2", "prices.>@k3:7", "a\n@k3:1", "~\x00:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseEventID(text)
		if err != nil {
			require.Error(t, err, text)
			return
		}
		require.Equal(t, text, string(id.Append(nil)))
		require.NotContains(t, text, "\n")
		require.True(t, id.Session != "" || len(id.Positions) > 0)
	})
}

func TestLongestPositionIsAnUpperBound(t *testing.T) {
	longest := wire.Position{Topic: "a.b", Epoch: "0123456789abcdef", Offset: wire.MaxOffset}
	require.Equal(t, len(longest.String()), longestPosition("a.b"))
	_, err := wire.ParsePosition(longest.String())
	require.NoError(t, err)
}
