package httpapi

import (
	"bufio"
	"context"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// kinds are the kinds of ids that a stream may have.
var kinds = []idKind{ofOneTopic, ofSeveral, referring}

// asking returns a request for the events of topic a.
func asking(ids idKind) string {
	return "GET /v1/sse?" + queryOf(ids, wire.Start{Topic: "a"}).Encode() + " HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n"
}

// events reads the head of a stream's answer and its hello. It returns an eventSource for
// the next events.
func (c *caller) events(ids idKind) *eventSource {
	c.Helper()
	resp := c.answer()
	c.Cleanup(func() {
		_ = c.conn.Close() // otherwise resp.Body.Close reads the body to its end
		resp.Body.Close()
	})
	require.Equal(c, http.StatusOK, resp.StatusCode)
	e := c.eventSource(queryOf(ids, wire.Start{Topic: "a"}))
	c.Cleanup(e.leave)
	e.ids, e.body, e.lines = ids, c.conn, bufio.NewReader(resp.Body)
	e.hello()
	return e
}

// onBothWaysOfAllKinds runs story for each way to wait and each kind of ids.
func onBothWaysOfAllKinds(t *testing.T, story func(t *testing.T, way lane.Way, ids idKind)) {
	t.Helper()
	onBothWays(t, func(t *testing.T, way lane.Way) {
		for _, ids := range kinds {
			t.Run(string(ids), func(t *testing.T) { story(t, way, ids) })
		}
	})
}

// The lane takes over an event stream with its first request. It delivers and counts the
// events like those of any stream.
func TestAnEventStreamIsTakenOverByTheLane(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := newLaneKit(t, way)
		c := k.call()
		c.send(asking(ids))
		e := c.events(ids)
		require.Equal(t, 1, k.onLane())
		k.wantParked(1)
		require.EqualValues(t, 1, k.counted("pubsubd_polls_parked", "sse"))
		for n := 1; n <= 20; n++ {
			k.tell(n, n, 10)
			e.want("a" + strconv.Itoa(n))
		}
		k.tell(21, 30, 10)
		for n := 21; n <= 30; n++ {
			e.want("a" + strconv.Itoa(n))
		}
		k.want(30, func() int { return int(k.counted("pubsubd_frames_delivered_total", "sse")) }, "frames delivered")
		require.Equal(t, 1, k.onLane())
		require.Zero(t, k.counted("pubsubd_lane_returned_total"))

		c.reset()
		k.wantGone(1)
		k.wantOnLane(0)
		require.Zero(t, k.parked())
	})
}

func TestAHeartbeatOfTheLaneCanBeAnEvent(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := serveLane(t, way, settings{transport: transport.Config{Heartbeat: 10 * time.Millisecond}}, nil)
		ctx, stop := context.WithCancel(t.Context())
		var sweeping sync.WaitGroup
		sweeping.Go(func() {
			for ctx.Err() == nil {
				k.cfg.Sessions.Sweep(time.Now())
				time.Sleep(time.Millisecond)
			}
		})
		defer func() { stop(); sweeping.Wait() }()
		c := k.call()
		c.send(strings.Replace(asking(ids), "?", "?heartbeat=event&", 1))
		e := c.events(ids)
		for n := 1; n <= 3; n++ {
			e.wantHeartbeat()
			k.tell(n, n, 10)
			e.want("a" + strconv.Itoa(n))
		}
		require.Equal(t, 1, k.onLane())
	})
}

// An EventSource attaches to an open session on the lane, reconnects with its last event's
// id, and leaves the session to a poll. Nothing is lost or repeated.
func TestAnEventStreamOfTheLaneAttachesToASession(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		id := k.openA()
		e := k.eventSource(attaching(id, 0))
		e.ids, e.hurries, e.every = attached, true, 7
		e.hello()
		require.Equal(t, 1, k.onLane())
		for n := 1; n <= 50; n++ {
			k.tell(n, n, 10)
			e.want("a" + strconv.Itoa(n))
		}
		e.leave()
		e.cut()
		k.wantOnLane(0)
		k.tell(51, 51, 10)
		_, text := k.get("GET", "/v1/sessions/"+id+"/poll?ack=50", "")
		require.Contains(t, text, ":51\"")
		for query, code := range map[string]wire.Code{"&ack=49": wire.CodeStaleAck, "&ack=99": wire.CodeAckBeyondSent, "": wire.CodeInvalidRequest} {
			k.wantProblem(code, "GET", "/v1/sse?session="+id+query, "")
		}
	})
}

