package request

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A payload in CBOR is published as JSON if JSON can express it.
func TestCBORPublishVectors(t *testing.T) {
	type vector struct {
		Name string `json:"name"`
		Hex  string `json:"hex"`
		JSON string `json:"json,omitempty"` // empty: the message keeps the CBOR
	}
	var vectors struct {
		Published []vector `json:"published"`
		Invalid   []vector `json:"invalid"`
	}
	text, err := os.ReadFile("../../pkg/wire/testdata/cbor.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors.Published)
	require.NotEmpty(t, vectors.Invalid)
	for _, v := range vectors.Published {
		item, err := hex.DecodeString(v.Hex)
		require.NoError(t, err, v.Name)
		m := (&Message{Message: wire.Message{Position: wire.Position{Topic: "a"}}})
		require.NoError(t, m.setCBOR(item), v.Name)
		if v.JSON == "" {
			require.Equal(t, wire.CBORType, m.Type, v.Name)
			require.Equal(t, item, m.Data, v.Name)
			continue
		}
		require.Empty(t, m.Type, v.Name)
		require.Equal(t, `,"data":`+v.JSON, string(m.AppendPayload(nil)), v.Name)
	}
	for _, v := range vectors.Invalid {
		item, err := hex.DecodeString(v.Hex)
		require.NoError(t, err, v.Name)
		require.Error(t, (&Message{Message: wire.Message{Position: wire.Position{Topic: "a"}}}).setCBOR(item), v.Name)
	}
}
