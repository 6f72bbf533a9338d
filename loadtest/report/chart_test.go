package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func chartOfBoth() Chart {
	return Chart{
		Title: `CPU & "memory" <of> sessions`,
		X:     Axis{Label: "clients", Log: true},
		Y:     Axis{Label: "CPU per delivery, µs"},
		Series: []Line{
			{Name: "measured", Points: []Dot{{X: 1000, Y: 14.2}, {X: 5000, Y: 15.1}, {X: 18000, Y: 19.75, Doubtful: true, Note: ", generator-bound"}}},
			{Name: "fitted", Points: []Dot{{X: 1000, Y: 14}, {X: 18000, Y: 19}}},
			{Name: "the article's", Points: []Dot{{X: 5000, Y: 3}, {X: 0, Y: 3}, {X: 5, Y: math.NaN()}}, Loose: true},
			{Name: "none"},
		},
	}
}

func TestCharts(t *testing.T) {
	logarithmic := chartOfBoth()
	logarithmic.Y.Log = true
	for name, c := range map[string]Chart{"chart.svg": chartOfBoth(), "chart-log.svg": logarithmic, "chart-empty.svg": {Title: "nothing"}} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, c.SVG(&b))
			wantXML(t, b.Bytes())
			require.NotContains(t, b.String(), "NaN")
			require.NotContains(t, b.String(), "<script")
			wantGolden(t, name, b.Bytes())
		})
	}
}

func wantXML(t *testing.T, text []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			require.NoError(t, err)
		}
	}
}

func TestTicksAreRoundAndHoldEverything(t *testing.T) {
	for _, c := range []struct {
		log       bool
		low, high float64
		ticks     []float64
	}{
		{false, 3, 19.75, []float64{0, 5, 10, 15, 20}},
		{false, 0, 1000, []float64{0, 200, 400, 600, 800, 1000}},
		{false, 0.001, 0.003, []float64{0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003}},
		{true, 1000, 18000, []float64{1000, 2000, 5000, 10000, 20000}},
		{true, 100, 1000, []float64{100, 200, 500, 1000}},
		{true, 10, 65536, []float64{10, 100, 1000, 10000, 100000}},
		{true, 0.3, 60000, []float64{1, 10, 100, 1000, 10000, 100000}},
	} {
		s := newScale(c.log, 0, 100)
		s.include(c.low)
		s.include(c.high)
		s.round()
		require.InDeltaSlice(t, c.ticks, s.ticks(), 1e-6, "%v", c)
		for _, v := range []float64{c.low, c.high} {
			require.GreaterOrEqual(t, s.place(v), -1e-6, "%v", c)
			require.LessOrEqual(t, s.place(v), 100+1e-6, "%v", c)
		}
	}
}

func TestNumbersAreShort(t *testing.T) {
	for want, v := range map[string]float64{
		"0": 0, "0.3": 0.3, "0.0123": 0.01234, "14.2": 14.2, "5": 5, "1,000": 1000, "65,536": 65536, "-12,000": -12000, "1,234,567": 1234567.2, "250": 250,
	} {
		require.Equal(t, want, Number(v))
	}
}
