package encoding

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// made is a result of two loads and two shapes. gain is CBOR's throughput over
// JSON's; size is the second shape's bytes in CBOR.
func made(gain float64, size int) *Result {
	r := &Result{Parameters: Parameters{ServerCPU: true}}
	for range 3 {
		r.row(20, JSON).add(Sum{Trips: 1000, Seconds: 1, Server: 0.4, Build: 0.3, Parse: 0.9, Client: 1.6})
		r.row(20, CBOR).add(Sum{Trips: int64(1000 * gain), Seconds: 1, Server: 0.4, Build: 0.3, Parse: 0.9, Client: 1.6})
	}
	forms := func(text, binary int) []Form {
		return []Form{
			{JSON, text, 10, 0, 0, 30}, {GzipJSON, text / 2, 10, 50, 20, 30},
			{CBOR, binary, 5, 0, 0, 15}, {GzipCBOR, text / 2, 5, 40, 15, 10},
		}
	}
	r.Shapes = []Shape{{"objects", forms(1000, 700)}, {"prices", forms(1000, size)}}
	r.conclude(nil)
	return r
}

func TestRatiosAreOfEachRound(t *testing.T) {
	r := made(1.5, 1300)
	require.Len(t, r.Ratios, 1)
	ratio := r.Ratios[0]
	require.Equal(t, Spread{Mean: 1.5}, ratio.Throughput)
	require.InDelta(t, 1.5, ratio.ServerCPU, 1e-9)
	require.InDelta(t, 1.5, ratio.ClientCPU, 1e-9)
	require.InDelta(t, 1.5, ratio.AllCPU, 1e-9)
	require.InDelta(t, 1.24, ratio.Theirs, 0)
	require.InDelta(t, 0.4, r.Row(20, JSON).All.Rest()/3, 1e-9)
}

// What is said follows the figures: with others, another thing is said.
func TestFindingsAreMadeOfTheFigures(t *testing.T) {
	say := func(r *Result) string { return strings.Join(r.Findings, "\n") }
	gain := say(made(1.5, 1300))
	require.Contains(t, gain, "20 objects: CBOR makes 1.50 times as many round trips as JSON (± 0.00), compared with 1.24 times in the article. By the CPU time of clients and server it is 1.50 times, and by the CPU time of the server alone 1.50 times.")
	require.Contains(t, gain, "the server takes 20 % of the CPU time. Encoding and parsing of objects takes 60 %")
	require.Contains(t, gain, "CBOR takes from 70 % of the bytes of JSON (objects) to 130 % (prices)")
	require.Contains(t, gain, "gzip JSON is smaller than CBOR for every shape, and larger for none")
	require.Contains(t, gain, "takes from 3.50 times (objects)")
	require.Contains(t, gain, "CBOR saves less than 5 % of the bytes for prices, and less than 5 % of the CPU time for none")
	require.NotContains(t, gain, "gains nothing clear")

	none := say(made(1.02, 300))
	require.Contains(t, none, "CBOR gains nothing clear in round trips of 20 objects: 1.02 times ± 0.00")
	require.Contains(t, none, "gzip JSON is smaller than CBOR for objects, and larger for prices")
	require.Contains(t, none, "CBOR saves less than 5 % of the bytes for none")
}

// Full cores are not claimed where others had them.
func TestCoresThatWereNotFullAreSaid(t *testing.T) {
	for share, said := range map[float64]bool{0.99: false, 0.5: true} {
		r := &Result{Parameters: Parameters{ServerCPU: true}}
		used := share * float64(cores())
		r.row(20, JSON).add(Sum{Trips: 1000, Seconds: 1, Server: used / 4, Client: used * 3 / 4})
		r.row(20, CBOR).add(Sum{Trips: 2000, Seconds: 1, Server: used / 4, Client: used * 3 / 4})
		r.conclude(nil)
		require.Equal(t, said, strings.Contains(strings.Join(r.Findings, "\n"), "The cores were not full"), "%v", share)
	}
}

// Of an empty test nothing is said.
func TestNothingIsFoundWhereNothingWasMeasured(t *testing.T) {
	r := &Result{}
	r.conclude(nil)
	require.Empty(t, r.Findings)
	require.Empty(t, r.Ratios)
}

func TestSpread(t *testing.T) {
	require.Equal(t, Spread{}, spreadOf(nil))
	require.Equal(t, Spread{Mean: 3}, spreadOf([]float64{3}))
	require.Equal(t, Spread{Mean: 2, Stdev: 1}, spreadOf([]float64{1, 2, 3}))
}
