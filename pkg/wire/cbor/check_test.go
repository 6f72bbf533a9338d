package cbor

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
)

// oracle is another implementation of CBOR, without bounds.
var oracle = func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, MaxNestedLevels: 65535, MaxArrayElements: 1 << 30, MaxMapPairs: 1 << 30,
		IntDec: cbor.IntDecConvertNone, DefaultMapType: nil, UTF8: cbor.UTF8RejectInvalid,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

func TestCheckCBOR(t *testing.T) {
	for _, tt := range []struct {
		name, item string
		model      Model
		wantErr    string
	}{
		{"integer", "00", IsJSON, ""},
		{"integer with a long head", "1b0000000000000001", IsJSON, ""},
		{"least integer", "3bffffffffffffffff", IsJSON, ""},
		{"text", "63e282ac", IsJSON, ""},
		{"text in parts", "7f 61 61 60 61 62 ff", IsJSON, ""},
		{"array of indefinite length", "9f 01 ff", IsJSON, ""},
		{"map of indefinite length", "bf 6161 01 ff", IsJSON, ""},
		{"bignum", "c249010000000000000000", IsJSON, ""},
		{"bignum with zeros before it", "c3 43 000001", IsJSON, ""},
		{"false, true, null", "83 f4 f5 f6", IsJSON, ""},
		{"floats", "83 f93c00 fa3f800000 fb3ff0000000000000", IsJSON, ""},
		{"embedded JSON", "d90106 41 31", HasJSON, ""},
		{"embedded text that is not JSON", "d90106 40", HasJSON, ""},

		{"embedded JSON within", "81 d90106 41 31", Only, ""},
		{"embedded JSON in parts", "d90106 5f 41 31 ff", Only, ""},
		{"embedded JSON as text", "d90106 61 31", Only, ""},
		{"bytes", "41 00", Only, ""},
		{"undefined", "f7", Only, ""},
		{"simple values", "82 f0 f8ff", Only, ""},
		{"the first simple value in two bytes", "f820", Only, ""},
		{"not a number", "f97e00", Only, ""},
		{"infinity", "fa7f800000", Only, ""},
		{"tag", "c1 00", Only, ""},
		{"bignum in parts", "c2 5f 41 01 ff", Only, ""},
		{"bignum of text", "c2 61 31", Only, ""},
		{"bignum of 401 bytes", "c2 590191 01" + strings.Repeat("00", 400), Only, ""},
		{"bignum of 400 bytes", "c2 590191 00" + strings.Repeat("ff", 400), IsJSON, ""},
		{"number as a key", "a1 00 00", Only, ""},
		{"array as a key", "a1 80 00", Only, ""},
		{"same keys of other kinds", "a5 01 00 6101 00 4101 00 20 00 f93c00 00", Only, ""},
		{"same keys in different maps", "82 a1 6161 00 a1 6161 a1 6161 00", IsJSON, ""},
		{"64 deep", strings.Repeat("81", 64) + "c24101", IsJSON, ""},
		{"64 tags", strings.Repeat("c1", 64) + "00", Only, ""},

		{"nothing", "", 0, "empty"},
		{"two items", "00 00", 0, "more bytes follow"},
		{"cut off number", "18", 0, "ends within"},
		{"cut off number", "1b00000000000000", 0, "ends within"},
		{"cut off text", "62 61", 0, "ends within"},
		{"cut off array", "82 00", 0, "ends within"},
		{"cut off map", "a1 00", 0, "ends within"},
		{"cut off array of indefinite length", "9f 00", 0, "ends within"},
		{"cut off tag", "c2", 0, "ends within"},
		{"an array of 2^64-1", "9bffffffffffffffff", 0, "ends within"},
		{"a map of 2^64-1", "bbffffffffffffffff 6161 00", 0, "ends within"},
		{"bytes of 2^64-1", "5bffffffffffffffff", 0, "ends within"},
		{"text of 2^63", "7b8000000000000000", 0, "ends within"},
		{"reserved", "1c", 0, "reserved"},
		{"number of indefinite length", "1f", 0, "reserved"},
		{"tag of indefinite length", "df 00", 0, "reserved"},
		{"false in two bytes", "f814", 0, "reserved"},
		{"the last reserved value in two bytes", "f81f", 0, "reserved"},
		{"break", "ff", 0, "break"},
		{"break in an array", "81 ff", 0, "break"},
		{"break for a value", "bf 6161 ff", 0, "break"},
		{"break behind a tag", "c1 ff", 0, "break"},
		{"bytes in text", "7f 4161 ff", 0, "part"},
		{"parts in parts", "7f 7f 6161 ff ff", 0, "part"},
		{"invalid UTF-8", "61ff", 0, "UTF-8"},
		{"invalid UTF-8 in a key", "a1 61ff 00", 0, "UTF-8"},
		{"a character in two parts", "7f 61c3 61a9 ff", 0, "UTF-8"},
		{"65 deep", strings.Repeat("81", 65) + "00", 0, "more than 64 deep"},
		{"65 maps deep", strings.Repeat("a16161", 65) + "00", 0, "more than 64 deep"},
		{"4 keys deep", "a1a1a1a1 00 00 00 00 00", Only, ""},
		{"5 keys deep", "a1a1a1a1a1 00 00 00 00 00 00", 0, "more than 4 deep"},
		{"5 keys deep, with arrays between", "a181a181a181a181a1 00 00 00 00 00 00", 0, "more than 4 deep"},
		{"65 tags", strings.Repeat("c1", 65) + "00", 0, "more than 64 deep"},
		{"a million arrays", strings.Repeat("81", 1_000_000), 0, "more than 64 deep"},

		{"key twice", "a2 6161 00 6161 01", 0, "twice"},
		{"key twice, in parts", "a2 6161 00 7f 60 6161 ff 01", 0, "twice"},
		{"key twice, with another head", "a2 6161 00 7801 61 01", 0, "twice"},
		{"number twice, with another head", "a2 01 00 1801 01", 0, "twice"},
		{"number twice, once as a bignum", "a2 01 00 c2420001 01", 0, "twice"},
		{"number below 0 twice, once as a bignum", "a2 20 00 c340 01", 0, "twice"},
		{"bignum twice, with zeros before it", "a2 c249010000000000000000 00 c24a00010000000000000000 01", 0, "twice"},
		{"bytes twice, in parts", "a2 4101 00 5f 4101 ff 01", 0, "twice"},
		{"float twice, of other lengths", "a2 f93c00 00 fb3ff0000000000000 01", 0, "twice"},
		{"array twice", "a2 8101 00 9f 1801 ff 01", 0, "twice"},
		{"map twice", "a2 a10102 00 bf0102ff 01", 0, "twice"},
		{"tag twice", "a2 c101 00 d80101 01", 0, "twice"},
		{"simple value twice", "a2 f6 00 f6 01", 0, "twice"},
		{"key twice within", "81 a1 6161 a2 6162 00 6162 00", 0, "twice"},
		{"key twice, around a map", "a2 6161 a1 6161 00 6161 00", 0, "twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			model, err := Check(unhex(t, tt.item))
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.model, model)
		})
	}
}

