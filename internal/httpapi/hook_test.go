package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A gatekeeper is a hook for the topics below asked.
type gatekeeper struct {
	calls   atomic.Int32
	answers func(m *wire.Message) (*wire.PublishItem, error)
}

// says returns a gatekeeper that gives the same answer for every message.
func says(item *wire.PublishItem, err error) *gatekeeper {
	return &gatekeeper{answers: func(*wire.Message) (*wire.PublishItem, error) { return item, err }}
}

func (g *gatekeeper) Publish(_ context.Context, _ hook.Principal, m *wire.Message, _ time.Duration, take func(*wire.PublishItem) error) error {
	g.calls.Add(1)
	item, err := g.answers(m)
	if err != nil || item == nil {
		return err
	}
	return take(item)
}

func no() error { return problem.New(wire.CodeForbidden, "change it", "no") }

func TestAMessageThatTheHookPassesIsUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := says(nil, nil)
		k := newKit(t, lanetest.Settings{Hook: g})
		k.wantOK("/v1/topics/asked.a/messages?key=x&client=c", `{"n": 1}`, lanetest.JSONType)
		k.wantOK("/v1/topics/b/messages", `2`, lanetest.JSONType)
		require.Equal(t, int32(1), g.calls.Load(), "nobody is asked about b")
		got := k.Held("asked.a")
		require.Len(t, got, 1)
		require.Equal(t, `{"n":1}`, string(got[0].Data))
		require.Equal(t, "x", got[0].Key)
		require.Len(t, k.Held("b"), 1)
	})
}

func TestAMessageThatTheHookRefusesIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Hook: says(nil, no())})
		p := k.WantProblem(wire.CodeForbidden, "POST", "/v1/topics/asked.a/messages", `1`, lanetest.JSONType)
		require.Equal(t, "no", p.Detail)
		results := k.wantOK("/v1/messages", `[{"topic":"asked.a","data":1},{"topic":"b","data":2}]`, lanetest.JSONType)
		require.Contains(t, results, `"forbidden"`)
		require.Empty(t, k.Held("asked.a"))
		require.Len(t, k.Held("b"), 1)
	})
}

// The hook may replace a message. The replacement follows the rules for messages from
// clients.
func TestTheHookCanChangeAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for answer, want := range map[string]wire.Message{
			`{"data":{"n": 2}}`:                                           {Data: []byte(`{"n":2}`)},
			`{"data":null,"key":"y"}`:                                     {Data: []byte(`null`), Key: "y"},
			`{"type":"text/plain","text":"hi"}`:                           {Data: []byte("hi"), Type: "text/plain"},
			`{"type":"application/json","text":" [1]"}`:                   {Data: []byte("[1]")},
			`{"type":"image/png","base64":"AAE="}`:                        {Data: []byte{0, 1}, Type: "image/png"},
			`{"type":"application/cbor","base64":"ggEC"}`:                 {Data: []byte("[1,2]")},
			`{"topic":"asked.a","client":"c","id":"k","data":1,"ttl":60}`: {Data: []byte("1")},
		} {
			item := &wire.PublishItem{}
			require.NoError(t, json.Unmarshal([]byte(answer), item))
			k := newKit(t, lanetest.Settings{Hook: says(item, nil)})
			k.wantOK("/v1/topics/asked.a/messages?key=x&client=c&ttl=5", `1`, lanetest.JSONType, "Idempotency-Key: k")
			got := k.Held("asked.a")
			require.Len(t, got, 1, answer)
			require.Equal(t, want.Data, got[0].Data, answer)
			require.Equal(t, want.Type, got[0].Type, answer)
			require.Equal(t, want.Key, got[0].Key, answer)
			require.Equal(t, "k", got[0].ID, answer)
			time.Sleep(10 * time.Second)
			require.Len(t, k.Held("asked.a"), 1, "%s: the ttl is as the application said, or none", answer)
		}
	})
}

