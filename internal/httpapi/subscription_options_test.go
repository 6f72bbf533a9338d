package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (k *kit) publishAs(topic, client string) {
	k.Helper()
	_, err := k.Parts.Broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Client: client, Data: []byte(`"` + client + `"`)}, 0, time.Now())
	require.NoError(k, err)
	synctest.Wait()
}

// payloads returns the data of an answer's messages, and "gap" with the reason for each
// gap.
func payloads(answer string) (said []string) {
	for line := range strings.Lines(answer) {
		var f struct {
			Data json.RawMessage
			Gap  *wire.Gap
		}
		switch err := json.Unmarshal([]byte(line), &f); {
		case err != nil:
			said = append(said, "unreadable: "+line)
		case f.Gap != nil:
			said = append(said, "gap "+string(f.Gap.Reason))
		case f.Data != nil:
			said = append(said, string(f.Data))
		}
	}
	return said
}

func TestASubscriberCanRefuseItsOwnMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Open(`{"topics":["a"],"client":"me","echo":false}`).Session
		heard := k.Open(`{"topics":["a"],"client":"me"}`).Session
		for _, client := range []string{"you", "me", "they", "me"} {
			k.publishAs("a", client)
		}
		_, answer := k.Get("GET", "/v1/sessions/"+s+"/poll?ack=0", "")
		require.Equal(t, []string{`"you"`, `"they"`}, payloads(answer))
		_, answer = k.Get("GET", "/v1/sessions/"+heard+"/poll?ack=0", "")
		require.Len(t, payloads(answer), 4)
		_, answer = k.Get("GET", "/v1/poll?topic=a@oldest&client=me&echo=false", "")
		require.Equal(t, []string{`"you"`, `"they"`}, payloads(answer))
		_, answer = k.Get("GET", "/v1/poll?topic=a@oldest&client=me&echo=true", "")
		require.Len(t, payloads(answer), 4)
	})
}

// Own messages that were left out last move the position, also in an answer that has no other frame.
// The frame that says so is not among those that hello announces.
func TestOwnMessagesMoveThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Open(`{"topics":["a"],"client":"me","echo":false}`)
		epoch := s.Positions[0].Epoch
		moved := func(offset int) string { return fmt.Sprintf(`{"moved":{"positions":["a@%s:%d"]}}`+"\n", epoch, offset) }
		k.publishAs("a", "me")
		for _, mode := range []string{"single", "batch", "multiple"} {
			_, answer := k.Get("GET", "/v1/sessions/"+s.Session+"/poll?ack=0&mode="+mode, "")
			require.Equal(t, moved(1), answer, "an idle poll says it again: %s", mode)
			_, answer = k.Get("GET", "/v1/poll?topic=a@oldest&client=me&echo=false&mode="+mode, "")
			if mode == "multiple" {
				require.NotContains(t, answer, `"frames":`)
				require.Equal(t, 1, strings.Count(answer, "moved"), answer)
			} else {
				require.Contains(t, answer, `"frames":0}}`)
			}
			require.True(t, strings.HasSuffix(answer, moved(1)), "%s: %s", mode, answer)
		}
		require.Zero(t, k.Counted("pubsubd_frames_delivered_total", "longpoll"), "it does not count")
		k.publishAs("a", "you")
		k.publishAs("a", "me")
		for _, mode := range []string{"single", "batch", "multiple"} {
			_, answer := k.Get("GET", "/v1/poll?topic=a@oldest&client=me&echo=false&mode="+mode, "")
			require.Equal(t, 1, strings.Count(answer, "moved"), "%s: %s", mode, answer)
			require.True(t, strings.HasSuffix(answer, moved(3)), "%s: %s", mode, answer)
		}
		_, answer := k.Get("GET", "/v1/sessions/"+s.Session+"/poll?ack=0", "")
		require.Equal(t, []string{`"you"`}, payloads(answer))
		require.True(t, strings.HasSuffix(answer, moved(3)), answer)
	})
}

func TestASubscriptionCanHaveARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Open(`{"topics":["quick",{"topic":"a","max_rate":"2/s"}]}`).Session
		k.publishAs("a", "one")
		_, answer := k.Get("GET", "/v1/sessions/"+s+"/poll?ack=0", "")
		require.Equal(t, []string{`"one"`}, payloads(answer))
		for _, client := range []string{"two", "three"} {
			k.publishAs("a", client)
		}
		k.publishAs("quick", "now")
		_, answer = k.Get("GET", "/v1/sessions/"+s+"/poll?ack=1", "")
		require.Equal(t, []string{`"now"`}, payloads(answer))
		begun := time.Now()
		_, answer = k.Get("GET", "/v1/sessions/"+s+"/poll?ack=2", "")
		require.Equal(t, []string{"gap conflated", `"three"`}, payloads(answer))
		require.InDelta(t, 0.5, time.Since(begun).Seconds(), 0.01)
	})
}

func TestPatternsAreNamedLikeTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		k.publishAs("room.go", "old")
		opened := k.Open(`{"topics":["room.*"]}`)
		epoch := opened.Positions[0].Epoch
		require.Equal(t, "room.*@"+epoch+":0", opened.Positions[0].String())
		require.Equal(t, "room.go@"+epoch+":1", opened.Positions[1].String())
		k.publishAs("room.c", "new")
		_, answer := k.Get("GET", "/v1/sessions/"+opened.Session+"/poll?ack=0", "")
		require.Equal(t, []string{`"new"`}, payloads(answer))
		_, answer = k.Get("GET", "/v1/poll?topic=room.%3E@"+epoch+":0&topic=room.go@"+epoch+":1", "")
		require.Equal(t, []string{`"new"`}, payloads(answer), "from the positions it has, and from the begin")
		_, answer = k.Get("GET", "/v1/poll?topic=room.*@oldest", "")
		require.True(t, strings.HasPrefix(answer, `{"hello":{"positions":["room.*@`+epoch+`:0","room.c@`+epoch+`:0","room.go@`+epoch+`:0"]`), answer)
		require.ElementsMatch(t, []string{`"old"`, `"new"`}, payloads(answer))
	})
}

func TestDeletingATopicSendsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Open(`{"topics":["a"]}`).Session
		k.publishAs("a", "one")
		_, answer := k.Get("GET", "/v1/sessions/"+s+"/poll?ack=0", "")
		require.Equal(t, []string{`"one"`}, payloads(answer))
		status, text := k.Get("DELETE", "/v1/topics/a", "")
		require.Equal(t, 200, status)
		var state wire.TopicState
		require.NoError(t, json.Unmarshal([]byte(text), &state))
		require.EqualValues(t, 2, state.Position.Offset)
		require.Zero(t, state.Messages+state.Bytes)
		_, answer = k.Get("GET", "/v1/sessions/"+s+"/poll?ack=1", "")
		require.Equal(t, []string{"gap deleted"}, payloads(answer))
		require.NotContains(t, k.WantProblem(wire.CodeTopicUnknown, "DELETE", "/v1/topics/b", "").Remedy, "subscribe", "which makes it, for nothing to be deleted")
		k.WantProblem(wire.CodeReservedTopic, "DELETE", "/v1/topics/_b", "")
	})
}

func TestInvalidRequestsHaveAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		for _, c := range []struct {
			code          wire.Code
			path, body    string
			detail        string
			remedyTellsOf string
		}{
			{wire.CodeInvalidRequest, "/v1/sessions", `{"topics":["a"],"echo":false}`, "needs client", "add client"},
			{wire.CodeInvalidRequest, "/v1/sessions", `{"topics":["a"],"client":"a b"}`, `' '`, "another client"},
			{wire.CodeInvalidRequest, "/v1/sessions", `{"topics":[{"topic":"a","max_rate":"fast"}]}`, "such as 5/s", "PROTOCOL.md"},
			{wire.CodeInvalidRequest, "/v1/sessions", `{"topics":[{"topic":"a","rate":"5/s"}]}`, `unknown field "rate"`, "PROTOCOL.md"},
			{wire.CodeInvalidRequest, "/v1/sessions", `{"topics":[7]}`, "neither a text such as", "PROTOCOL.md"},
			{wire.CodeInvalidTopic, "/v1/sessions", `{"topics":["a.>.b"]}`, "must be last", "topic@oldest"},
			{wire.CodeInvalidRequest, "/v1/poll?topic=a&echo=false", "", "needs client", "add client"},
			{wire.CodeInvalidRequest, "/v1/poll?topic=a&echo=no", "", "must be true or false", "true or false"},
			{wire.CodeInvalidRequest, "/v1/poll?topic=a&client=x&client=y", "", "got 2", "once"},
			{wire.CodeInvalidRequest, "/v1/poll?topic=a&max_rate=5/s", "", "needs mode=stream", "mode=stream"},
			{wire.CodeInvalidRequest, "/v1/poll", `{"topics":[{"topic":"a","max_rate":"5/s"}]}`, "needs mode=stream", "mode=stream"},
			{wire.CodeInvalidRequest, "/v1/poll?topic=a&mode=stream&max_rate=5", "", "such as 5/s", "PROTOCOL.md"},
			{wire.CodeInvalidTopic, "/v1/topics/a.*/messages", "1", "only ASCII", "PROTOCOL.md"},
		} {
			method := "POST"
			if c.body == "" {
				method = "GET"
			}
			p := k.WantProblem(c.code, method, c.path, c.body, lanetest.JSONType)
			require.Contains(t, p.Detail, c.detail, c.path+c.body)
			require.Contains(t, p.Remedy, c.remedyTellsOf, c.path+c.body)
		}
	})
}
