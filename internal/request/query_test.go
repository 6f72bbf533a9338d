package request

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// undecodable must not be decoded.
type undecodable struct{}

func (*undecodable) UnmarshalJSON([]byte) error { panic("decoded") }

// The members and topics in a body, a first item and a command are counted before they are
// decoded.
func TestABodyWithTooManyTopicsIsNotDecoded(t *testing.T) {
	for text, commas := range map[string]struct{ members, topics int }{
		`{}`: {0, 0},
		`{"topics":["a"],"client":"x","ack":true}`:                       {2, 0},
		`{"topics":["a","b","c"],"client":"x","ack":true}`:               {2, 2},
		`{"add":["a","b"],"remove":["c","d"]}`:                           {1, 2},
		`{"topics":["a,[\"{,","b\\"],"client":"a,b"}`:                    {1, 1},
		` { "topics" : [ {"topic":"a","max_rate":"1/s"} , "b", "c" ] } `: {0, 2},
		`{"topics":["a"` + strings.Repeat(`,"a"`, 9) + `]}`:              {0, 9},
		`{"add":["a"]` + strings.Repeat(`,"add":["a"]`, 9) + `}`:         {9, 0},
	} {
		const never = 100
		for n := 1; n < 12; n++ {
			require.Equal(t, commas.members >= n, depthOfCommas([]byte(text), n, never) == 1, "%s, %d", text, n)
			require.Equal(t, commas.topics >= n, depthOfCommas([]byte(text), never, n) == 2, "%s, %d", text, n)
		}
	}
	const most = 100
	d := undecodable{}
	many := `{"topics":["a"` + strings.Repeat(`,"a"`, most) + `]}`
	require.ErrorIs(t, decodeBody([]byte(many), &d, most), &wire.Problem{Code: wire.CodeTooManySubscriptions})
	require.ErrorContains(t, new(Connect).Complete(cbor.AppendFromJSON(nil, []byte(many)), most), "must name at most", "the first item of a TCP connection")

	command, err := CommandOf([]byte(`{"ref":7,"subscribe"`+strings.TrimPrefix(many, `{"topics"`)), false, most, most)
	require.ErrorContains(t, err, "must name at most", "a command")
	require.Equal(t, &wire.Command{Ref: new(uint64(7))}, command)

	repeated := `{"ref":7` + strings.Repeat(`,"subscribe":["x"]`, cbor.MaxMembers) + `}`
	require.ErrorIs(t, decodeBody([]byte(repeated), &d, most), errMembers)
	for name, read := range map[string]func() (*wire.Command, error){
		"JSON": func() (*wire.Command, error) { return CommandOf([]byte(repeated), false, most, most) },
		"CBOR": func() (*wire.Command, error) {
			member := cbor.AppendText(cbor.AppendText(nil, "auth"), "t")
			return CommandOf(append(cbor.AppendHead(nil, cbor.Map, cbor.MaxMembers+1), bytes.Repeat(member, cbor.MaxMembers+1)...), true, most, most)
		},
	} {
		command, err := read()
		require.ErrorContains(t, err, "at most 32", name)
		require.Nil(t, command, "%s: it ends the connection", name)
	}
}

