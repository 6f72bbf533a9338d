package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var someTopic = Position{Topic: "a.b", Epoch: "k3", Offset: 18}

func TestAppendMessage(t *testing.T) {
	const head = `{"position":"a.b@k3:18","time":1700000000000`
	for _, tt := range []struct {
		name string
		m    Message
		want string // after the head
	}{
		{"JSON", Message{Data: []byte(`{"n":1.0}`)}, `,"data":{"n":1.0}}`},
		{"JSON null", Message{Data: []byte(`null`)}, `,"data":null}`},
		{"text", Message{Type: "text/plain", Data: []byte("hi")}, `,"type":"text/plain","text":"hi"}`},
		{"empty text", Message{Type: "text/plain"}, `,"type":"text/plain","text":""}`},
		{"bytes", Message{Type: "image/png", Data: []byte{0xff, 0}}, `,"type":"image/png","base64":"/wA="}`},
		{"no bytes", Message{Type: "image/png"}, `,"type":"image/png","base64":""}`},
		{"text that is no UTF-8", Message{Type: "text/plain", Data: []byte{0xff}}, `,"type":"text/plain","base64":"/w=="}`},
		{"half a rune at the end", Message{Type: "text/plain", Data: []byte("h\xc3")}, `,"type":"text/plain","base64":"aMM="}`},
		{"UTF-8 that is no text", Message{Type: "image/png", Data: []byte("hi")}, `,"type":"image/png","base64":"aGk="}`},
		{"id and key", Message{Data: []byte(`1`), ID: "i", Key: "k"}, `,"id":"i","key":"k","data":1}`},
		{"id and key with text", Message{Type: "text/plain", ID: "i", Key: "k"}, `,"id":"i","key":"k","type":"text/plain","text":""}`},
		{"escapes in a key", Message{Data: []byte(`1`), Key: "a\"\\\n\r\t\x00\x1f/"}, `,"key":"a\"\\\n\r\t\u0000\u001f/","data":1}`},
		{"escapes in a type", Message{Type: `text/plain; x="y"`}, `,"type":"text/plain; x=\"y\"","text":""}`},
		{"text of all that must be escaped", Message{Type: "text/plain", Data: []byte("\x00\b\f\v\x1f \x7f\u2028\u00e9")},
			`,"type":"text/plain","text":"\u0000\u0008\u000c\u000b\u001f ` + "\x7f\u2028\u00e9" + `"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := tt.m
			m.Position, m.Time = someTopic, 1700000000000
			line := appendMessage([]byte("before"), &m)
			require.Equal(t, "before"+head+tt.want+"\n", string(line))

			c, err := ParseLine(line[len("before"):])
			require.NoError(t, err)
			require.Equal(t, string(m.Data), string(c.Message.Data))
			m.Data, c.Message.Data = nil, nil
			require.Equal(t, &m, c.Message)
		})
	}
}

// encoding/json reads every byte as cbor.AppendJSONString wrote it.
func TestEveryCharacterSurvives(t *testing.T) {
	for r := range rune(0x300) {
		m := &Message{Position: someTopic, Type: "text/plain", Data: []byte("<" + string(r) + ">"), Key: string(r)}
		line := appendMessage(nil, m)
		require.Equal(t, 1, strings.Count(string(line), "\n"), "%q", r)
		c, err := ParseLine(line)
		require.NoError(t, err, "%q", r)
		require.Equal(t, m, c.Message, "%q", r)
	}
}

// A Decoder returns any payload of any type as it was published.
func TestMessagesRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	types := []string{"", "text/plain", "text/plain; charset=utf-8", "text/plain; charset=utf-16", "image/png", "no type"}
	values := []string{"null", "1.0", `"\u0000"`, `{"a":[{}]}`, "-0", "1e400"}
	var want []*Message
	var stream []byte
	for range 2000 {
		m := &Message{
			Position: Position{Topic: "a.b", Epoch: "k3", Offset: random.Uint64N(MaxOffset + 1)},
			Time:     random.Int64(),
			Type:     types[random.IntN(len(types))],
			ID:       randomText(random),
			Key:      randomText(random),
			Data:     randomBytes(random),
		}
		if m.Type == "" {
			m.Data = []byte(values[random.IntN(len(values))])
		}
		want = append(want, m)
		stream = appendMessage(stream, m)
	}
	got, err := readAll(NewDecoder(bytes.NewReader(stream)))
	require.Equal(t, io.EOF, err)
	require.Len(t, got, len(want))
	for i, c := range got {
		require.Equal(t, want[i], c.Message)
	}
}

func randomBytes(random *rand.Rand) []byte {
	b := make([]byte, random.IntN(20))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func randomText(random *rand.Rand) string {
	return strings.ToValidUTF8(string(randomBytes(random)), "\u00e9\"")
}

func TestCompactJSON(t *testing.T) {
	deep := func(open, inner, shut string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(shut, n)
	}
	for _, tt := range []struct {
		name, body, want, wantErr string
	}{
		{"object", " { \"a\" : [ 1 , 2 ] }\r\n", `{"a":[1,2]}`, ""},
		{"null", "null", "null", ""},
		{"string keeps its spaces", `" a  b "`, `" a  b "`, ""},
		{"escapes untouched", `"\u00e9\/\ud800\u2028<>&"`, `"\u00e9\/\ud800\u2028<>&"`, ""},
		{"beyond ASCII untouched", "\"\u2028\u00e9<>&\"", "\"\u2028\u00e9<>&\"", ""},
		{"members of two objects", `{"a":{"a":1},"b":[{"a":1},{"a":1}]}`, `{"a":{"a":1},"b":[{"a":1},{"a":1}]}`, ""},
		{"members of other spellings", `{"a":1,"A":2,"a ":3,"\u0041a":4}`, `{"a":1,"A":2,"a ":3,"\u0041a":4}`, ""},
		{"numbers untouched", "[1.0, 1e400, -0, 123456789012345678901234567890, 1E+2]", "[1.0,1e400,-0,123456789012345678901234567890,1E+2]", ""},
		{"64 arrays", deep("[", "", "]", 64), deep("[", "", "]", 64), ""},
		{"64 objects", deep(`{"a":`, "1", "}", 64), deep(`{"a":`, "1", "}", 64), ""},
		{"65 arrays", deep("[", "", "]", 65), "", "more than 64 deep"},
		{"65 objects", deep(`{"a":`, "1", "}", 65), "", "more than 64 deep"},
		{"brackets in a string", `"` + strings.Repeat("[", 100) + `\"` + strings.Repeat("{", 100) + `"`, `"` + strings.Repeat("[", 100) + `\"` + strings.Repeat("{", 100) + `"`, ""},
		{"many side by side", "[" + deep("[],", "", "", 100) + "[]]", "[" + deep("[],", "", "", 100) + "[]]", ""},
		{"a million brackets", strings.Repeat("[", 1_000_000), "", "more than 64 deep"},

		{"member twice", `{"a":1, "a":2}`, "", `the member "a" twice`},
		{"member twice, in another spelling", `{"a":1,"\u0061":2}`, "", `the member "a" twice`},
		{"member twice, beyond the basic plane", `{"\ud83d\ude00":1,"😀":2}`, "", `the member "😀" twice`},
		{"member twice, both empty", `{"":1,"":1}`, "", `the member "" twice`},
		{"member twice, deep within", `{"x":[{"y":{"b":1,"c":{},"b":1}}]}`, "", `the member "b" twice`},
		{"member twice, around an object", `{"a":{"b":1},"b":{},"a":1}`, "", `the member "a" twice`},
		{"half surrogate pairs", `{"\ud800":1,"\ud801":2}`, "", "twice"},

		{"nothing", "", "", "empty"},
		{"white space", " \t\r\n", "", "empty"},
		{"two values", "1 2", "", "not one JSON value"},
		{"two objects", "{}{}", "", "not one JSON value"},
		{"trailing garbage", "{} x", "", "not one JSON value"},
		{"trailing comma", "[1,]", "", "not one JSON value"},
		{"cut off", `{"a":`, "", "not one JSON value"},
		{"shut too often", "[]]", "", "not one JSON value"},
		{"wrong bracket", "[}", "", "not one JSON value"},
		{"no JSON", "hello", "", "not one JSON value"},
		{"single quotes", "{'a':1}", "", "not one JSON value"},
		{"NaN", "NaN", "", "not one JSON value"},
		{"number with a leading zero", "01", "", "not one JSON value"},
		{"number with a sign", "+1", "", "not one JSON value"},
		{"byte order mark", "\ufeff1", "", "not one JSON value"},
		{"line end in a string", "\"a\nb\"", "", "not one JSON value"},
		{"NUL in a string", "\"a\x00b\"", "", "not one JSON value"},
		{"unknown escape", `"\x41"`, "", "not one JSON value"},
		{"invalid UTF-8", "\"\xff\"", "", "not valid UTF-8"},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", "", "not valid UTF-8"},
		{"overlong UTF-8", "\"\xc0\xaf\"", "", "not valid UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := CompactJSON([]byte(tt.body))
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
}

// A duplicate is found among many members.
func TestCompactJSONOfManyMembers(t *testing.T) {
	var body []byte
	for i := range 2000 {
		body = fmt.Appendf(body, `"m%d":0,`, i)
	}
	_, err := CompactJSON([]byte("{" + string(body) + `"x":0}`))
	require.NoError(t, err)
	for _, twice := range []string{"m0", "m7", "m1000", "m1999"} {
		_, err := CompactJSON([]byte("{" + string(body) + `"` + twice + `":0}`))
		require.ErrorContains(t, err, twice)
	}
}

func BenchmarkCompactJSON(b *testing.B) {
	large := "[" + strings.TrimSuffix(strings.Repeat(someJSON+",", 60), ",") + "]"
	for name, body := range map[string]string{"10 bytes": `{"n":1234}`, "10 KB": large} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				_, _ = CompactJSON([]byte(body))
			}
		})
	}
}

func FuzzCompactJSON(f *testing.F) {
	for _, seed := range []string{`{"a": [1.0, 1e400]}`, "null", `"\ud800\\"`, "[[[]]]", `{"a":"]"}`, "1 2", "\"\xff\"", `{"a":{"b":1,"\u0062":2}}`, `[{"a":{"a":1}},{"a":1,"b":[],"a":1}]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := CompactJSON(body)
		if err == nil {
			again, err := CompactJSON(got)
			require.NoError(t, err)
			require.Equal(t, got, again)
			require.False(t, memberTwice(got))
		}
		if err != nil {
			refusedForTwice := strings.Contains(err.Error(), " twice")
			require.Equal(t, refusedForTwice, json.Valid(body) && utf8.Valid(body) && jsonDepth(body) <= MaxJSONDepth, "%v", err)
			require.Equal(t, refusedForTwice, refusedForTwice && memberTwice(body))
			return
		}
		require.True(t, utf8.Valid(got))
		require.NotContains(t, string(got), "\n", "it would end a frame early")
		require.Equal(t, numbersKept(t, body), numbersKept(t, got))

		again, err := CompactJSON(got)
		require.NoError(t, err)
		require.Equal(t, string(got), string(again))
	})
}

// memberTwice reports whether valid JSON has an object with a duplicate member.
func memberTwice(text []byte) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	return valueHasMemberTwice(d)
}

func valueHasMemberTwice(d *json.Decoder) (twice bool) {
	begin, _ := d.Token()
	names := make(map[any]bool)
	for begin == json.Delim('{') && d.More() {
		name, _ := d.Token()
		twice = twice || names[name]
		names[name] = true
		twice = valueHasMemberTwice(d) || twice
	}
	for begin == json.Delim('[') && d.More() {
		twice = valueHasMemberTwice(d) || twice
	}
	if _, isDelim := begin.(json.Delim); isDelim {
		_, _ = d.Token()
	}
	return twice
}

// numbersKept decodes a JSON value. Numbers stay texts.
func numbersKept(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	return v
}
