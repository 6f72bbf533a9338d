package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

type cborVectors struct {
	Frames     []cborFrame   `json:"frames"`
	DecodeOnly []cborFrame   `json:"decode_only"`
	Refused    []cborRefused `json:"refused"`
	Payloads   []cborPayload `json:"payloads"`
}

type cborFrame struct {
	Name string `json:"name"`
	Line string `json:"line"`
	Hex  string `json:"hex"`
}

type cborRefused struct {
	Name string `json:"name"`
	Hex  string `json:"hex"`
}

type cborPayload struct {
	JSON string `json:"json"`
	Hex  string `json:"hex"`
	Back string `json:"back,omitempty"`
}

func readCBORVectors(t testing.TB) (v cborVectors) {
	t.Helper()
	readVectors(t, "cbor.json", &v)
	for _, n := range []int{len(v.Frames), len(v.DecodeOnly), len(v.Refused), len(v.Payloads)} {
		require.Positive(t, n)
	}
	return v
}

// Both formats have the same content. We write each vector byte for byte.
func TestCBORFrameVectors(t *testing.T) {
	vectors := readCBORVectors(t)
	for _, v := range vectors.Frames {
		t.Run(v.Name, func(t *testing.T) {
			inJSON, inCBOR := requireSameFrame(t, v)
			require.Equal(t, v.Line, string(inCBOR.AppendJSON(nil)))
			require.Equal(t, unhex(t, v.Hex), inJSON.AppendCBOR(nil))
		})
	}
	for _, v := range vectors.DecodeOnly {
		t.Run(v.Name, func(t *testing.T) { requireSameFrame(t, v) })
	}
	for _, v := range vectors.Refused {
		_, _, err := ParseItem(unhex(t, v.Hex))
		require.Error(t, err, v.Name)
	}
}

// requireSameFrame reads both forms. The text of numbers may differ.
func requireSameFrame(t *testing.T, v cborFrame) (inJSON, inCBOR Content) {
	t.Helper()
	inJSON, err := ParseLine([]byte(v.Line))
	require.NoError(t, err)
	inCBOR, n, err := ParseItem(unhex(t, v.Hex))
	require.NoError(t, err)
	require.Equal(t, len(unhex(t, v.Hex)), n)
	if m := inCBOR.Message; m != nil && m.Type == "" {
		requireSameJSON(t, inJSON.Message.Data, m.Data)
		m.Data = inJSON.Message.Data
	}
	require.Equal(t, inJSON, inCBOR)
	return inJSON, inCBOR
}

// The CBOR vectors have every frame of the NDJSON vectors.
func TestCBORFrameVectorsHaveAll(t *testing.T) {
	lines := make(map[string]bool)
	for _, v := range readCBORVectors(t).Frames {
		lines[v.Line] = true
	}
	for _, v := range frameVectors(t) {
		require.True(t, v.Content == nil || v.DecodeOnly || lines[v.Line], v.Name)
	}
}

func TestCBORPayloadVectors(t *testing.T) {
	for _, v := range readCBORVectors(t).Payloads {
		item := cbor.AppendFromJSON(nil, []byte(v.JSON))
		require.Equal(t, unhex(t, v.Hex), item, v.JSON)
		want := v.JSON
		if v.Back != "" {
			want = v.Back
		}
		require.Equal(t, want, string(cbor.AppendJSON(nil, item)))
	}
}
