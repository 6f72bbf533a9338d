package wire

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// requests are all that clients, operators and applications send.
var requests = []any{
	OpenRequest{}, ChangeRequest{}, PublishItem{}, Command{}, ConnectRequest{}, RevokeRequest{}, SubjectRequest{}, HookAnswer{}, HookRefusal{}, pacedStart{},
}

// sampleOf returns a value for each type of a member.
func sampleOf(t *testing.T, of reflect.Type) string {
	t.Helper()
	text, ok := map[reflect.Type]string{
		reflect.TypeFor[string](): `"a"`, reflect.TypeFor[*string](): `"a"`, reflect.TypeFor[bool](): "true", reflect.TypeFor[*bool](): "false",
		reflect.TypeFor[int64](): "7", reflect.TypeFor[uint64](): "7", reflect.TypeFor[*uint64](): "7", reflect.TypeFor[[]string](): `["a"]`, reflect.TypeFor[[]Start](): `["a",{"topic":"b@oldest","max_rate":"5/s"}]`,
		reflect.TypeFor[json.RawMessage](): `{"a":"\ud800"}`, reflect.TypeFor[*[]byte](): `"aGk="`,
		reflect.TypeFor[*PublishItem](): `{"topic":"a","data":1}`, reflect.TypeFor[*HookRefusal](): `{"detail":"a"}`,
	}[of]
	require.True(t, ok, "add a value of the type %v", of)
	return text
}

// Each member of each request has one name, appears once, and is not null.
func TestMembersOfRequestsAreReadStrictly(t *testing.T) {
	for _, r := range requests {
		of := reflect.TypeOf(r)
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			value := sampleOf(t, of.Field(i).Type)
			read := func(format string, args ...any) error {
				return UnmarshalStrict(fmt.Appendf(nil, format, args...), reflect.New(of).Interface())
			}
			at := of.Name() + "." + name
			capital, escaped := strings.ToUpper(name[:1])+name[1:], fmt.Sprintf(`\u%04x%s`, name[0], name[1:])
			require.NoError(t, read(`{"%s":%s}`, name, value), at)
			require.NoError(t, read(` { "%s" : %s } `, escaped, value), at)
			for _, other := range []string{capital, strings.ToUpper(name), name + " ", strings.Replace(name, "s", "\u017f", 1) + "\u212a"} {
				require.ErrorContains(t, read(`{"%s":%s}`, other, value), "unknown field "+Quote(other), at)
				require.ErrorContains(t, read(`{"%s":%s,"%s":%s}`, name, value, other, value), "unknown field", at)
			}
			for _, again := range []string{name, escaped} {
				require.ErrorContains(t, read(`{"%s":%s,"%s":%s}`, name, value, again, value), "member "+Quote(name)+" twice", at)
			}
			require.ErrorContains(t, read(`{"%s":%s} {}`, name, value), "after top-level value", at)
			if of.Field(i).Type == reflect.TypeFor[json.RawMessage]() {
				require.NoError(t, read(`{"%s":null}`, name), "null is published")
				continue
			}
			require.EqualError(t, read(`{"%s":null}`, name), Quote(name)+" must not be null: omit it, or send a value", at)
			if value != `"a"` {
				continue
			}
			require.NoError(t, read(`{"%s":"\uD83D\ude00"}`, name), at)
			for _, half := range []string{`\ud800`, `\uD83D`, `\udE00\ud83d`, `\ud83d\ud83d\ude00`, `\uDBFF\u0041`, `\udfff\n`} {
				require.EqualError(t, read(`{"%s":"a%s"}`, name, half), Quote(name)+" must not have half of a surrogate pair: send both halves, or the bytes in base64", at)
			}
		}
	}
}

