package httpapi

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An answer that its client does not read holds no slot: not of publishes, nor of reads. Its
// bytes count against the client's share of memory (TestUnreadBytesAreCounted).
func TestAnAnswerThatIsNotReadHoldsNoSlot(t *testing.T) {
	many := "[" + strings.Repeat(`{"topic":"b","data":1},`, 499) + `{"topic":"b","data":1}]`
	for _, ask := range []string{
		"GET /v1/openapi.yaml", "GET /v1/topics/large/messages", "GET /v1/topics?limit=1000", "GET /v1/topics/large", "GET /v1/sessions/ID",
		"GET /v1/topics/present/presence", "DELETE /v1/topics/large", "PATCH /v1/sessions/ID\r\nContent-Type: application/json\r\nContent-Length: 13|{\"add\":[\"c\"]}",
		"POST /v1/messages\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(many)) + "|" + many,
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{
				Limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Second},
				Broker: broker.Config{Rules: []broker.Rule{{Name: "present", Pattern: "present", Presence: true}}},
			})
			k.wantOK("/v1/topics/large/messages", `"`+strings.Repeat("x", 60_000)+`"`, lanetest.JSONType)
			for range 100 {
				k.wantOK("/v1/topics/"+strings.Repeat("long", 60)+time.Now().Format("150405")+"/messages", "1", lanetest.JSONType)
				time.Sleep(time.Second)
			}
			line, body, _ := strings.Cut(strings.ReplaceAll(ask, "ID", k.Open(`{"topics":["present"]}`).Session), "|")
			head, fields, _ := strings.Cut(line, "\r\n")
			if fields != "" {
				fields += "\r\n"
			}
			nc, err := k.Dial()
			require.NoError(t, err)
			defer nc.Close()
			_, err = nc.Write([]byte(head + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n" + body))
			require.NoError(t, err)
			synctest.Wait()
			begun := time.Now()
			k.wantOK("/v1/topics/b/messages", "1", lanetest.JSONType)
			status, _ := k.Get("GET", "/v1/topics?limit=1", "")
			require.Equal(t, http.StatusOK, status)
			require.Zero(t, time.Since(begun), ask)
			answer := make([]byte, 12)
			_, err = io.ReadFull(nc, answer)
			require.NoError(t, err)
			require.Equal(t, "HTTP/1.1 200", string(answer), ask)
		})
	}
}

// Few long answers are prepared at a time, and an answer that its client does not read keeps no
// other from being prepared.
func TestLongAnswersArePreparedInTurns(t *testing.T) {
	for _, ask := range []string{"/v1/topics/a/messages", "/v1/topics?limit=1000", "/v1/sessions/ID", "/v1/topics/a/presence"} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{Broker: broker.Config{Rules: []broker.Rule{{Name: "a", Pattern: "a", Presence: true}}}})
			k.wantOK("/v1/topics/a/messages", `"`+strings.Repeat("x", 60_000)+`"`, lanetest.JSONType)
			topics := `"a","` + strings.Join(longNames(300), `","`) + `"`
			path := strings.ReplaceAll(ask, "ID", k.Open(`{"client":"tab","topics":[`+topics+`]}`).Session)
			time.Sleep(10 * time.Second)
			turns, n := k.Parts.Limiter.Turns(), max(1, runtime.GOMAXPROCS(0)/2)
			for range n {
				require.NoError(t, turns.Enter(t.Context(), nil))
			}
			answered := make(chan int, 1)
			go func() { status, _ := k.Get("GET", path, ""); answered <- status }()
			synctest.Wait()
			require.Empty(t, answered, path)
			var g metrics.Gauges
			k.Parts.Limiter.Gauges(&g)
			require.Contains(t, g.Limits, metrics.Limit{Name: "reads", Most: 1000, InUse: 1}, "what waits has a bound")

			turns.Leave()
			require.Equal(t, http.StatusOK, <-answered)
			nc, err := k.Dial()
			require.NoError(t, err)
			defer nc.Close()
			_, err = nc.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"))
			require.NoError(t, err)
			synctest.Wait()
			require.True(t, turns.TryEnter(), "it is not read")
			for range n {
				turns.Leave()
			}
		})
	}
}

// Reads wait for reads, and publishes for publishes.
func TestReadsAndPublishesHaveSlotsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Second}})
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		read, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, true)
		require.NoError(t, err)
		k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
		require.Contains(t, k.WantProblem(wire.CodeOverloaded, "GET", "/v1/topics/a", "").Detail, "limits.calls")
		read.End()
		publish, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		status, _ := k.Get("GET", "/v1/topics/a", "")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, k.WantProblem(wire.CodeOverloaded, "POST", "/v1/topics/a/messages", "1", lanetest.JSONType).Detail, "limits.calls")
		publish.End()
	})
}

// An event stream of a pattern opens a session. The second one exceeds the rate of
// sessions.
func TestAnEventSourceKeepsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Sessions: {limit.All: lanetest.Once}}}})
		open := func() string {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pubsubd/v1/sse?topic=a.*", nil)
			require.NoError(t, err)
			resp, err := k.HTTP.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			begin := make([]byte, 1000)
			n, _ := resp.Body.Read(begin)
			return string(begin[:n])
		}
		require.NotContains(t, open(), "limited")
		require.Contains(t, open(), "rates.sessions.all")
		require.Equal(t, 1.0, k.Counted("pubsubd_sessions_opened_total"))
	})
}