// As TestNothingIsLostWhereverAnEventStreamIsCut, where the lane answers.
func TestNothingIsLostWhereverAnEventStreamOfTheLaneIsCut(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		newLaneKit(t, way).cutEventsEverywhere(ids, true)
	})
}

// A client stops reading while more is published than its sockets hold. Then it reads on
// and misses nothing.
func TestAnEventStreamWaitsForAClientThatReadsLate(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := serveLane(t, way, settings{}, small)
		c := k.call()
		c.send(asking(ids))
		e := c.events(ids)
		k.wantParked(1)
		k.tell(1, 1, large)
		k.wantParked(0)
		k.tell(2, 200, 4<<10)
		c.readsOn()
		for n := 1; n <= 200; n++ {
			e.want("a" + strconv.Itoa(n))
		}
		k.wantParked(1)
		require.Zero(t, k.gone())
	})
}

// The lane composes few events ahead for a client that does not read, however long the
// history is.
func TestFewEventsAreComposedForASlowReader(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		for _, ids := range []idKind{ofSeveral, referring} {
			k := serveLane(t, way, settings{}, small)
			k.tell(1, 200, 4<<10)
			c := k.call()
			c.send("GET /v1/sse?" + queryOf(ids, wire.Start{Topic: "a", From: wire.FromOldest}).Encode() + " HTTP/1.1\r\nHost: h\r\n\r\n")
			k.want(1, func() int { return min(1, k.delivered()) }, "frames were written")
			require.LessOrEqual(t, k.delivered(), 64)
		}
	})
}

// The lane closes the connection of a client that never reads. When the client
// reconnects, it gets every message after its last event.
func TestAClientThatNeverReadsItsEventsIsClosedInTime(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := serveLane(t, way, settings{}, small)
		c := k.call()
		c.send(asking(ids))
		e := c.events(ids)
		k.wantParked(1)
		k.tell(1, 1, large)
		c.wantStuck(1)
		k.wantOnLaneAfter(defaults.WriteTimeout, 0)
		c.wantClosed()

		k.tell(2, 3, large)
		again := k.eventSource(e.query)
		again.ids, again.lastID = ids, e.lastID
		defer func() { again.leave(); again.cut() }()
		again.want("a1", "a2", "a3")
	})
}

// A session may end after the request has found it and the lane has taken the connection.
// The end frame says when to reconnect.
func TestAnEventStreamWhoseSessionEndsBeforeItBeginsReconnects(t *testing.T) {
	onBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		s, _, err := k.cfg.Sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}, Ack: true}, time.Now())
		require.NoError(t, err)
		k.cfg.Sessions.End(s)
		c := k.callServed(func(w http.ResponseWriter, r *http.Request) {
			req := transport.Request{Mode: transport.Stream, Format: frame.EventStream, Events: transport.EventsReferringTo(s, 0, true)}
			if err := k.api.servePoll(k.api.response(w, r), r, s, req); err != nil {
				panic(http.ErrAbortHandler)
			}
		})
		c.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Regexp(t, `^retry: \d+\nevent: end\ndata: \{"end":.*"session_ended".*\nid: ~.*:0\n\n$`, c.wantAnswer(http.StatusOK))
		require.Equal(t, 1, k.onLane(), "and may do so on this connection")
	})
}

// callServed returns a caller of a separate server, whose connections the kit's lane may
// take.
func (k *kit) callServed(serve http.HandlerFunc) *caller {
	k.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(k, err)
	server := &http.Server{Handler: serve, ReadHeaderTimeout: time.Minute, ConnContext: listen.NewContext, ConnState: listen.ConnState}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(&countedListener{l, k.cfg}) })
	k.Cleanup(func() { require.NoError(k, server.Close()); running.Wait() })
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(k, err)
	k.Cleanup(func() { conn.Close() })
	require.NoError(k, conn.SetDeadline(time.Now().Add(surely)))
	return &caller{kit: k, conn: conn.(*net.TCPConn), answers: bufio.NewReader(conn)}
}

// A drain ends each event stream with draining and closes its connection. The client then
// reconnects.
func TestADrainEndsEventStreamsOfTheLane(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := newLaneKit(t, way)
		c := k.call()
		c.send(asking(ids))
		e := c.events(ids)
		k.wantParked(1)
		k.tell(1, 1, 10)
		e.want("a1")
		k.cfg.Sessions.BeginDrain(goingAway()).End(math.MaxInt)
		_, err := e.nextFrame()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeDraining})
		c.wantClosed()
		k.wantOnLane(0)
	})
}
