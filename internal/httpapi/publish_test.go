package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// wantOK sends a POST request, requires status 200, and returns the body.
func (k *kit) wantOK(path, body string, headers ...string) string {
	k.Helper()
	status, text := k.Get("POST", path, body, headers...)
	require.Equal(k, http.StatusOK, status, text)
	return text
}

// A client that lost the answer retries with the same key. The message is published once.
func TestARetriedPublishIsAnsweredAlikeAndPublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		const path = "/v1/topics/a/messages"
		key := func(value string) string { return "Idempotency-Key: " + value }
		first := k.wantOK(path, `{"n": 1}`, lanetest.JSONType, key("k-1"))
		time.Sleep(time.Minute)
		require.Equal(t, first, k.wantOK(path, `{"n": 1}`, lanetest.JSONType, key("k-1")))
		require.Equal(t, first, k.wantOK(path, ` {"n":1}`, lanetest.JSONType, key(`"k-1"`)), "white space is dropped, and quotes are the header's")
		p := k.WantProblem(wire.CodeIdempotencyMismatch, "POST", path, `{"n":2}`, lanetest.JSONType, key("k-1"))
		require.Contains(t, p.Detail, "a@")
		k.WantProblem(wire.CodeIdempotencyMismatch, "POST", path+"?client=c", `{"n":1}`, lanetest.JSONType, key("k-1"))
		k.WantProblem(wire.CodeIdempotencyMismatch, "POST", path, `{"n":1}`, "Content-Type: text/plain", key("k-1"))
		require.NotEqual(t, first, k.wantOK("/v1/topics/b/messages", `{"n":2}`, lanetest.JSONType, key("k-1")), "of another topic it is another key")

		time.Sleep(time.Minute) // two minutes since the first publish
		require.NotEqual(t, first, k.wantOK(path, `{"n":1}`, lanetest.JSONType, key("k-1")), "it is too long ago")
		k.wantOK(path, "1", lanetest.JSONType)
		k.wantOK(path, "1", lanetest.JSONType)
		messages := k.Held("a") // without the first, which has expired
		require.Len(t, messages, 3)
		require.Equal(t, "k-1", messages[0].ID, "the key is the message's id")
		require.Empty(t, messages[1].ID)
	})
}

// A client may retry a refused publish with the same key.
func TestAKeyOfARefusedPublishMayBeUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Broker: broker.Config{MaxTopics: 1, HistoryAge: time.Second}})
		k.wantOK("/v1/topics/b/messages", "1", lanetest.JSONType)
		k.WantProblem(wire.CodeOverloaded, "POST", "/v1/topics/a/messages", "1", lanetest.JSONType, "Idempotency-Key: k")
		k.WantProblem(wire.CodeInvalidBody, "POST", "/v1/topics/a/messages", "{", lanetest.JSONType, "Idempotency-Key: k")
		time.Sleep(time.Second)
		k.Parts.Broker.Sweep(time.Now())
		k.wantOK("/v1/topics/a/messages", "2", lanetest.JSONType, "Idempotency-Key: k")
	})
}

// A principal cannot get the results of another principal's keys.
func TestAnIdempotencyKeyBelongsToItsPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Authority: everyName{}})
		first := k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType, "Idempotency-Key: k", "Authorization: ann")
		require.NotEqual(t, first, k.wantOK("/v1/topics/a/messages", "2", lanetest.JSONType, "Idempotency-Key: k", "Authorization: bob"))
		require.Equal(t, first, k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType, "Idempotency-Key: k", "Authorization: ann"))
	})
}

func TestTheClientOfAMessageIsCheckedAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		const path = "/v1/topics/a/messages"
		for _, client := range []string{"", "a%20b", "a/b", strings.Repeat("x", wire.MaxClientBytes+1), "a&client=b"} {
			k.WantProblem(wire.CodeInvalidRequest, "POST", path+"?client="+client, "1", lanetest.JSONType)
		}
		for _, key := range []string{"", `""`, `"a`, "a, b", "a b", "ä", strings.Repeat("x", wire.MaxIDBytes+1)} {
			k.WantProblem(wire.CodeInvalidRequest, "POST", path, "1", lanetest.JSONType, "Idempotency-Key: "+key)
		}
		k.WantProblem(wire.CodeInvalidRequest, "POST", path, "1", lanetest.JSONType, "Idempotency-Key: a", "Idempotency-Key: a")
		require.Empty(t, k.Held("a"))
	})
}