func TestWhatIsNotReadStrictly(t *testing.T) {
	for text, says := range map[string]string{
		`{"topics":["a",null]}`:                           `"topics.1" must not be null`,
		`{"topics":[{"topic":"a","max_rate":null}]}`:      `"topics.0.max_rate" must not be null`,
		`{"topics":[{"Topic":"a"}]}`:                      `unknown field "Topic"`,
		`{"topics":[{"topic":"a","topic":"b"}]}`:          `an object has the member "topic" twice`,
		`{"topics":[3]}`:                                  `"3" is neither a text such as prices.acme@oldest nor an object`,
		`{"topics":["a..b"]}`:                             `"a..b" has an empty segment`,
		`{"topics":["a","\ud800"]}`:                       `"topics.1" must not have half of a surrogate pair`,
		`{"topics":[{"topic":"\udfff"}]}`:                 `"topics.0.topic" must not have half of a surrogate pair`,
		`{"topics":{}}`:                                   `"topics" cannot be of the type object`,
		`{"ack":1.5}`:                                     `"ack" cannot be of the type number`,
		`[]`:                                              "the value cannot be of the type array",
		`null`:                                            "the value must not be null",
		``:                                                "unexpected EOF",
		`{"client":"` + "\xff" + `"}`:                     "invalid UTF-8",
		`{"client":"a",}`:                                 "invalid character ',' at start of value after offset 13",
		`{"x":` + strings.Repeat("[", 20_000):             `unknown field "x"`,
		`{"topics":` + strings.Repeat("[", 20_000):        "exceeded max depth",
		`{"` + strings.Repeat("x", 1000) + `":1}`:         "…",
		`{"client":` + strings.Repeat("9", 1000) + "}":    `"client" cannot be of the type number`,
		`{"topics":["` + strings.Repeat("x", 999) + `"]}`: "must have at most 255 bytes",
	} {
		err := UnmarshalStrict([]byte(text), new(OpenRequest))
		require.ErrorContains(t, err, says)
		require.Less(t, len(err.Error()), 300, "it does not repeat the text")
	}
	require.ErrorContains(t, UnmarshalStrict([]byte(`{"publish":{"topic":"a","text":"\ud800"}}`), new(Command)), `"publish.text" must not have half`)
	for text, says := range map[string]string{
		`{"ttl":1.5}`:                 `"ttl" cannot be 1.5`,
		`{"ttl":1e2}`:                 `"ttl" cannot be 1e2`,
		`{"base64":"aG\nk="}`:         `"base64" is not valid: illegal character '\n'`, // RFC 4648, section 3.3
		`{"base64":"aGk=\r\n"}`:       `"base64" is not valid: illegal character '\r'`,
		`{"base64":"aGk"}`:            `"base64" is not valid: illegal base64 data`,
		`{"data":{"a":1,"\u0061":2}}`: `an object in data has the member "a" twice`,
	} {
		require.ErrorContains(t, UnmarshalStrict([]byte(text), new(PublishItem)), says)
	}
}

// Clients do not take a member of another name for one that they know.
func TestFramesHaveExactNames(t *testing.T) {
	c, err := ParseLine([]byte(`{"Position":"a@k3:1","time":1,"data":1}`))
	require.NoError(t, err)
	require.Equal(t, Content{}, c, "a frame of an unknown kind")
	c, err = ParseLine([]byte(`{"position":"a@k3:1","time":1,"ID":"x","data":null,"DATA":2,"more":{}}`))
	require.NoError(t, err)
	require.Equal(t, "null", string(c.Message.Data))
	require.Empty(t, c.Message.ID)
}

// What is read strictly, encoding/json reads alike.
func FuzzUnmarshalStrict(f *testing.F) {
	for _, seed := range []string{
		`{"topic":"a","data":{"n":[1,null]},"id":"1","ttl":60}`, `{"topic":"a","type":"a/b","base64":"AA==","key":"\ud800\u00e4"}`,
		`{"publish":{"topic":"a","data":null},"ref":7}`, `{"subscribe":["a",{"topic":"b@oldest","max_rate":"5/s"}],"ack":1,"ping":true}`, `{"Topic":"a","topic":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, r := range []any{PublishItem{}, Command{}, ConnectRequest{}} {
			strict, plain := reflect.New(reflect.TypeOf(r)).Interface(), reflect.New(reflect.TypeOf(r)).Interface()
			if UnmarshalStrict(text, strict) == nil {
				require.NoError(t, json.Unmarshal(text, plain))
				require.Equal(t, plain, strict)
			}
		}
	})
}
