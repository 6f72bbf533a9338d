package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestEveryCallSpendsARate(t *testing.T) {
	for kind, ways := range map[limit.Kind][][3]string{
		limit.Publishes: {{"POST", "/v1/topics/a/messages", "1"}},
		limit.Sessions:  {{"POST", "/v1/sessions", `{"topics":["a"]}`}},
		limit.Polls: {
			{"GET", "/v1/sessions/SESSION/poll?ack=0", ""}, {"GET", "/v1/poll?topic=a", ""},
			{"POST", "/v1/poll", `{"topics":["a"]}`},
		},
		limit.Requests: {
			{"POST", "/v1/messages", `[{"topic":"a","data":1}]`}, {"GET", "/v1/topics/a/messages", ""}, {"GET", "/v1/topics/a", ""},
			{"DELETE", "/v1/topics/a", ""}, {"GET", "/v1/topics", ""}, {"GET", "/v1/sessions/SESSION", ""},
			{"PATCH", "/v1/sessions/SESSION", `{"add":["b"]}`}, {"DELETE", "/v1/sessions/SESSION", ""},
			{"POST", "/v1/sessions/SESSION/close", ""}, {"GET", "/v1/openapi.yaml", ""},
		},
		limit.Topics: {
			{"POST", "/v1/topics/NEW/messages", "1"}, {"POST", "/v1/sessions", `{"topics":["NEW"]}`},
			{"PATCH", "/v1/sessions/SESSION", `{"add":["NEW"]}`}, {"GET", "/v1/poll?topic=NEW", ""},
		},
		limit.Misses: {{"GET", "/v1/sessions/none", ""}, {"GET", "/v1/sessions/none/poll?ack=0", ""}},
	} {
		for _, scope := range kind.Scopes() {
			for _, way := range ways {
				synctest.Test(t, func(t *testing.T) { wantCounted(t, kind, scope, way) })
			}
		}
	}
}

// wantCounted sends a request twice. The second exceeds the rate. A rate of one principal
// does not limit another.
func wantCounted(t *testing.T, kind limit.Kind, scope limit.Scope, way [3]string) {
	var rates limit.Rates
	k := newKit(t, lanetest.Settings{Authority: everyName{}, Session: lanetest.LongStay()})
	k.Get("POST", "/v1/topics/a/messages", "1", lanetest.JSONType)
	id := k.Open(`{"topics":["a@oldest"]}`, "Authorization: ann").Session
	rates[kind][scope] = lanetest.Once
	k.Parts.Limiter.Reload(limit.Config{Rates: rates})
	n := 0
	do := func(name string) (int, string) {
		n++
		return k.Get(way[0], filled(way[1], id, n), filled(way[2], id, n), lanetest.JSONType, "Authorization: "+name)
	}
	status, answer := do("ann")
	require.NotEqual(t, http.StatusTooManyRequests, status, answer)
	status, answer = do("ann")
	require.Equal(t, http.StatusTooManyRequests, status, "%s %s by %s: %s", way[0], way[1], scope, answer)
	require.Contains(t, answer, `"code":"limited"`)
	require.Contains(t, answer, "rates."+kind.String()+"."+scope.String())
	require.EqualValues(t, 1, k.Counted("pubsubd_limited_total", "rates."+kind.String()+"."+scope.String()))
	if scope == limit.Principal {
		status, answer = do("bob")
		require.NotEqual(t, http.StatusTooManyRequests, status, answer)
	}
}

func TestACallWaitsForASlotAndTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: 3 * time.Second}})
		held, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		begun := time.Now()
		p := k.WantProblem(wire.CodeOverloaded, "POST", "/v1/topics/a/messages", "1", lanetest.JSONType)
		require.Equal(t, 3*time.Second, time.Since(begun), "as long as is stated")
		require.Contains(t, p.Detail, "3s")
		require.Contains(t, p.Remedy, "limits.calls")
		require.Positive(t, p.RetryAfterMS)

		held.End()
		held, err = k.Parts.Limiter.Begin(t.Context(), limit.Who{}, true)
		require.NoError(t, err)
		answered := make(chan int, 1)
		go func() {
			status, _ := k.Get("GET", "/v1/topics", "")
			answered <- status
		}()
		synctest.Wait()
		begun = time.Now()
		k.WantProblem(wire.CodeOverloaded, "GET", "/v1/topics", "")
		require.Zero(t, time.Since(begun), "no more wait than may")
		held.End()
		require.Equal(t, http.StatusOK, <-answered)
		require.EqualValues(t, 1, k.Counted("pubsubd_limited_total", "calls"))
		require.EqualValues(t, 1, k.Counted("pubsubd_limited_total", "reads"))
	})
}

// A parked poll holds no slot. Otherwise, parked polls would block all other calls.
func TestParkedPollsTakeNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Second}})
		id := k.Open(`{"topics":["a"]}`).Session
		polled := make(chan string, 1)
		go func() {
			_, answer := k.Get("GET", "/v1/sessions/"+id+"/poll?ack=0", "")
			polled <- answer
		}()
		synctest.Wait()
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		require.Contains(t, <-polled, `"data":1`)
	})
}

func TestASessionWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Session: twoAtOnce(), Limits: limit.Config{PendingSessions: 1, Wait: 2 * time.Second}})
		first := k.Open(`{"topics":["a"]}`).Session
		k.Open(`{"topics":["a"]}`)
		begun := time.Now()
		p := k.WantProblem(wire.CodeOverloaded, "POST", "/v1/sessions", `{"topics":["a"]}`, lanetest.JSONType)
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.Contains(t, p.Remedy, "limits.sessions")
		opened := make(chan int, 1)
		go func() {
			status, _ := k.Get("POST", "/v1/sessions", `{"topics":["a"]}`, lanetest.JSONType)
			opened <- status
		}()
		synctest.Wait()
		k.WantProblem(wire.CodeOverloaded, "POST", "/v1/sessions", `{}`, lanetest.JSONType)
		k.Get("DELETE", "/v1/sessions/"+first, "")
		require.Equal(t, http.StatusCreated, <-opened)
	})
}

// Openings that wait for a slot count against limits.address_calls.
func TestWaitingOpeningsCountAsCallsOfTheirAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Session: twoAtOnce(), Limits: limit.Config{AddressCalls: 2, Wait: time.Second}})
		k.Open(`{"topics":["a"]}`)
		k.Open(`{"topics":["a"]}`)
		told := make(chan int, 2)
		for range 2 {
			go func() {
				status, _ := k.Get("POST", "/v1/sessions", `{"topics":["a"]}`, lanetest.JSONType)
				told <- status
			}()
		}
		synctest.Wait()
		k.WantProblem(wire.CodeLimited, "POST", "/v1/sessions", `{"topics":["a"]}`, lanetest.JSONType)
		require.Equal(t, http.StatusServiceUnavailable, <-told)
		require.Equal(t, http.StatusServiceUnavailable, <-told)
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
	})
}

// A session may have only PendingMessages unanswered publishes.
func TestThePendingPublishesOfASessionAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1, Wait: time.Minute, PendingMessages: 2}})
		held, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		id := k.Open(`{"topics":["a"]}`).Session
		path := "/v1/topics/a/messages?session=" + id
		answered := make(chan int, 2)
		for range 2 {
			go func() {
				status, _ := k.Get("POST", path, "1", lanetest.JSONType)
				answered <- status
			}()
		}
		synctest.Wait()
		p := k.WantProblem(wire.CodeLimited, "POST", path, "1", lanetest.JSONType)
		require.Contains(t, p.Remedy, "limits.pending_messages_per_session")
		held.End()
		require.Equal(t, http.StatusOK, <-answered)
		require.Equal(t, http.StatusOK, <-answered)
		k.wantOK(path, "1", lanetest.JSONType)
		k.WantProblem(wire.CodeSessionUnknown, "POST", "/v1/topics/a/messages?session=none", "1", lanetest.JSONType)
	})
}

func TestARuleLimitsWhatIsPublishedToItsTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rules: []limit.Rule{{Name: "chat", Pattern: "chat.>", Rate: lanetest.Once}, {Name: "news", Pattern: "chat.news"}}}})
		k.wantOK("/v1/topics/chat.a/messages", "1", lanetest.JSONType)
		p := k.WantProblem(wire.CodeLimited, "POST", "/v1/topics/chat.b/messages", "1", lanetest.JSONType)
		require.Contains(t, p.Remedy, "topics.chat.rate")
		for range 3 {
			k.wantOK("/v1/topics/chat.news/messages", "1", lanetest.JSONType)
			k.wantOK("/v1/topics/other/messages", "1", lanetest.JSONType)
		}
	})
}

// The daemon delays refusals to a client that ignores Retry-After. This slows down a
// client that retries in a loop.
func TestARefusalOfAnImpatientClientIsDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates := limit.Rates{limit.Requests: {limit.Address: lanetest.Once}}
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: rates, Wait: 2 * time.Second}})
		begun := time.Now()
		for range 100 {
			k.Get("GET", "/v1/topics", "")
		}
		require.Greater(t, time.Since(begun), 50*time.Second, "some at once, and the others few a second")
		time.Sleep(time.Hour)
		begun = time.Now()
		status, _ := k.Get("GET", "/v1/topics", "")
		require.Equal(t, http.StatusOK, status)
		k.WantProblem(wire.CodeLimited, "GET", "/v1/topics", "")
		require.Zero(t, time.Since(begun), "it has waited, and is told at once again")
	})
}

// A request holds no slot while its body is incomplete.
func TestASlowBodyTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Second}})
		nc, err := k.Dial()
		require.NoError(t, err)
		defer nc.Close()
		_, err = nc.Write([]byte("POST /v1/topics/a/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n"))
		require.NoError(t, err)
		synctest.Wait()
		for i := range 3 {
			k.wantOK("/v1/topics/b/messages", strconv.Itoa(i), lanetest.JSONType)
		}
	})
}

func twoAtOnce() session.Config { return session.Config{MaxSessions: 2} }

// filled replaces SESSION by a session's id and NEW by a new topic.
func filled(text, id string, n int) string {
	return strings.NewReplacer("SESSION", id, "NEW", "new-"+strconv.Itoa(n)).Replace(text)
}

// A request must not wait for a second slot while it holds one: it would wait for itself.
func TestAPatchWithoutABodyTakesOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Session: lanetest.LongStay(), Limits: limit.Config{Calls: 2, Wait: 2 * time.Second}})
		id := k.Open(`{"topics":["a"]}`).Session
		calls := make([]limit.Call, 2)
		for i := range calls {
			var err error
			calls[i], err = k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
			require.NoError(t, err)
		}
		done := make(chan int, 2)
		for range 2 {
			go func() {
				status, _ := k.Get("PATCH", "/v1/sessions/"+id, "")
				done <- status
			}()
		}
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			calls[0].End()
			calls[1].End()
		}()
		begun := time.Now()
		status, text := k.Get("POST", "/v1/topics/b/messages", "1", lanetest.JSONType)
		require.Equal(t, http.StatusOK, status, text)
		require.Equal(t, time.Second, time.Since(begun))
		require.Equal(t, []int{http.StatusOK, http.StatusOK}, []int{<-done, <-done})
	})
}

func TestAnEmptyBatchTakesOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1}})
		status, text := k.Get("POST", "/v1/messages", "", "Content-Type: application/x-ndjson")
		require.Equal(t, http.StatusOK, status, text)
	})
}

// A request needs a slot even if the daemon does not read its body.
func TestARequestWithAnUnreadBodyNeedsASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Session: lanetest.LongStay(), Limits: limit.Config{Calls: 1}})
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		id := k.Open(`{"topics":["a"]}`).Session
		held, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		defer held.End()
		for _, way := range [][2]string{{"DELETE", "/v1/topics/a"}, {"DELETE", "/v1/sessions/" + id}, {"POST", "/v1/sessions/" + id + "/close"}} {
			status, text := k.Get(way[0], way[1], "x")
			require.Equal(t, http.StatusServiceUnavailable, status, "%s: %s", way, text)
		}
	})
}

// Preflights and forbidden requests of other origins spend the rate of requests.
func TestPagesOfOtherOriginsAreCounted(t *testing.T) {
	for _, headers := range [][]string{{"Access-Control-Request-Method: POST"}, {"Sec-Fetch-Site: cross-site"}} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: lanetest.Once}}}})
			method := "OPTIONS"
			if headers[0] == "Sec-Fetch-Site: cross-site" {
				method = "DELETE"
			}
			headers = append(headers, "Origin: https://elsewhere.example")
			status, _ := k.Get(method, "/v1/topics/a", "", headers...)
			require.Equal(t, http.StatusForbidden, status)
			status, _ = k.Get(method, "/v1/topics/a", "", headers...)
			require.Equal(t, http.StatusTooManyRequests, status)
		})
	}
}