// A duplicate is found anywhere among many keys.
func TestManyKeys(t *testing.T) {
	const n = 500
	item := func(twice int) []byte {
		b := AppendHead(nil, Map, n)
		for i := range n {
			if i == twice {
				i = (i + n/2) % n
			}
			b = append(AppendHead(b, Uint, uint64(i)), Null)
		}
		return b
	}
	_, err := Check(item(-1))
	require.NoError(t, err)
	for twice := range n {
		_, err := Check(item(twice))
		require.ErrorIs(t, err, errDuplicate, "%d", twice)
	}
}

// Keys in another form are copied once each, however deep they nest.
func TestKeysTakeMemoryOnce(t *testing.T) {
	long := append(AppendHead(nil, Bytes, 1<<16), make([]byte, 1<<16)...)
	item := append(bytes.Repeat([]byte{Map | 1, Array | 1}, maxKeysInKeys), long...)
	item = append(item, bytes.Repeat([]byte{Null}, maxKeysInKeys)...)
	all := append(AppendHead(nil, Array, 100), bytes.Repeat(item, 100)...)
	c := checker{Reader: Reader{b: all}}
	require.NoError(t, c.item(0))
	require.Equal(t, len(all), c.at)
	require.Less(t, cap(c.spare), 4*len(item))
}

// Neither an announced length nor reading allocates. (Under the race detector, pools drop
// items.)
func TestCBORAllocatesNothing(t *testing.T) {
	const dropped = 4.0
	text, huge := []byte(someJSON), unhex(t, "9bffffffffffffffff")
	body := AppendFromJSON(nil, text)
	dst := make([]byte, 0, 4096)
	require.Less(t, testing.AllocsPerRun(1000, func() { _, _ = Check(body) }), dropped)
	require.Less(t, testing.AllocsPerRun(1000, func() { _, _ = Check(huge) }), dropped, "an error")
	require.Less(t, testing.AllocsPerRun(1000, func() { AppendFromJSON(dst, text) }), dropped)
	require.Zero(t, testing.AllocsPerRun(1000, func() { AppendJSON(dst, body) }))
}

func BenchmarkCheckCBOR(b *testing.B) {
	body := AppendFromJSON(nil, []byte(someJSON))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		_, _ = Check(body)
	}
}

func BenchmarkAppendCBORFromJSON(b *testing.B) {
	text, dst := []byte(someJSON), make([]byte, 0, 4096)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		AppendFromJSON(dst, text)
	}
}

func BenchmarkAppendJSONFromCBOR(b *testing.B) {
	body, dst := AppendFromJSON(nil, []byte(someJSON)), make([]byte, 0, 4096)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		AppendJSON(dst, body)
	}
}

// For comparison: by Go values, which keep neither the order of members nor digits.
func BenchmarkByGoValues(b *testing.B) {
	text := []byte(someJSON)
	item := AppendFromJSON(nil, text)
	b.Run("from JSON", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v any
			require.NoError(b, json.Unmarshal(text, &v))
			_, err := cbor.Marshal(v)
			require.NoError(b, err)
		}
	})
	b.Run("to JSON", func(b *testing.B) {
		mode, err := cbor.DecOptions{DefaultMapType: reflect.TypeFor[map[string]any]()}.DecMode()
		require.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			var v any
			require.NoError(b, mode.Unmarshal(item, &v))
			_, err := json.Marshal(v)
			require.NoError(b, err)
		}
	})
}
