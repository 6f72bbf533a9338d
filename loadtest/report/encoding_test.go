package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/encoding"
)

func encodings() *encoding.Result {
	row := func(objects int, name string, rate float64) *encoding.Row {
		s := encoding.Sum{
			Trips: int64(rate) * 4, Seconds: 4, BytesOut: int64(rate) * 4 * 1500, BytesIn: int64(rate) * 4 * 1700,
			Server: 2, Build: 1, Parse: 3, Client: 5,
		}
		return &encoding.Row{Objects: objects, Encoding: name, All: s, TripsS: encoding.Spread{Mean: rate, Stdev: 12}, ObjectsS: rate * float64(objects)}
	}
	forms := []encoding.Form{
		{Encoding: encoding.JSON, Bytes: 1000, EncodeNS: 10_000, DecodeNS: 30_000},
		{Encoding: encoding.GzipJSON, Bytes: 300, EncodeNS: 10_000, CompressNS: 50_000, DecompressNS: 9000, DecodeNS: 30_000},
		{Encoding: encoding.CBOR, Bytes: 700, EncodeNS: 5000, DecodeNS: 15_000},
		{Encoding: encoding.GzipCBOR, Bytes: 290, EncodeNS: 5000, CompressNS: 45_000, DecompressNS: 8000, DecodeNS: 15_000},
	}
	return &encoding.Result{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Environment: environment, Example: []byte(`{"name":"Elm <Tools>"}`),
		Parameters: encoding.Parameters{ServerCPU: true, Build: "v1.2.3", Clients: 16, DurationMS: 2000, WarmupMS: 500, Rounds: 2, Objects: []int{20, 100}, Seed: 1},
		Rows:       []*encoding.Row{row(20, encoding.JSON, 2000), row(20, encoding.CBOR, 3000), row(100, encoding.JSON, 500), row(100, encoding.CBOR, 900)},
		Missing:    []encoding.Missing{{Encoding: encoding.GzipJSON, Reason: "the answer was not compressed"}},
		Ratios:     []encoding.Ratio{{Objects: 20, Encoding: encoding.CBOR, Throughput: encoding.Spread{Mean: 1.5, Stdev: 0.01}, AllCPU: 1.55, ServerCPU: 1.4, ClientCPU: 1.6, Theirs: 1.24}},
		Shapes:     []encoding.Shape{{Name: "1000 prices", Forms: forms}},
		Findings:   []string{"This is so."},
		Faults:     []string{"lost: the message did not come"},
		ExitCode:   3,
	}
}

func TestEncodings(t *testing.T) {
	var table bytes.Buffer
	require.NoError(t, EncodingTable(&table, encodings()))
	squeezed := strings.Join(strings.Fields(table.String()), " ")
	for _, line := range []string{
		"{\"name\":\"Elm <Tools>\"}",
		"20 JSON 2,000 12 40,000 1500 1700 250.0 125.0 375.0 125.0 29 14 43 14 44",
		"20 CBOR 1.50 0.01 1.24 1.55 1.40 1.60",
		"1000 prices 1000 300 700 290 30 % 70 % 29 %",
		"1000 prices 10 30 50 9 5 15 45 8 40 99 20 73",
		"left out gzip JSON: the answer was not compressed",
		"ours This is so.",
		"server build v1.2.3",
		"fault lost: the message did not come",
		"verdict FAILED (exit code 3)",
	} {
		require.Contains(t, squeezed, line)
	}
	require.ErrorIs(t, EncodingTable(failing{}, encodings()), errFailing)
}

// Without the server's process its columns are not there, rather than zero.
func TestEncodingsOfAServerThatIsNotOurs(t *testing.T) {
	r := encodings()
	r.Parameters.ServerCPU, r.Faults, r.ExitCode = false, nil, 0
	for _, row := range r.Rows {
		row.All.Server = 0
	}
	var table bytes.Buffer
	require.NoError(t, EncodingTable(&table, r))
	require.NotContains(t, table.String(), "µs server")
	require.NotContains(t, table.String(), "% server")
	require.Contains(t, table.String(), "µs build")
	require.Contains(t, table.String(), "verdict   ok (exit code 0)")
	table.Reset()
	r.Error, r.ExitCode = "interrupted", 1
	require.NoError(t, EncodingTable(&table, r))
	require.Contains(t, table.String(), "verdict   ENDED EARLY: interrupted (exit code 1)")
	table.Reset()
	require.NoError(t, EncodingTable(&table, &encoding.Result{}), "nothing was measured")
}

func TestEncodingsAsPageAndChart(t *testing.T) {
	var page, chart bytes.Buffer
	require.NoError(t, EncodingHTML(&page, encodings()))
	require.Contains(t, page.String(), "Elm &lt;Tools&gt;")
	require.Contains(t, page.String(), "Made 2026-01-02 03:04 UTC")
	require.Equal(t, 3, strings.Count(page.String(), "<svg"))
	require.Contains(t, page.String(), ">30 %<", "gzip JSON of JSON")
	require.NoError(t, EncodingBars(encodings()).SVG(&chart))
	require.Contains(t, chart.String(), ">3,000/s<")
	require.Equal(t, 4, strings.Count(chart.String(), "<title>"), "what was not measured has no bar")
}

var errFailing = errors.New("disk full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFailing }
