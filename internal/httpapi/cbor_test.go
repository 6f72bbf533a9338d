package httpapi

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const (
	cborBody     = "Content-Type: application/cbor"
	sequenceBody = "Content-Type: application/cbor-seq"
)

func unhex(t testing.TB, text string) string {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return string(b)
}

// inCBOR encodes v with a third-party CBOR library.
func inCBOR(t testing.TB, v any) string {
	t.Helper()
	b, err := cbor.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

// A message published in CBOR reaches JSON readers as JSON, if JSON can express it. CBOR
// readers get the original bytes.
func TestPublishingInCBOR(t *testing.T) {
	for _, c := range []struct {
		name, body string
		json       string // empty: JSON cannot express it
	}{
		{"a map", inCBOR(t, map[string]any{"n": []any{1, 2.5, nil}}), `{"n":[1,2.5,null]}`},
		{"without lengths", unhex(t, "bf 6161 9f 1801 7f 6161 6162 ff ff ff"), `{"a":[1,"ab"]}`},
		{"a large number", unhex(t, "c249010000000000000000"), `18446744073709551616`},
		{"embedded JSON", unhex(t, "d90106 4a") + ` [ 1e400 ]`, `[1e400]`},
		{"bytes", inCBOR(t, []byte{1, 2}), ``},
		{"numbers for keys", inCBOR(t, map[int]int{1: 2}), ``},
		{"undefined", "\xf7", ``},
		{"a date", unhex(t, "c11a514b67b0"), ``},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{})
			k.wantOK("/v1/topics/a/messages", c.body, cborBody)
			m := k.Held("a")[0]
			if c.json != "" {
				require.Equal(t, wire.Message{Position: m.Position, Time: m.Time, Data: []byte(c.json)}, *m, c.name)
			} else {
				require.Equal(t, wire.Message{Position: m.Position, Time: m.Time, Type: wire.CBORType, Data: []byte(c.body)}, *m, c.name)
			}
			frames, _ := k.Parts.Broker.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, frame.Limit{Frames: 1, Bytes: 1}, time.Now())
			if kept := frames[0].Message(); kept.CBOR {
				require.Equal(t, c.body, string(kept.Data), "to the byte")
				require.Contains(t, string(wire.Content{Message: kept}.AppendCBOR(nil)), c.body)
			}
		})
	}
}

func TestCBORThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for name, body := range map[string]string{
			"nothing":                   "",
			"two items":                 "\x01\x02",
			"half an item":              "\x82\x01",
			"invalid UTF-8":             "\x61\xff",
			"65 deep":                   strings.Repeat("\x81", 65) + "\x00",
			"a key twice":               unhex(t, "a2 6161 01 6161 02"),
			"a key twice, not the same": unhex(t, "a2 01 01 1801 02"),
			"embedded text":             unhex(t, "d90106 41 78"),
			"embedded, a member twice":  unhex(t, "d90106 4d") + `{"a":1,"a":2}`,
		} {
			t.Log(name)
			k.WantProblem(wire.CodeInvalidBody, "POST", "/v1/topics/a/messages", body, cborBody)
		}
		k.WantProblem(wire.CodeInvalidBody, "POST", "/v1/topics/a/messages", `{"a":1,"\u0061":2}`, lanetest.JSONType)
		k.WantProblem(wire.CodeMessageTooLarge, "POST", "/v1/topics/a/messages", "\x5a\x00\x01\x00\x00"+strings.Repeat("x", 64<<10), cborBody)
		require.Empty(t, k.Held("a"))
	})
}

// Under one idempotency key, a CBOR body and a JSON body differ even if their values are
// equal.
func TestAnIdempotencyKeyBelongsToOneEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		const path, key = "/v1/topics/a/messages", "Idempotency-Key: k"
		first := k.wantOK(path, "\x01", cborBody, key)
		require.Equal(t, first, k.wantOK(path, "\x01", "Content-Type: Application/CBOR; x=y", key))
		k.WantProblem(wire.CodeIdempotencyMismatch, "POST", path, "1", lanetest.JSONType, key)
		require.Len(t, k.Held("a"), 1)
	})
}

func TestTheLaneTakesCBOR(t *testing.T) {
	k := newLaneKit(t, lane.HandOff)
	for range 3 {
		k.wantOK("/v1/topics/a/messages", "\x81\x01", cborBody)
		k.WantProblem(wire.CodeInvalidBody, "POST", "/v1/topics/a/messages", "\x81", cborBody)
	}
	for _, m := range k.Held("a") {
		require.Equal(t, "[1]", string(m.Data))
	}
}

