package report

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBars(t *testing.T) {
	bars := Bars{
		Title: `Bytes & "CPU" <of> messages`, Unit: " %", Series: []string{"JSON", "gzip JSON", "CBOR", "gzip CBOR"},
		Groups: []Group{{"a long string", []float64{100, 21, 97, 21}}, {"1000 <prices>", []float64{100, 45, 133, math.NaN()}}},
	}
	for name, c := range map[string]Bars{"bars.svg": bars, "bars-empty.svg": {Title: "nothing", Series: []string{"JSON"}, Groups: []Group{{"none", []float64{0}}}}} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, c.SVG(&b))
			wantXML(t, b.Bytes())
			require.NotContains(t, b.String(), "NaN")
			require.NotContains(t, b.String(), "Inf")
			wantGolden(t, name, b.Bytes())
		})
	}
	require.ErrorIs(t, bars.SVG(failing{}), errFailing)
}
