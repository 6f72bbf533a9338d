package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// held returns the messages in a topic's history.
func (k *kit) held(topic string) []*wire.Message {
	k.Helper()
	frames, _ := k.cfg.Broker.ReadTopic(wire.Start{Topic: topic, From: wire.FromOldest}, broker.Limit{Frames: 10_000, Bytes: 64 << 20}, time.Now())
	messages := make([]*wire.Message, len(frames))
	for i, f := range frames {
		content, err := wire.ParseLine(f.Bytes(frame.NDJSON))
		require.NoError(k, err)
		require.NotNil(k, content.Message)
		messages[i] = content.Message
	}
	return messages
}

// wantOK sends a POST request, requires status 200, and returns the body.
func (k *kit) wantOK(path, body string, headers ...string) string {
	k.Helper()
	status, text := k.get("POST", path, body, headers...)
	require.Equal(k, http.StatusOK, status, text)
	return text
}

// A client that lost the answer retries with the same key. The message is published once.
func TestARetriedPublishIsAnsweredAlikeAndPublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		const path = "/v1/topics/a/messages"
		key := func(value string) string { return "Idempotency-Key: " + value }
		first := k.wantOK(path, `{"n": 1}`, jsonType, key("k-1"))
		time.Sleep(time.Minute)
		require.Equal(t, first, k.wantOK(path, `{"n": 1}`, jsonType, key("k-1")))
		require.Equal(t, first, k.wantOK(path, ` {"n":1}`, jsonType, key(`"k-1"`)), "white space is dropped, and quotes are the header's")
		p := k.wantProblem(wire.CodeIdempotencyMismatch, "POST", path, `{"n":2}`, jsonType, key("k-1"))
		require.Contains(t, p.Detail, "a@")
		k.wantProblem(wire.CodeIdempotencyMismatch, "POST", path+"?client=c", `{"n":1}`, jsonType, key("k-1"))
		k.wantProblem(wire.CodeIdempotencyMismatch, "POST", path, `{"n":1}`, "Content-Type: text/plain", key("k-1"))
		require.NotEqual(t, first, k.wantOK("/v1/topics/b/messages", `{"n":2}`, jsonType, key("k-1")), "of another topic it is another key")

		time.Sleep(time.Minute) // two minutes since the first publish
		require.NotEqual(t, first, k.wantOK(path, `{"n":1}`, jsonType, key("k-1")), "it is too long ago")
		k.wantOK(path, "1", jsonType)
		k.wantOK(path, "1", jsonType)
		messages := k.held("a") // without the first, which has expired
		require.Len(t, messages, 3)
		require.Equal(t, "k-1", messages[0].ID, "the key is the message's id")
		require.Empty(t, messages[1].ID)
	})
}

// A client may retry a refused publish with the same key.
func TestAKeyOfARefusedPublishMayBeUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{broker: broker.Config{MaxTopics: 1, HistoryAge: time.Second}})
		k.wantOK("/v1/topics/b/messages", "1", jsonType)
		k.wantProblem(wire.CodeOverloaded, "POST", "/v1/topics/a/messages", "1", jsonType, "Idempotency-Key: k")
		k.wantProblem(wire.CodeInvalidBody, "POST", "/v1/topics/a/messages", "{", jsonType, "Idempotency-Key: k")
		time.Sleep(time.Second)
		k.cfg.Broker.Sweep(time.Now())
		k.wantOK("/v1/topics/a/messages", "2", jsonType, "Idempotency-Key: k")
	})
}

// A principal cannot get the results of another principal's keys.
func TestAnIdempotencyKeyBelongsToItsPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{authority: everyName{}})
		first := k.wantOK("/v1/topics/a/messages", "1", jsonType, "Idempotency-Key: k", "Authorization: ann")
		require.NotEqual(t, first, k.wantOK("/v1/topics/a/messages", "2", jsonType, "Idempotency-Key: k", "Authorization: bob"))
		require.Equal(t, first, k.wantOK("/v1/topics/a/messages", "1", jsonType, "Idempotency-Key: k", "Authorization: ann"))
	})
}

func TestTheClientOfAMessageIsCheckedAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		const path = "/v1/topics/a/messages"
		for _, client := range []string{"", "a%20b", "a/b", strings.Repeat("x", wire.MaxClientBytes+1), "a&client=b"} {
			k.wantProblem(wire.CodeInvalidRequest, "POST", path+"?client="+client, "1", jsonType)
		}
		for _, key := range []string{"", `""`, `"a`, "a, b", "a b", "ä", strings.Repeat("x", wire.MaxIDBytes+1)} {
			k.wantProblem(wire.CodeInvalidRequest, "POST", path, "1", jsonType, "Idempotency-Key: "+key)
		}
		k.wantProblem(wire.CodeInvalidRequest, "POST", path, "1", jsonType, "Idempotency-Key: a", "Idempotency-Key: a")
		require.Empty(t, k.held("a"))
	})
}