// Whatever reads a request refuses members in other cases, members that appear twice, and null.
func TestEveryRequestIsReadStrictly(t *testing.T) {
	inCBOR := func(text string) []byte { return cbor.AppendFromJSON(nil, []byte(text)) } // with a member twice, no map
	many := func(mediaType, body string) error {
		form, err := ManyFormOf(Head{ContentType: Header{mediaType, 1}})
		if err != nil {
			return err
		}
		items, err := form.Split([]byte(body))
		for _, raw := range items {
			item, err := form.Item(raw)
			if err == nil {
				_, err = MessageOfItem(item, 100)
			}
			if err != nil {
				return err
			}
		}
		return err
	}
	command := func(raw []byte, binary bool) error { _, err := CommandOf(raw, binary, 9, 9); return err }
	for name, asked := range map[string]struct {
		member, value string
		read          func(text string) error
	}{
		"session":          {"client", `"c"`, func(text string) error { _, err := OpeningOf([]byte(text), 9); return err }},
		"start":            {"topic", `"a"`, func(text string) error { _, err := OpeningOf([]byte(`{"topics":[`+text+`]}`), 9); return err }},
		"change":           {"add", `["a"]`, func(text string) error { _, err := ChangeOf([]byte(text), 9); return err }},
		"poll":             {"topics", `["a"]`, func(text string) error { return TopicPollInBody("", Accepts{}, []byte(text), 9).Fault }},
		"many in an array": {"data", "1", func(text string) error { return many("application/json", `[{"topic":"a",`+text[1:]+"]") }},
		"many in lines":    {"data", "1", func(text string) error { return many("application/x-ndjson", `{"topic":"a",`+text[1:]) }},
		"many in CBOR": {"data", "1", func(text string) error {
			return many("application/cbor-seq", string(inCBOR(`{"topic":"a",`+text[1:])))
		}},
		"command":         {"subscribe", `["a"]`, func(text string) error { return command([]byte(text), false) }},
		"command in CBOR": {"subscribe", `["a"]`, func(text string) error { return command(inCBOR(text), true) }},
		"publish in CBOR": {"publish", `{"topic":"a","data":1}`, func(text string) error { return command(inCBOR(text), true) }},
		"first item":      {"topics", `["a"]`, func(text string) error { return new(Connect).Complete(inCBOR(text), 9) }},
		"revocation":      {"session", "1000", func(text string) error { _, err := RevokeOf([]byte(text)); return err }},
	} {
		t.Log(name)
		object := func(members ...string) string { return "{" + strings.Join(members, ",") + "}" }
		is := fmt.Sprintf("%q:%s", asked.member, asked.value)
		other := strings.Replace(is, asked.member, strings.ToUpper(asked.member), 1)
		require.NoError(t, asked.read(object(is)))
		require.ErrorContains(t, asked.read(object(other)), "unknown field")
		require.ErrorContains(t, asked.read(object(is, other)), "unknown field")
		require.Error(t, asked.read(object(is, is)))
		if asked.member != "data" { // null is a payload
			require.Error(t, asked.read(object(fmt.Sprintf("%q:null", asked.member))))
		}
	}
	require.ErrorContains(t, many("application/json", `[{"topic":"a","type":"a/b","base64":"aG\nk="}]`), "illegal character")
	require.ErrorContains(t, many("application/json", `[{"topic":"a","data":{"a":1,"a":2}}]`), string(wire.CodeInvalidBody))
	require.ErrorContains(t, many("application/json", `[{"topic":"a","type":"json","text":"1"}]`), string(wire.CodeUnsupportedType))

	named, err := CommandOf([]byte(`{"ref":7,"REF":8,"ping":true}`), false, 9, 9)
	require.ErrorContains(t, err, "unknown field")
	require.EqualValues(t, 7, *named.Ref, "the reply has the ref of that name")
}

// A body is an object, also where there may be none.
func TestABodyIsAnObject(t *testing.T) {
	for name, read := range map[string]func(body []byte) error{
		"session":    func(body []byte) error { _, err := OpeningOf(body, 9); return err },
		"change":     func(body []byte) error { _, err := ChangeOf(body, 9); return err },
		"poll":       func(body []byte) error { return TopicPollInBody("", Accepts{}, body, 9).Fault },
		"subject":    func(body []byte) error { _, err := SubjectOf(body); return err },
		"revocation": func(body []byte) error { _, err := RevokeOf(body); return err },
	} {
		for body, detail := range map[string]string{
			"null": "the value must not be null", " null\n": "the value must not be null",
			" \n": "unexpected EOF", "[]": "the value cannot be of the type array", "[null]": "the value cannot be of the type array",
			`"topics"`: "the value cannot be of the type string", "1": "the value cannot be of the type number", "true": "the value cannot be of the type bool",
		} {
			require.ErrorContains(t, read([]byte(body)), "the body cannot be read: "+detail, "%s: %s", name, body)
		}
	}
}