// A request that the daemon cannot serve spends a rate too: the daemon must read and
// answer it.
func TestRequestsForUnknownPathsAreCounted(t *testing.T) {
	for _, way := range [][3]string{
		{"GET", "/nowhere", ""}, {"POST", "/v1/nowhere", "1"}, {"PUT", "/v1/topics/a/messages", "1"}, {"HEAD", "/v1/topics", ""},
		{"GET", "/v1/topics", "1"}, {"GET", "/v1/poll", "1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: lanetest.Once}, limit.Polls: {limit.Address: lanetest.Once}}}})
			status, _ := k.Get(way[0], way[1], way[2])
			require.NotEqual(t, http.StatusTooManyRequests, status)
			status, _ = k.Get(way[0], way[1], way[2])
			require.Equal(t, http.StatusTooManyRequests, status, way)
		})
	}
}

func TestInvalidCommandsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: lanetest.Once}}}})
		for i, command := range []map[string]any{{}, {"unknown": 1}, {"ping": true, "ack": 1}, {"subscribe": 1}} {
			k.Parts.Limiter.Reload(limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: {PerSecond: 1.0 / 3600, Burst: 1 + i%2}}}})
			s := k.DialSocket("/v1/ws")
			s.Hello()
			command["ref"] = 1
			for range 1 + i%2 {
				s.Send(command)
				require.Equal(t, wire.CodeInvalidRequest, s.WantReply(1).Problem.Code, command)
			}
			s.Send(command)
			require.Equal(t, wire.CodeLimited, s.WantReply(1).Problem.Code, command)
			s.Close()
		}
	})
}

// A ping spends as much of a rate as a poll, whether it has a ref or not. Then pings are
// refused, and the connection stays open. Opening a WebSocket and its heartbeats spend none
// of that rate.
func TestAPingCountsAsAPoll(t *testing.T) {
	for _, scope := range []limit.Scope{limit.Address, limit.All} {
		synctest.Test(t, func(t *testing.T) {
			var rates limit.Rates
			rates[limit.Polls][scope] = limit.Rate{PerSecond: 1.0 / 3600, Burst: 3}
			k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: rates}})
			s := k.DialSocket("/v1/ws?topic=a")
			s.Hello()
			time.Sleep(5*lanetest.Defaults.Heartbeat + time.Second) // its pongs are sent: neither side of the pipe reads while it writes
			s.Send(wire.Command{Ping: true})
			for ref := range uint64(2) {
				s.Send(wire.Command{Ref: &ref, Ping: true})
				require.Nil(t, s.WantReply(ref).Problem)
			}
			s.Send(wire.Command{Ref: new(uint64(9)), Ping: true})
			refused := s.WantReply(9).Problem
			require.Equal(t, wire.CodeLimited, refused.Code)
			require.Contains(t, refused.Remedy, "rates.polls."+scope.String())
			require.Positive(t, refused.RetryAfterMS)
			k.WantProblem(wire.CodeLimited, "GET", "/v1/poll?topic=a", "")
			k.Publish("a", "1")
			s.WantFrame("a1", "1")
			s.Close()
		})
	}
}

// Pings and their replies do not count for acks.
func TestPingsDoNotCountForAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		id := k.OpenA()
		s := k.DialSocket("/v1/ws?session=" + id + "&ack=0")
		s.Hello()
		for ref := range uint64(3) {
			s.Send(wire.Command{Ref: &ref, Ping: true})
			s.WantReply(ref)
		}
		time.Sleep(5*lanetest.Defaults.Heartbeat + time.Second) // its pongs are sent: neither side of the pipe reads while it writes
		k.Publish("a", "1")
		s.WantFrame("a1", "1")
		s.Send(wire.Command{Ref: new(uint64(7)), Ack: new(uint64(2))})
		require.Equal(t, wire.CodeAckBeyondSent, s.WantReply(7).Problem.Code)
		s.Send(wire.Command{Ref: new(uint64(8)), Ack: new(uint64(1))})
		require.Nil(t, s.WantReply(8).Problem)
		s.Close()
	})
}

// The daemon counts no internal error when a client leaves while its command waits.
func TestAClientThatLeavesDuringACommandIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Calls: 1, Wait: time.Minute}})
		held, err := k.Parts.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		s := k.DialSocket("/v1/ws")
		s.Hello()
		s.Send(wire.Command{Ref: new(uint64(1)), Publish: lanetest.Item("a", "1")})
		synctest.Wait()
		k.Parts.Sessions.BeginDrain(lanetest.GoingAway()).End(1)
		s.Close()
		time.Sleep(5 * time.Second)
		held.End()
		require.Zero(t, k.Counted("pubsubd_requests_refused_total", "internal"))
	})
}

// The daemon counts the new topics of a request together, so a retry after RetryAfterMS
// succeeds.
func TestMoreNewTopicsThanTheBurstAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{Limits: limit.Config{Rates: limit.Rates{limit.Topics: {limit.Address: {PerSecond: 1, Burst: 3}}}}})
		k.Open(`{"topics":["a","b"]}`)
		p := k.WantProblem(wire.CodeLimited, "POST", "/v1/sessions", `{"topics":["c","d","a"]}`, lanetest.JSONType)
		time.Sleep(time.Duration(p.RetryAfterMS) * time.Millisecond)
		k.Open(`{"topics":["c","d","a"]}`)
		p = k.WantProblem(wire.CodeLimited, "POST", "/v1/sessions", `{"topics":["e","f","g","h","a"]}`, lanetest.JSONType)
		require.Contains(t, p.Detail, "4")
		require.Contains(t, p.Remedy, "at most 3")
	})
}
