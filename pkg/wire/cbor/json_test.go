package cbor

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// someJSON is a typical message with every kind of value.
const someJSON = `{"symbol":"ACME","id":8812345,"price":1234.56,"open":true,"time":"2026-01-02T03:04:05Z","venue":{"name":"X\u00e9","lot":100,"fee":-0.25},"rest":[1,2.5,null,"a \"b\""]}`

func TestJSONToCBORAndBack(t *testing.T) {
	nines := strings.Repeat("9", maxIntegerDigits+1)
	for _, tt := range []struct{ json, cbor, back string }{
		{`0`, "00", `0`},
		{`23`, "17", `23`},
		{`24`, "1818", `24`},
		{`-1`, "20", `-1`},
		{`256`, "190100", `256`},
		{`18446744073709551615`, "1bffffffffffffffff", `18446744073709551615`},
		{`18446744073709551616`, "c249010000000000000000", `18446744073709551616`},
		{`-9223372036854775809`, "3b8000000000000000", `-9223372036854775809`},
		{`-18446744073709551616`, "3bffffffffffffffff", `-18446744073709551616`},
		{`-18446744073709551617`, "c349010000000000000000", `-18446744073709551617`},
		{`-0`, "f98000", `-0.0`},
		{`-0.0`, "f98000", `-0.0`},
		{`0e99`, "f90000", `0.0`},
		{`1.0`, "f93c00", `1.0`},
		{`1e5`, "fa47c35000", `100000.0`},
		{`1E+2`, "f95640", `100.0`},
		{`0.1`, "fb3fb999999999999a", `0.1`},
		{`0.10`, "fb3fb999999999999a", `0.1`},
		{`65504.0`, "f97bff", `65504.0`},
		{`65505.0`, "fa477fe100", `65505.0`},
		{`5.960464477539063e-8`, "f90001", `5.960464477539063e-8`},
		{`5e-324`, "fb0000000000000001", `5e-324`},
		{`1.7976931348623157e308`, "fb7fefffffffffffff", `1.7976931348623157e+308`},
		{`1e300`, "fb7e37e43c8800759c", `1e+300`},
		{`9007199254740993.0`, "d9010652393030373139393235343734303939332e30", `9007199254740993.0`},
		{`1e400`, "d90106453165343030", `1e400`},
		{`1e-400`, "d901064631652d343030", `1e-400`},
		{`1e99999999999999999999`, "", `1e99999999999999999999`},
		{`0.1000000000000000000001`, "", `0.1000000000000000000001`},
		{`0.1000000000000000055511151231257827`, "", `0.1000000000000000055511151231257827`},
		{nines, "", nines},
		{`""`, "60", `""`},
		{`"\u0000\b\f\n\r\t\"\\\/\u00e9\ud83d\ude00"`, "", `"\u0000\u0008\u000c\n\r\t\"\\/é😀"`},
		{`"\ud83d"`, "d9010648225c756438336422", `"\ud83d"`},
		{`"\ude00\ud83d"`, "", `"\ude00\ud83d"`},
		{`[]`, "80", `[]`},
		{`{}`, "a0", `{}`},
		{`{"b":1,"a":[true,false,null]}`, "a2616201616183f5f4f6", `{"b":1,"a":[true,false,null]}`},
		{`{"a":1,"\u0061":2}`, "d90106527b2261223a312c225c7530303631223a327d", `{"a":1,"\u0061":2}`},
	} {
		name := tt.json[:min(len(tt.json), 40)]
		got := AppendFromJSON([]byte("before"), []byte(tt.json))
		require.Equal(t, "before", string(got[:6]), name)
		got = got[6:]
		if tt.cbor != "" {
			require.Equal(t, unhex(t, tt.cbor), got, name)
		}
		model, err := Check(got)
		require.NoError(t, err, name)
		require.NotEqual(t, Only, model, name)
		if tt.back != "" {
			require.Equal(t, tt.back, string(AppendJSON(nil, got)), name)
		}
	}
}

// Arrays of any length and strings with escapes of any length have the right heads.
func TestHeadsOfAnyLength(t *testing.T) {
	for _, n := range []int{0, 1, 22, 23, 24, 25, 255, 256, 257, 65535, 65536, 65537} {
		array := "[" + strings.TrimSuffix(strings.Repeat("7,", n), ",") + "]"
		text := `"` + strings.Repeat("x", max(n-1, 0)) + `\n"`
		for _, value := range []string{array, text, "[" + array + "," + text + "]"} {
			item := AppendFromJSON(nil, []byte(value))
			model, err := Check(item)
			require.NoError(t, err)
			require.Equal(t, IsJSON, model)
			require.Equal(t, value, string(AppendJSON(nil, item)))
			var v any
			require.NoError(t, oracle.Unmarshal(item, &v))
		}
	}
}