// A parameter whose value is empty would pass for none, and the client would get what it did not
// ask for.
func TestNoParameterIsEmpty(t *testing.T) {
	none := func() *auth.Credentials { return &auth.Credentials{} }
	for name, asked := range map[string]struct {
		query      string // it is valid
		parameters string
		read       func(query string) error
	}{
		"publish": {"key=&ttl=60", "client session", func(query string) error { _, err := MessageOf(Head{Topic: "a", Query: query}); return err }},
		"poll":    {"ack=1", "mode format token", func(query string) error { return PollOf([]byte(query), Accepts{}, none()).Fault }},
		"topics":  {"topic=a&mode=stream", "client echo format hello max_rate token", func(query string) error { return TopicPollOf(query, Accepts{}, none()).Fault }},
		"topics in a body": {"mode=stream", "client echo format hello max_rate", func(query string) error {
			return TopicPollInBody(query, Accepts{}, []byte(`{"topics":["a"]}`), 9).Fault
		}},
		"SSE":         {"topic=a&last_event_id=&lastEventId=", "client echo heartbeat max_rate session token", func(query string) error { return EventsOf(query, nil, none()).Fault }},
		"SSE, joined": {"session=s", "ack", func(query string) error { return EventsOf(query, nil, none()).Fault }},
		"WebSocket":   {"topic=a", "ack client echo format max_rate session token", func(query string) error { return ConnectOf(query, Accepts{}, none()).Fault }},
		"list":        {"_=", "after limit", func(query string) error { return PageOf(query).Fault }},
		"history":     {"_=", "after before format limit newest", func(query string) error { return HistoryOf("a", query, Accepts{}).Fault }},
		"sessions":    {"_=", "limit sort", func(query string) error { _, _, err := SessionListOf(query); return err }},
	} {
		require.NoError(t, asked.read(asked.query), name)
		for parameter := range strings.FieldsSeq(asked.parameters) {
			for _, form := range []string{"&%s=", "&%s"} {
				require.ErrorContains(t, asked.read(asked.query+fmt.Sprintf(form, parameter)), parameter+" is empty", name)
			}
		}
	}
	require.ErrorContains(t, PollOf([]byte("ack="), Accepts{}, none()).Fault, "ack is empty")
	_, err := MessageOf(Head{Topic: "a", Query: "ttl="})
	require.ErrorContains(t, err, "ttl is empty")
}

// Nor is a member that has the name of such a parameter.
func TestNoTextOfARequestIsEmpty(t *testing.T) {
	for _, text := range []string{`{"topics":["a"],"client":""}`, `{"topics":[{"topic":"a","max_rate":""}]}`} {
		_, err := OpeningOf([]byte(text), 9)
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeInvalidRequest}, text)
		require.ErrorIs(t, new(Connect).Complete(cbor.AppendFromJSON(nil, []byte(text)), 9), &wire.Problem{Code: wire.CodeInvalidRequest}, text)
	}
	_, err := CommandOf([]byte(`{"subscribe":[{"topic":"a","max_rate":""}]}`), false, 9, 9)
	require.ErrorContains(t, err, "max_rate must be")
	for _, text := range []string{`{"subject":""}`, `{"subject":"","token_id":"1"}`, `{"token_id":"1","session":0}`} {
		_, err := RevokeOf([]byte(text))
		require.ErrorContains(t, err, "must have exactly one", text)
	}
	for _, member := range []string{"auth", "session"} {
		item := cbor.AppendFromJSON(nil, fmt.Appendf(nil, `{%q:""}`, member))
		require.ErrorContains(t, ConnectInItem(item, &auth.Credentials{}).Fault, member+" is empty")
	}
}

