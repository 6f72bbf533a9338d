package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

const (
	linesType = "Content-Type: application/x-ndjson"
	manyPath  = "/v1/messages"
)

// publishMany publishes items as an array to one daemon and as lines to another. It
// requires equal results, and returns them with the first daemon.
func publishMany(t *testing.T, s lanetest.Settings, items ...string) (k *kit, results []wire.PublishResult) {
	t.Helper()
	k = newKit(t, s)
	array := k.wantOK(manyPath, "["+strings.Join(items, ", ")+"]", lanetest.JSONType)
	require.NoError(t, json.Unmarshal([]byte(array), &results))
	require.Len(t, results, len(items))

	lines := newKit(t, s).wantOK(manyPath, strings.Join(items, "\n"), linesType)
	require.Equal(t, len(items), strings.Count(lines, "\n"))
	for i, line := range strings.Split(strings.TrimSuffix(lines, "\n"), "\n")[:len(items)] {
		var result wire.PublishResult
		require.NoError(t, json.Unmarshal([]byte(line), &result))
		require.Equal(t, told(results[i]), told(result))
	}
	return k, results
}

// told shortens a result to its position, such as "a:3", or to its problem's code.
func told(r wire.PublishResult) string {
	if r.Problem != nil {
		return string(r.Problem.Code)
	}
	return fmt.Sprintf("%s:%d", r.Position.Topic, r.Position.Offset)
}

func TestEachOfManyMessagesIsPublishedLikeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, results := publishMany(t, lanetest.Settings{},
			`{"topic":"a","data":{"n": 1.50, "s":"<é>"},"key":"k","client":"c","id":"one"}`,
			`{"topic":"b","type":"text/plain","text":"hé"}`,
			`{"topic":"a","type":"image/png","base64":"AAH/"}`,
			`{"topic":"a","data":null,"ttl":1}`,
			`{"topic":"a","type":"application/json","text":" [1, 2]"}`,
			`{"topic":"h","data":"\ud800","key":"\uD83D\uDE00"}`,
			`{"topic":"a","data":{"n":1.50,"s":"<é>"},"key":"k","client":"c","id":"one"}`,
		)
		for i, want := range []string{"a:1", "b:1", "a:2", "a:3", "a:4", "h:1", "a:1"} {
			require.Equal(t, want, told(results[i]))
		}
		require.Equal(t, results[0], results[6], "it was published before")
		half := k.Held("h")[0]
		require.Equal(t, []string{`"\ud800"`, "😀"}, []string{string(half.Data), half.Key}, "half of a surrogate pair survives in data")
		messages := k.Held("a")
		require.Len(t, messages, 4)
		require.Equal(t, `{"n":1.50,"s":"<é>"}`, string(messages[0].Data))
		require.Equal(t, []string{"one", "k"}, []string{messages[0].ID, messages[0].Key})
		require.Equal(t, results[0].Time, messages[0].Time)
		require.Equal(t, wire.Message{Position: messages[1].Position, Time: messages[1].Time, Type: "image/png", Data: []byte{0, 1, 255}}, *messages[1])
		require.Equal(t, "null", string(messages[2].Data))
		require.Equal(t, "[1,2]", string(messages[3].Data))
		require.Equal(t, "hé", string(k.Held("b")[0].Data))
		time.Sleep(time.Second)
		_, left := k.Get("GET", "/v1/topics/a/messages", "")
		require.Contains(t, left, `"reason":"expired"`, "the third has lived its second")
	})
}

