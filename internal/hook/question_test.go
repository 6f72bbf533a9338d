package hook

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

func TestTheQuestionHasTheMessage(t *testing.T) {
	at := wire.Position{Topic: "a.b"}
	for want, asked := range map[string]struct {
		principal Principal
		m         wire.Message
		ttl       time.Duration
	}{
		`{"type":"publish","topic":"a.b","principal":"","message":{"data":1}}`: {
			m: wire.Message{Position: at, Data: []byte("1")},
		},
		`{"type":"publish","topic":"a.b","principal":"ann \"1\"","claims":{"name":"Ann","admin":true},"message":{"id":"k","key":"\"","client":"c","ttl":60,"type":"text/plain","text":"h\ni"}}`: {
			principal: Principal{Subject: `ann "1"`, Claims: []byte(`{"name":"Ann","admin":true}`)}, ttl: time.Minute,
			m: wire.Message{Position: at, ID: "k", Key: `"`, Client: "c", Type: "text/plain", Data: []byte("h\ni")},
		},
		`{"type":"publish","topic":"a.b","principal":"\ufffd","message":{"ttl":1,"type":"image/png","base64":"/w=="}}`: {
			principal: Principal{Subject: "\xff"}, ttl: time.Second,
			m: wire.Message{Position: at, Type: "image/png", Data: []byte{0xff}},
		},
		`{"type":"publish","topic":"a.b","principal":"","message":{"data":[1,2]}}`: {
			m: wire.Message{Position: at, CBOR: true, Data: []byte{0x82, 1, 2}},
		},
	} {
		got := appendQuestion(nil, asked.principal, &asked.m, asked.ttl)
		require.Equal(t, want+"\n", string(got))
		require.True(t, json.Valid(got))
	}
}

func TestAnswersAreParsed(t *testing.T) {
	for body, want := range map[string]wire.HookAnswer{
		"":                                      {},
		" \r\n":                                 {},
		`{}`:                                    {},
		`{"message":{"data":null}}`:             {Message: &wire.PublishItem{Data: json.RawMessage("null")}},
		`{"message":{"topic":"a","data":[1] }}`: {Message: &wire.PublishItem{Topic: "a", Data: json.RawMessage("[1]")}},
		`{"refuse":{"detail":"no"}}`:            {Refuse: &wire.HookRefusal{Detail: "no"}},
		"\n{\"refuse\":{}}\n":                   {Refuse: &wire.HookRefusal{}},
	} {
		got, err := parseAnswer([]byte(body))
		require.NoError(t, err, "%s", body)
		require.Equal(t, want, got, "%s", body)
	}
}

// An invalid answer neither passes nor refuses the message.
func TestInvalidAnswersAreRejected(t *testing.T) {
	for _, body := range []string{
		"null", "[]", `"refuse"`, "ok", `{"refused":{}}`, `{"refuse":true}`, `{"refuse":{"why":"no"}}`, `{"refuse":{}`, `{}{}`, `{} x`,
		`{"refuse":{},"refuse":null}`, `{"message":{"data":1,"d\u0061ta":2}}`, `{"message":{"data":1},"refuse":{}}`, `{"message":{"dada":1}}`, `{"message":1}`,
		"{\"refuse\":{\"detail\":\"\xff\"}}", `{"Refuse":{}}`, `{"message":{"Data":1}}`, `{"refuse":{"detail":"a","DETAIL":"b"}}`, `{"refuse":null}`, `{"message":null}`,
		`{"refuse":{"detail":"\ud800"}}`, `{"message":{"type":"text/plain","text":"\udfff"}}`, `{"message":{"data":1,"key":"\uD800x"}}`,
		`{"refuse":{"detail":null}}`, `{"message":{"data":1,"key":null}}`, `{"message":{"type":"a/b","base64":"aG\nk="}}`, `{"message":{"data":{"a":1,"a":2}}}`,
	} {
		_, err := parseAnswer([]byte(body))
		require.Error(t, err, "%s", body)
	}
}

func FuzzHookAnswer(f *testing.F) {
	for _, seed := range []string{"", `{"message":{"data":1,"ttl":2,"key":"k"}}`, `{"refuse":{"detail":"no"}}`, `{"message":{"type":"a/b","base64":"AA=="}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		answer, err := parseAnswer(body)
		if err != nil {
			require.Zero(t, answer)
			return
		}
		require.False(t, answer.Message != nil && answer.Refuse != nil)
		if answer == (wire.HookAnswer{}) { // the application agrees: it said nothing else
			members := map[string]json.RawMessage{}
			if len(bytes.TrimSpace(body)) > 0 {
				require.NoError(t, json.Unmarshal(body, &members))
			}
			require.Empty(t, members)
		}
		written, err := json.Marshal(answer)
		require.NoError(t, err)
		_, err = parseAnswer(written)
		require.NoError(t, err, "%s", written)
	})
}
