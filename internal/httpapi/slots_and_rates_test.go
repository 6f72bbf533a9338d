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
			k := newKit(t, settings{
				limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Second},
				broker: broker.Config{Rules: []broker.Rule{{Name: "present", Pattern: "present", Presence: true}}},
			})
			k.wantOK("/v1/topics/large/messages", `"`+strings.Repeat("x", 60_000)+`"`, jsonType)
			for range 100 {
				k.wantOK("/v1/topics/"+strings.Repeat("long", 60)+time.Now().Format("150405")+"/messages", "1", jsonType)
				time.Sleep(time.Second)
			}
			line, body, _ := strings.Cut(strings.ReplaceAll(ask, "ID", k.open(`{"topics":["present"]}`).Session), "|")
			head, fields, _ := strings.Cut(line, "\r\n")
			if fields != "" {
				fields += "\r\n"
			}
			nc, err := k.dial()
			require.NoError(t, err)
			defer nc.Close()
			_, err = nc.Write([]byte(head + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n" + body))
			require.NoError(t, err)
			synctest.Wait()
			begun := time.Now()
			k.wantOK("/v1/topics/b/messages", "1", jsonType)
			status, _ := k.get("GET", "/v1/topics?limit=1", "")
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
			k := newKit(t, settings{broker: broker.Config{Rules: []broker.Rule{{Name: "a", Pattern: "a", Presence: true}}}})
			k.wantOK("/v1/topics/a/messages", `"`+strings.Repeat("x", 60_000)+`"`, jsonType)
			topics := `"a","` + strings.Join(longNames(300), `","`) + `"`
			path := strings.ReplaceAll(ask, "ID", k.open(`{"client":"tab","topics":[`+topics+`]}`).Session)
			time.Sleep(10 * time.Second)
			turns, n := k.cfg.Limiter.Turns(), max(1, runtime.GOMAXPROCS(0)/2)
			for range n {
				require.NoError(t, turns.Enter(t.Context(), nil))
			}
			answered := make(chan int, 1)
			go func() { status, _ := k.get("GET", path, ""); answered <- status }()
			synctest.Wait()
			require.Empty(t, answered, path)
			var g metrics.Gauges
			k.cfg.Limiter.Gauges(&g)
			require.Contains(t, g.Limits, metrics.Limit{Name: "reads", Most: 1000, InUse: 1}, "what waits has a bound")

			turns.Leave()
			require.Equal(t, http.StatusOK, <-answered)
			nc, err := k.dial()
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
		k := newKit(t, settings{limits: limit.Config{Calls: 1, WaitingCalls: 1, Wait: time.Second}})
		k.wantOK("/v1/topics/a/messages", "1", jsonType)
		read, err := k.cfg.Limiter.Begin(t.Context(), limit.Who{}, true)
		require.NoError(t, err)
		k.wantOK("/v1/topics/a/messages", "1", jsonType)
		require.Contains(t, k.wantProblem(wire.CodeOverloaded, "GET", "/v1/topics/a", "").Detail, "limits.calls")
		read.End()
		publish, err := k.cfg.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		status, _ := k.get("GET", "/v1/topics/a", "")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, k.wantProblem(wire.CodeOverloaded, "POST", "/v1/topics/a/messages", "1", jsonType).Detail, "limits.calls")
		publish.End()
	})
}

// An event stream of a pattern opens a session. The second one exceeds the rate of
// sessions.
func TestAnEventSourceKeepsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{limits: limit.Config{Rates: limit.Rates{limit.Sessions: {limit.All: once}}}})
		open := func() string {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pubsubd/v1/sse?topic=a.*", nil)
			require.NoError(t, err)
			resp, err := k.client.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			begin := make([]byte, 1000)
			n, _ := resp.Body.Read(begin)
			return string(begin[:n])
		}
		require.NotContains(t, open(), "limited")
		require.Contains(t, open(), "rates.sessions.all")
		require.Equal(t, 1.0, k.counted("pubsubd_sessions_opened_total"))
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
			k := newKit(t, settings{limits: limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: once}, limit.Polls: {limit.Address: once}}}})
			status, _ := k.get(way[0], way[1], way[2])
			require.NotEqual(t, http.StatusTooManyRequests, status)
			status, _ = k.get(way[0], way[1], way[2])
			require.Equal(t, http.StatusTooManyRequests, status, way)
		})
	}
}

func TestInvalidCommandsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{limits: limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: once}}}})
		for i, command := range []map[string]any{{}, {"unknown": 1}, {"ping": true, "ack": 1}, {"subscribe": 1}} {
			k.cfg.Limiter.Reload(limit.Config{Rates: limit.Rates{limit.Requests: {limit.Address: {PerSecond: 1.0 / 3600, Burst: 1 + i%2}}}})
			s := k.dialSocket("/v1/ws")
			s.hello()
			command["ref"] = 1
			for range 1 + i%2 {
				s.send(command)
				require.Equal(t, wire.CodeInvalidRequest, s.wantReply(1).Problem.Code, command)
			}
			s.send(command)
			require.Equal(t, wire.CodeLimited, s.wantReply(1).Problem.Code, command)
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
			k := newKit(t, settings{limits: limit.Config{Rates: rates}})
			s := k.dialSocket("/v1/ws?topic=a")
			s.hello()
			time.Sleep(5*defaults.Heartbeat + time.Second) // its pongs are sent: neither side of the pipe reads while it writes
			s.send(wire.Command{Ping: true})
			for ref := range uint64(2) {
				s.send(wire.Command{Ref: &ref, Ping: true})
				require.Nil(t, s.wantReply(ref).Problem)
			}
			s.send(wire.Command{Ref: new(uint64(9)), Ping: true})
			refused := s.wantReply(9).Problem
			require.Equal(t, wire.CodeLimited, refused.Code)
			require.Contains(t, refused.Remedy, "rates.polls."+scope.String())
			require.Positive(t, refused.RetryAfterMS)
			k.wantProblem(wire.CodeLimited, "GET", "/v1/poll?topic=a", "")
			k.publish("a", "1")
			s.wantFrame("a1", "1")
			s.Close()
		})
	}
}

// Pings and their replies do not count for acks.
func TestPingsDoNotCountForAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{})
		id := k.openA()
		s := k.dialSocket("/v1/ws?session=" + id + "&ack=0")
		s.hello()
		for ref := range uint64(3) {
			s.send(wire.Command{Ref: &ref, Ping: true})
			s.wantReply(ref)
		}
		time.Sleep(5*defaults.Heartbeat + time.Second) // its pongs are sent: neither side of the pipe reads while it writes
		k.publish("a", "1")
		s.wantFrame("a1", "1")
		s.send(wire.Command{Ref: new(uint64(7)), Ack: new(uint64(2))})
		require.Equal(t, wire.CodeAckBeyondSent, s.wantReply(7).Problem.Code)
		s.send(wire.Command{Ref: new(uint64(8)), Ack: new(uint64(1))})
		require.Nil(t, s.wantReply(8).Problem)
		s.Close()
	})
}

// The daemon counts no internal error when a client leaves while its command waits.
func TestAClientThatLeavesDuringACommandIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{limits: limit.Config{Calls: 1, Wait: time.Minute}})
		held, err := k.cfg.Limiter.Begin(t.Context(), limit.Who{}, false)
		require.NoError(t, err)
		s := k.dialSocket("/v1/ws")
		s.hello()
		s.send(wire.Command{Ref: new(uint64(1)), Publish: item("a", "1")})
		synctest.Wait()
		k.cfg.Sessions.BeginDrain(goingAway()).End(1)
		s.Close()
		time.Sleep(5 * time.Second)
		held.End()
		require.Zero(t, k.counted("pubsubd_requests_refused_total", "internal"))
	})
}

// The daemon counts the new topics of a request together, so a retry after RetryAfterMS
// succeeds.
func TestMoreNewTopicsThanTheBurstAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, settings{limits: limit.Config{Rates: limit.Rates{limit.Topics: {limit.Address: {PerSecond: 1, Burst: 3}}}}})
		k.open(`{"topics":["a","b"]}`)
		p := k.wantProblem(wire.CodeLimited, "POST", "/v1/sessions", `{"topics":["c","d","a"]}`, jsonType)
		time.Sleep(time.Duration(p.RetryAfterMS) * time.Millisecond)
		k.open(`{"topics":["c","d","a"]}`)
		p = k.wantProblem(wire.CodeLimited, "POST", "/v1/sessions", `{"topics":["e","f","g","h","a"]}`, jsonType)
		require.Contains(t, p.Detail, "4")
		require.Contains(t, p.Remedy, "at most 3")
	})
}
