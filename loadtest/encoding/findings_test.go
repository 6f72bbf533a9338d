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
	require.Contains(t, gain, "20 objects: CBOR makes 1.50 times as many round trips as JSON (± 0.00), where theirs made 1.24 times; by the CPU a trip of clients and server it is 1.50 times, and a server that had the machine to itself would make 1.50 times")
	require.Contains(t, gain, "20 % is the server's, and 60 % goes into making text of objects")
	require.Contains(t, gain, "CBOR takes 70 % of JSON's for objects, and 130 % for prices")
	require.Contains(t, gain, "gzip JSON is smaller than CBOR for every shape, and larger for none")
	require.Contains(t, gain, "takes 3.50 times (objects)")
	require.Contains(t, gain, "does not pay: in bytes (not 5 % fewer than JSON's) for prices; in CPU (not 5 % less) for none")
	require.NotContains(t, gain, "no clear gain")

	none := say(made(1.02, 300))
	require.Contains(t, none, "Nor in round trips of 20 objects: 1.02 times ± 0.00 is no clear gain")
	require.Contains(t, none, "gzip JSON is smaller than CBOR for objects, and larger for prices")
	require.Contains(t, none, "in bytes (not 5 % fewer than JSON's) for none")
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