// The keys of a map with many members move when its longer head is written. Duplicates are
// found all the same, with and without spare capacity.
func TestMapsWithManyMembers(t *testing.T) {
	for _, n := range []int{2, 9, 23, 24, 255, 256, 65536} {
		members := make([]string, n)
		for i := range members {
			members[i] = `"key ` + strconv.Itoa(i) + `":0`
		}
		once := `[{` + strings.Join(members, ",") + `}]`
		twice := once[:len(once)-2] + `,"\u006bey 0":1}]`
		for _, room := range []int{0, 3 * len(once)} {
			item := AppendFromJSON(make([]byte, 0, room), []byte(once))
			model, err := Check(item)
			require.NoError(t, err)
			require.Equal(t, IsJSON, model, "%d members, capacity %d", n, room)
			require.Equal(t, once, string(AppendJSON(nil, item)))
			_, embedded := EmbeddedJSON(AppendFromJSON(make([]byte, 0, room), []byte(twice)))
			require.True(t, embedded, "%d members, capacity %d", n, room)
		}
	}
}

// AppendFromJSON wraps invalid JSON, although callers must not pass it.
func TestInvalidJSONIsWrapped(t *testing.T) {
	for _, text := range []string{
		"", " ", "x", "tru", "[", "[1", "[1,", "[1,]", "[,", "{", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{1:2}`, `"`, `"\`, `"\u`, `"\u00`, `"\x"`,
		"-", "+", ".", "e", "1e", "--1", "1-2", "1.2.3", "1 2", "[1 2]", "[1}", "{]", strings.Repeat("[", 100),
		strings.Repeat("-", 25), strings.Repeat("[", 65) + strings.Repeat("]", 65),
	} {
		item := AppendFromJSON(nil, []byte(text))
		got, ok := EmbeddedJSON(item)
		require.True(t, ok, text)
		require.Equal(t, text, string(got))
	}
}

// Every finite binary16 survives. The next binary32 above it is not a binary16.
func TestHalfFloats(t *testing.T) {
	for i := 0; i < 1<<16; i += exhaustive.Step(7) {
		item := []byte{Other | twoBytes, byte(i >> 8), byte(i)}
		r := NewReader(item)
		h, err := r.Head()
		require.NoError(t, err)
		f, ok := h.float()
		require.True(t, ok)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			continue
		}
		require.Equal(t, item, appendFloat(nil, f), "%x", i)
		var theirs float64
		require.NoError(t, oracle.Unmarshal(item, &theirs))
		require.Equal(t, math.Float64bits(theirs), math.Float64bits(f))
		require.Len(t, appendFloat(nil, float64(math.Nextafter32(float32(f), 1e9))), 1+4, "%x", i)
	}
}

// Numbers of every size survive exactly.
func TestNumbersSurvive(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 / exhaustive.Step(4) {
		f := math.Float64frombits(random.Uint64())
		if random.IntN(2) == 0 {
			f = float64(math.Float32frombits(random.Uint32()))
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			continue
		}
		for _, number := range []string{
			string(appendJSONFloat(nil, f)), strconv.FormatFloat(f, 'e', -1, 64), strconv.FormatFloat(f, 'e', random.IntN(20), 64),
			strconv.FormatInt(int64(random.Uint64())>>random.IntN(64), 10), strconv.Itoa(random.IntN(100000)) + "." + strconv.Itoa(random.IntN(100000)),
		} {
			requireSameNumber(t, number, string(AppendJSON(nil, AppendFromJSON(nil, []byte(number)))))
		}
		require.Equal(t, IsJSON, modelOf(t, AppendFromJSON(nil, appendJSONFloat(nil, f))), "%g", f)
	}
}

func modelOf(t *testing.T, item []byte) Model {
	t.Helper()
	model, err := Check(item)
	require.NoError(t, err)
	return model
}

// maxComparedExponent bounds the numbers that are compared as fractions. Larger ones must
// have the same text.
const maxComparedExponent = 5000

// requireSameNumber compares two JSON numbers exactly.
func requireSameNumber(t *testing.T, want, got string) {
	t.Helper()
	if want == got {
		return
	}
	_, e, _ := strings.Cut(strings.ToLower(want), "e")
	exponent, _ := strconv.Atoi(e)
	if zero := strings.Trim(strings.ToLower(want), "-0.") == "" || strings.HasPrefix(strings.Trim(strings.ToLower(want), "-0."), "e"); zero {
		require.Contains(t, []string{"0.0", "-0.0"}, got, want)
		require.Equal(t, strings.HasPrefix(want, "-"), strings.HasPrefix(got, "-"), want)
		return
	}
	require.LessOrEqual(t, max(exponent, -exponent), maxComparedExponent, "%s became %s", want, got)
	a, ok := new(big.Rat).SetString(want)
	require.True(t, ok, want)
	b, ok := new(big.Rat).SetString(got)
	require.True(t, ok, got)
	require.Zero(t, a.Cmp(b), "%s became %s", want, got)
}

// requireSameJSON compares two JSON values: numbers exactly, members in order.
func requireSameJSON(t *testing.T, want, got []byte) {
	t.Helper()
	a, b := json.NewDecoder(strings.NewReader(string(want))), json.NewDecoder(strings.NewReader(string(got)))
	a.UseNumber()
	b.UseNumber()
	for {
		x, errX := a.Token()
		y, errY := b.Token()
		require.Equal(t, errX, errY, "%s became %s", want, got)
		if errX != nil {
			return
		}
		n, isNumber := x.(json.Number)
		if !isNumber {
			require.Equal(t, x, y, "%s became %s", want, got)
			continue
		}
		require.IsType(t, json.Number(""), y, "%s became %s", want, got)
		requireSameNumber(t, string(n), string(y.(json.Number)))
	}
}

func FuzzCBORFromJSON(f *testing.F) {
	for _, seed := range []string{someJSON, `[1e400,-0,18446744073709551616]`, `"\ud800"`, `{"a":1,"a":2}`, `0.1000000000000000000001`, `[[],{},""]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		compact, err := compactJSON(text)
		if err != nil {
			return
		}
		item := AppendFromJSON(nil, compact)
		require.NotEqual(t, Only, modelOf(t, item))
		require.NoError(t, oracle.Wellformed(item))
		back := AppendJSON(nil, item)
		if embedded, ok := EmbeddedJSON(item); ok {
			require.Equal(t, string(compact), string(embedded))
			require.Equal(t, string(compact), string(back))
			return
		}
		var theirs any
		require.NoError(t, oracle.Unmarshal(item, &theirs))
		requireSameJSON(t, compact, back)
		require.Equal(t, item, AppendFromJSON(nil, back), "a second conversion changes nothing")
	})
}