// An idempotency key stands for the publisher's body, not for the hook's replacement.
// Concurrent retries call the hook once.
func TestTheHookIsCalledOnceForAnIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := true
		g := &gatekeeper{answers: func(m *wire.Message) (*wire.PublishItem, error) {
			if refuses {
				return nil, no()
			}
			time.Sleep(5 * time.Second)
			return lanetest.Item("", `"changed"`), nil
		}}
		k := newKit(t, lanetest.Settings{Hook: g})
		const path, key = "/v1/topics/asked.a/messages", "Idempotency-Key: k"
		k.WantProblem(wire.CodeForbidden, "POST", path, `1`, lanetest.JSONType, key)
		refuses = false

		answers := make([]string, 3)
		var running sync.WaitGroup
		for i := range answers {
			running.Go(func() { answers[i] = k.wantOK(path, `1`, lanetest.JSONType, key) })
		}
		begun := time.Now()
		running.Wait()
		require.Equal(t, 5*time.Second, time.Since(begun), "the others wait for the first")
		require.Equal(t, answers[0], answers[1])
		require.Equal(t, answers[0], answers[2])
		k.WantProblem(wire.CodeIdempotencyMismatch, "POST", path, `"changed"`, lanetest.JSONType, key)
		require.Equal(t, int32(2), g.calls.Load())
		require.Len(t, k.Held("asked.a"), 1)
	})
}

// While a hook call is pending, retries of that publish take few slots. Other clients can
// still publish.
func TestWaitingRetriesLeaveSlotsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 8}, Hook: &gatekeeper{answers: func(*wire.Message) (*wire.PublishItem, error) {
			time.Sleep(5 * time.Second)
			return nil, no()
		}}})
		var repeats sync.WaitGroup
		var turnedAway atomic.Int32
		for range 20 {
			repeats.Go(func() {
				_, answer := k.Get("POST", "/v1/topics/asked.a/messages", `1`, lanetest.JSONType, "Idempotency-Key: k")
				if strings.Contains(answer, "too many retries already wait") {
					turnedAway.Add(1)
				}
			})
		}
		synctest.Wait()
		require.EqualValues(t, 17, turnedAway.Load(), "one is asked about, and two wait")
		begun := time.Now()
		k.wantOK("/v1/topics/other/messages", `1`, lanetest.JSONType)
		require.Zero(t, time.Since(begun))
		repeats.Wait()
		require.Equal(t, 15*time.Second, time.Since(begun), "each is asked about, since the one before was refused")
	})
}

// Every way to publish calls the hook.
func TestEveryPublishCallsTheHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, lanetest.Settings{Hook: says(lanetest.Item("", `"changed"`), nil)})
		k.wantOK("/v1/topics/asked.one/messages", `1`, lanetest.JSONType)
		k.wantOK("/v1/messages", `[{"topic":"asked.array","data":1}]`, lanetest.JSONType)
		k.wantOK("/v1/messages", `{"topic":"asked.lines","data":1}`, linesType)
		k.wantOK("/v1/messages", string(asItems(`{"topic":"asked.sequence","data":1}`)), "Content-Type: application/cbor-seq")
		for format, topic := range map[string]string{"json": "asked.text", "cbor": "asked.binary"} {
			s := k.DialSocket("/v1/ws?format=" + format)
			s.Hello()
			s.Send(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item(topic, "1")})
			require.Nil(t, s.WantReply(1).Problem)
			s.Close()
		}
		bare := k.openBare(wire.ConnectRequest{})
		_, err := bare.Next() // hello
		require.NoError(t, err)
		require.NoError(t, bare.TrySend(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("asked.bare", "1")}))
		reply := <-bare.Replied()
		require.Nil(t, reply.Problem)
		bare.Close()
		for _, way := range []string{"one", "array", "lines", "sequence", "text", "binary", "bare"} {
			got := k.Held("asked." + way)
			require.Len(t, got, 1, way)
			require.Equal(t, `"changed"`, string(got[0].Data), way)
		}
	})
}

func asItems(texts ...string) (all []byte) {
	for _, text := range texts {
		all = cbor.AppendFromJSON(all, []byte(text))
	}
	return all
}

// A failed hook is answered with the problem hook_failed and Retry-After.
func TestAFailedHookIsAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := problem.New(wire.CodeHookFailed, "", "no answer")
		failed.RetryAfterMS = 1000
		k := newKit(t, lanetest.Settings{Hook: says(nil, failed)})
		resp := k.Do("POST", "/v1/topics/asked.a/messages", `1`, lanetest.JSONType)
		resp.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.Equal(t, 1.0, k.Counted("pubsubd_requests_refused_total", "hook_failed"))
	})
}
