package soak

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Programs read a count by its name in JSON, and people read plainer words.
func TestTextHasPlainerWordsThanJSON(t *testing.T) {
	w := newPressed(t, func(int64) *wire.Problem { return nil })
	w.hook = &application{}
	r := w.result(Config{}, 0, false)
	var text strings.Builder
	require.NoError(t, r.Text(&text))
	machine, err := json.Marshal(r)
	require.NoError(t, err)
	require.Len(t, slices.Compact(slices.Sorted(maps.Values(inText))), len(inText))
	for name, plain := range inText {
		require.Contains(t, string(machine), `"what":"`+name+`"`, "a count has this name")
		require.Contains(t, text.String(), "  "+plain+"\n")
		require.NotContains(t, text.String(), "  "+name+"\n")
	}
}