func FuzzCBOR(f *testing.F) {
	for _, seed := range []string{
		"a2616101616283f5f4f6", "9f0102ff", "bf6161fb3ff0000000000000ff", "7f616161c3ff", "c249010000000000000000", "d90106426161", "a20100180100",
		"a2f93c0000fb3ff000000000000000", "5f41004100ff", "f97e00", "a18000", "3bffffffffffffffff", "9bffffffffffffffff",
	} {
		f.Add(unhex(f, seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		model, err := Check(body)
		r := Reader{b: body}
		text, errJSON := r.AppendPayload(nil)
		if err != nil {
			return
		}
		require.NoError(t, oracle.Wellformed(body))
		require.Equal(t, model == IsJSON || model == HasJSON && errJSON == nil, errJSON == nil)
		if model != IsJSON {
			return
		}
		requireSameAsTheirs(t, body)
		compact, err := compactJSON(text)
		require.NoError(t, err)
		require.Equal(t, string(text), string(compact), "the JSON is compact")
		again := AppendFromJSON(nil, text)
		require.Equal(t, IsJSON, modelOf(t, again))
		requireSameJSON(t, text, AppendJSON(nil, again))
		require.Equal(t, oneForm(body), oneForm(again), "the same value")
	})
}

// requireSameAsTheirs checks that the oracle reads the item and finds no duplicate key.
func requireSameAsTheirs(t *testing.T, item []byte) {
	t.Helper()
	var theirs any
	require.NoError(t, oracle.Unmarshal(item, &theirs))
}

func oneForm(item []byte) []byte {
	r := Reader{b: item}
	return r.appendOneForm(nil)
}

// compactJSON checks JSON as a publish does: at most MaxDepth deep, without white space and
// duplicate members.
func compactJSON(text []byte) ([]byte, error) {
	if !utf8.Valid(text) || bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > MaxDepth {
		return nil, errors.New("a publish refuses it")
	}
	return jsontext.AppendFormat(nil, text, jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(false))
}