// A sequence of maps is published like an array of objects.
func TestManyMessagesInCBOR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		type item = map[string]any
		items := []struct {
			item any
			want string
		}{
			{item{"topic": "a", "data": item{"n": 1.5}, "key": "k", "client": "c", "id": "one", "ttl": 60}, "a:1"},
			{item{"topic": "a", "data": []byte{1}}, "a:2"},
			{item{"topic": "a", "data": nil}, "a:3"},
			{item{"topic": "a", "type": "text/plain", "text": "hé"}, "a:4"},
			{item{"topic": "a", "type": "image/png", "bytes": []byte{0xff}}, "a:5"},
			{item{"topic": "a", "type": "application/json", "text": " [1, 2]"}, "a:6"},
			{item{"topic": "a", "data": item{"n": 1.5}, "key": "k", "client": "c", "id": "one", "ttl": 60}, "a:1"},
			{cbor.RawMessage("\xbf\x65topic\x61a\x64data\x18\x07\xff"), "a:7"},

			{7, "invalid_request"},
			{cbor.RawMessage("\xa0"), "invalid_topic"},
			{item{"topic": "a"}, "invalid_request"},
			{item{"topic": "a", "data": 1, "tll": 5}, "invalid_request"},
			{item{"topic": 7, "data": 1}, "invalid_request"},
			{item{"topic": "a", "data": 1, "type": "a/b"}, "invalid_request"},
			{item{"topic": "a", "data": 1, "bytes": []byte{}}, "invalid_request"},
			{item{"topic": "a", "type": "a/b", "bytes": "text"}, "invalid_request"},
			{item{"topic": "a", "type": "a/b", "base64": "AA=="}, "invalid_request"},
			{item{"topic": "a", "data": 1, "base64": "AA=="}, "invalid_request"},
			{item{"topic": "a", "data": 1, "Data": 2}, "invalid_request"},
			{item{"topic": "a", "Data": 2}, "invalid_request"},
			{item{"topic": "a", "type": "a/b", "Base64": "AA=="}, "invalid_request"},
			{item{"topic": "a", "data": 1, "ttl": 1.5}, "invalid_request"},
			{item{"topic": "a", "data": 1, "key": []byte("k")}, "invalid_request"},
			{map[any]any{1: 2, "topic": "a", "data": 1}, "invalid_request"},
			{cbor.RawMessage("\xa3\x65topic\x61a\x64data\x01\x64data\x02"), "invalid_request"},
			{cbor.RawMessage("\xa2\x65topic\x61\xff\x64data\x01"), "invalid_request"},
			{cbor.RawMessage("\xa2\x65topic\x61a\x64data\xa2\x01\x01\x01\x02"), "invalid_body"},
			{item{"topic": "_a", "data": 1}, "reserved_topic"},
			{item{"topic": "a", "data": 8}, "a:8"},
		}
		var body string
		for _, i := range items {
			body += inCBOR(t, i.item)
		}
		resp := k.Do("POST", manyPath, body, sequenceBody)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, "application/cbor-seq", resp.Header.Get("Content-Type"))
		answers := cbor.NewDecoder(resp.Body)
		for _, i := range items {
			var answer map[string]any
			require.NoError(t, answers.Decode(&answer))
			require.Equal(t, i.want, told(resultOf(t, answer)), "%v", i.item)
		}
		held := k.Held("a")
		require.Equal(t, `{"n":1.5}`, string(held[0].Data))
		require.Equal(t, []string{"one", "k"}, []string{held[0].ID, held[0].Key})
		require.Equal(t, []string{wire.CBORType, "\x41\x01"}, []string{held[1].Type, string(held[1].Data)})
		require.Equal(t, "null", string(held[2].Data))
		require.Equal(t, "hé", string(held[3].Data))
		require.Equal(t, "\xff", string(held[4].Data))
		require.Equal(t, "[1,2]", string(held[5].Data))
		require.Equal(t, "7", string(held[6].Data))
	})
}

// resultOf converts a CBOR map to a PublishResult by way of JSON.
func resultOf(t *testing.T, answer map[string]any) (r wire.PublishResult) {
	t.Helper()
	if problem, ok := answer["problem"].(map[any]any); ok {
		members := make(map[string]any)
		for name, value := range problem {
			members[name.(string)] = value
		}
		answer["problem"] = members
	}
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	return r
}

func TestASequenceThatCannotBeReadIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		good := inCBOR(t, map[string]any{"topic": "a", "data": 1})
		k.WantProblem(wire.CodeInvalidRequest, "POST", manyPath, good+"\xa1", sequenceBody)
		k.WantProblem(wire.CodeInvalidRequest, "POST", manyPath, good+"\x1c", sequenceBody)
		k.WantProblem(wire.CodeInvalidRequest, "POST", manyPath, good+"\xff", sequenceBody)
		k.WantProblem(wire.CodeMessageTooLarge, "POST", manyPath, strings.Repeat("\xa0", 1000+1), sequenceBody)
		require.Empty(t, k.Held("a"))
		require.Empty(t, k.wantOK(manyPath, "", sequenceBody))
	})
}