// An invalid message has a problem as its result. The other messages are published.
func TestAnInvalidMessageOfManyStopsNoOther(t *testing.T) {
	good := `{"topic":"a","data":1}`
	for _, c := range []struct {
		code wire.Code
		item string
	}{
		{wire.CodeInvalidRequest, `1`},
		{wire.CodeInvalidRequest, `null`},
		{wire.CodeInvalidRequest, `[` + good + `]`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"tll":5}`},
		{wire.CodeInvalidRequest, `{"topic":7,"data":1}`},
		{wire.CodeInvalidRequest, `{"topic":"a"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","text":"x"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","base64":"AA=="}`},
		{wire.CodeInvalidRequest, `{"topic":"a","type":"text/plain"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","type":"text/plain","data":1}`},
		{wire.CodeInvalidRequest, `{"topic":"a","type":"text/plain","text":"x","base64":"AA=="}`},
		{wire.CodeInvalidRequest, `{"topic":"a","type":"text/plain","text":"x","data":1}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"text":"x"}`},
		{wire.CodeUnsupportedType, `{"topic":"a","type":"nonsense/","text":"x"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","type":"image/png","base64":"%"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"ttl":0}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"ttl":1.5}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"ttl":99999999999}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"ttl":-1}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"ttl":"1"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"key":"` + strings.Repeat("k", wire.MaxKeyBytes+1) + `"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"client":""}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"client":"a b"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"id":""}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"id":"é"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"id":"\ud800"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","data":1,"key":"\udfff"}`},
		{wire.CodeInvalidRequest, `{"topic":"a","type":"text/plain","text":"a\uD83D"}`},
		{wire.CodeInvalidTopic, `{"data":1}`},
		{wire.CodeInvalidTopic, `{"topic":"a..b","data":1}`},
		{wire.CodeReservedTopic, `{"topic":"_a","data":1}`},
		{wire.CodeForbidden, `{"topic":"secret","data":1}`},
		{wire.CodeUnsupportedType, `{"topic":"a","type":"application/x-www-form-urlencoded","text":"a=b"}`},
		{wire.CodeInvalidBody, `{"topic":"a","type":"application/json","text":"{"}`},
		{wire.CodeInvalidBody, `{"topic":"a","data":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}`},
		{wire.CodeInvalidBody, "{\"topic\":\"a\",\"data\":\"\xff\"}"},
		{wire.CodeInvalidBody, "{\"topic\":\"a\",\"data\":1,\"key\":\"\xff\"}"},
		{wire.CodeMessageTooLarge, `{"topic":"a","data":"` + strings.Repeat("x", 64<<10) + `"}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			k, results := publishMany(t, lanetest.Settings{Authority: secretKeeper{}}, good, c.item, good)
			require.Equal(t, []string{"a:1", string(c.code), "a:2"}, []string{told(results[0]), told(results[1]), told(results[2])}, "%.80s", c.item)
			require.Equal(t, problem.Codes()[c.code], results[1].Problem.Status)
			require.NotEmpty(t, results[1].Problem.Remedy)
			require.Len(t, k.Held("a"), 2)
			require.Equal(t, 1.0, k.Counted("pubsubd_requests_refused_total", string(c.code)))
		})
	}
}

// A client may fall back from any way of publishing to any other: each takes a message of the most
// bytes, also if its JSON is twice as long, and refuses a longer one.
func TestTheSamePublishSucceedsOnEveryWay(t *testing.T) {
	const most = 1 << 20
	k := serveLane(t, lane.HandOff, lanetest.Settings{MessageBytes: most, Broker: broker.Config{HistoryBytes: 4 * most}}, nil)
	item := func(bytes int) map[string]any {
		return map[string]any{"topic": "a", "type": "text/plain", "text": strings.Repeat(`"`, bytes)} // two bytes each in JSON
	}
	post := func(contentType, begin, end string) func(bytes int) *wire.Problem {
		return func(bytes int) *wire.Problem {
			body := begin + string(request.InJSON(item(bytes))) + end
			if contentType == "application/cbor-seq" {
				body = string(lanetest.AsCBOR(body))
			}
			answer := k.wantOK(manyPath, body, "Content-Type: "+contentType)
			if contentType == "application/cbor-seq" {
				answer = string(cbor.AppendJSON(nil, []byte(answer)))
			}
			var result wire.PublishResult
			require.NoError(t, json.Unmarshal([]byte(strings.Trim(answer, "[]\n")), &result))
			return result.Problem
		}
	}
	command := func(by string) func(bytes int) *wire.Problem {
		return func(bytes int) *wire.Problem {
			c := k.Commander(by, k.Open(`{}`).Session)
			c.Send(map[string]any{"publish": item(bytes), "ref": 1})
			return c.WantReply(1).Problem
		}
	}
	for way, publish := range map[string]func(bytes int) *wire.Problem{
		"a message": func(bytes int) *wire.Problem {
			status, text := k.Get("POST", "/v1/topics/a/messages", strings.Repeat(`"`, bytes), "Content-Type: text/plain")
			if status == http.StatusOK {
				return nil
			}
			p := &wire.Problem{}
			require.NoError(t, json.Unmarshal([]byte(text), p))
			return p
		},
		"an array":   post("application/json", "[", "]"),
		"lines":      post("application/x-ndjson", "", "\n"),
		"a sequence": post("application/cbor-seq", "", ""),
		"WebSocket":  command("WebSocket"), "WebSocket in CBOR": command("WebSocket in CBOR"), "TCP": command("TCP"),
	} {
		t.Run(way, func(t *testing.T) {
			require.Nil(t, publish(most))
			refused := publish(most + 1)
			require.NotNil(t, refused)
			require.Equal(t, wire.CodeMessageTooLarge, refused.Code)
		})
	}
}

// An invalid request is answered with a problem, and no message is published.
func TestAnUnreadableBodyOfManyPublishesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		good := `{"topic":"a","data":1}`
		for i, c := range []struct {
			code    wire.Code
			body    string
			headers []string
		}{
			{wire.CodeInvalidRequest, ``, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, good, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, `[` + good, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, `[` + good + `,{]`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, `[` + good + `] 1`, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, good + "\n" + good, []string{lanetest.JSONType}},
			{wire.CodeInvalidRequest, "[]", []string{lanetest.JSONType, "Idempotency-Key: k"}},
			{wire.CodeUnsupportedType, "[]", []string{lanetest.JSONType, lanetest.JSONType}},
			{wire.CodeUnsupportedType, "[]", nil},
			{wire.CodeUnsupportedType, "[]", []string{"Content-Type: text/plain"}},
			{wire.CodeUnsupportedType, "[]", []string{"Content-Type: application/json-seq"}},
			{wire.CodeUnsupportedType, "[]", []string{"Content-Type: application/json; charset=latin1"}},
			{wire.CodeUnsupportedType, "[]", []string{"Content-Type: application/x-www-form-urlencoded"}},
			{wire.CodeForbidden, "[" + good + "]", []string{lanetest.JSONType, "Origin: http://evil.example"}},
			{wire.CodeMessageTooLarge, `[` + strings.Repeat(good+",", 1000) + good + `]`, []string{lanetest.JSONType}},
			{wire.CodeMessageTooLarge, strings.Repeat(good+"\n", 1001), []string{linesType}},
			{wire.CodeMessageTooLarge, `[` + good + strings.Repeat(" ", k.api.App.MostBytes()) + `]`, []string{lanetest.JSONType}},
			{wire.CodeMessageTooLarge, good + strings.Repeat("\n", k.api.App.MostBytes()), []string{linesType}},
		} {
			t.Log(i)
			k.WantProblem(c.code, "POST", manyPath, c.body, c.headers...)
			require.Empty(t, k.Held("a"))
		}
		k.WantProblem(wire.CodeInvalidRequest, "POST", manyPath+"?ttl=1", "[]", lanetest.JSONType)
		k.WantProblem(wire.CodeMethodNotAllowed, "GET", manyPath, "")
	})
}

func TestTheMostMessagesArePublishedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		var lines bytes.Buffer
		for n := range 1000 {
			fmt.Fprintf(&lines, "\r\n {\"topic\":\"a\",\"data\":%d}\r\n\n", n)
		}
		answer := k.wantOK(manyPath, lines.String(), linesType)
		require.Equal(t, 1000, strings.Count(answer, "\n"), "empty lines are nothing")
		for n, m := range k.Held("a") {
			require.Equal(t, fmt.Sprint(n), string(m.Data))
		}
		require.Equal(t, "[]\n", k.wantOK(manyPath, " [ ] ", lanetest.JSONType))
		require.Empty(t, k.wantOK(manyPath, "\n", linesType))
	})
}

// A line that is not JSON has a problem as its result. The other lines are published.
func TestABadLineStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for _, bad := range []string{`{`, `{"topic":"a","data":1} 2`, `{"topic":"a","data":{}`, `[]`, "\x1e", "}"} {
			answer := k.wantOK(manyPath, `{"topic":"a","data":1}`+"\n"+bad+"\n"+`{"topic":"a","data":2}`, "Content-Type: application/x-ndjson; charset=utf-8")
			lines := strings.Split(answer, "\n")
			require.Len(t, lines, 3+1)
			require.Contains(t, lines[1], wire.CodeInvalidRequest)
			require.Contains(t, lines[2], `"position":"a@`)
		}
		resp := k.Do("POST", manyPath, "", linesType)
		resp.Body.Close()
		require.Equal(t, "application/x-ndjson", resp.Header.Get("Content-Type"))
	})
}

func TestEachOfManySpendsTheRateOfPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates := limit.Rates{limit.Publishes: {limit.All: {PerSecond: 1, Burst: 2}}}
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: rates, Calls: 1}})
		answer := k.wantOK(manyPath, strings.Repeat(`{"topic":"a","data":1}`+"\n", 3), linesType)
		require.Equal(t, 1, strings.Count(answer, string(wire.CodeLimited)))
		require.Len(t, k.Held("a"), 2)
	})
}

func TestADrainingDaemonRefusesManyMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		k.Parts.Sessions.BeginDrain(problem.New(wire.CodeDraining, "elsewhere", "going away")).End(math.MaxInt)
		k.WantProblem(wire.CodeDraining, "POST", manyPath, `[{"topic":"a","data":1}]`, lanetest.JSONType)
	})
}

// An internal error is the result of one message. If it were the whole answer, the client
// could not know which messages were published.
func TestAnInternalErrorIsTheResultOfOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, results := publishMany(t, lanetest.Settings{Hook: says(nil, errors.New("a secret"))}, `{"topic":"asked.a","data":1}`)
		require.Equal(t, string(wire.CodeInternal), told(results[0]))
		require.NotContains(t, results[0].Problem.Error(), "secret")
	})
}