// A reply has the ref of its command, or none: that of nobody could be taken for that of another.
func TestARefThatCannotBeReadIsNone(t *testing.T) {
	const most = 9
	for _, c := range []struct {
		members string
		ref     *uint64
	}{
		{`"ref":7`, new(uint64(7))},
		{`"ref":0`, new(uint64(0))},
		{`"ref":9007199254740991`, new(uint64(wire.MaxOffset))},
		{`"ref":9007199254740992`, nil},
		{`"ref":18446744073709551616`, nil},
		{`"ref":-1`, nil},
		{`"ref":1.5`, nil},
		{`"ref":7.0`, nil},
		{`"ref":7e0`, nil},
		{`"ref":"7"`, nil},
		{`"ref":null`, nil},
		{`"ref":[7]`, nil},
		{`"ref":{}`, nil},
		{`"Ref":7`, nil},
		{`"a":1`, nil},
	} {
		for _, rest := range []string{`"ping":true`, `"ping":1`, `"ping":true,"unknown":1`, `"ping":true,"ack":1`, `"publish":{}`, `"subscribe":["a..b"]`} {
			text := "{" + c.members + "," + rest + "}"
			for name, raw := range map[string][]byte{"JSON": []byte(text), "CBOR": cbor.AppendFromJSON(nil, []byte(text))} {
				command, err := CommandOf(raw, name == "CBOR", most, most)
				require.True(t, err != nil || c.ref != nil, "%s in %s", text, name)
				require.Equal(t, c.ref, command.Ref, "%s in %s: %v", text, name, err)
				if ref, _ := Peek(raw, name == "CBOR"); err != nil {
					require.Equal(t, c.ref, ref, "%s in %s, which is refused unread", text, name)
				}
			}
		}
	}
	for _, text := range []string{`{"ref":07,"ping":true}`, `{"ref":7,"ping":tru`, `{"ref":7} {"ref":8}`} {
		command, err := CommandOf([]byte(text), false, most, most)
		require.Error(t, err, text)
		require.Nil(t, command, text)
		ref, _ := Peek([]byte(text), false)
		require.Nil(t, ref, "%s, which is refused unread", text)
	}
	for _, text := range []string{`{"ref":7,"ref":8,"ping":true}`, `{"ref":7,"ref":7,"ping":true}`, `{"ref":7,"ref":"x","ping":true}`, `{"ref":"x","ref":7,"ping":true}`} {
		command, err := CommandOf([]byte(text), false, most, most)
		require.Error(t, err, text)
		require.Nil(t, command.Ref, text)
	}
}

func TestAProblemShowsCharactersAndNotBytes(t *testing.T) {
	for body, want := range map[string]string{
		`{"topics":[é]}`:        "invalid character 'é' at start of value",
		`{"topics":[x]}`:        "invalid character 'x' at start of value",
		"{\"client\":\"\x01\"}": `invalid character '\x01' in string`,
		`{"topics":`:            "unexpected EOF",
		`{"topïcs":[]}`:         `unknown field "topïcs"`,
	} {
		require.ErrorContains(t, decode([]byte(body), new(wire.OpenRequest)), want)
	}
}

func TestAValueOfTheWrongTypeIsQuoted(t *testing.T) {
	for value, detail := range map[string]string{
		"0.5":                          `"ttl" cannot be 0.5`,
		"-1":                           `"ttl" cannot be -1`,
		"1" + strings.Repeat("9", 400): `"ttl" cannot be 1` + strings.Repeat("9", 63) + "…",
		`"x"`:                          `"ttl" cannot be of the type string`,
	} {
		var into struct {
			TTL *uint64 `json:"ttl"`
		}
		require.ErrorContains(t, decode([]byte(`{"ttl":`+value+`}`), &into), "the body cannot be read: "+detail)
	}
	require.Equal(t, `ttl must be 1 to 9; got "0.5"`, outside("ttl", "0.5", 1, 9).Detail)
}

// A publisher, or the hook, that states an identity gets the error for an unknown member.
func TestNobodyCanStateAnIdentity(t *testing.T) {
	for _, member := range []string{`"by":"bob"`, `"By":"bob"`, `"claims":{}`} {
		_, err := readItem([]byte(`{"topic":"id.a","data":1,` + member + `}`))
		require.ErrorContains(t, err, "unknown field", member)
		_, err = CommandOf([]byte(`{"publish":{"topic":"id.a","data":1,`+member+`}}`), false, 9, 9)
		require.ErrorContains(t, err, "unknown field", member)
	}
	for _, member := range []string{"626279 63626f62", "66636c61696d73 a0"} {
		item := "a3 65746f706963 6469642e61 6464617461 01" + member
		b, err := hex.DecodeString(strings.ReplaceAll(item, " ", ""))
		require.NoError(t, err)
		_, err = readCBORItem(b)
		require.ErrorContains(t, err, "unknown field", member)
	}
}
