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
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
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

// eventsTo reads the head of a stream's answer and its hello. It returns an eventSource for
// the next events.
func eventsTo(k *kit, c *lanetest.Caller, ids idKind) *eventSource {
	c.Helper()
	resp := c.Answer()
	c.Cleanup(func() {
		_ = c.Conn.Close() // otherwise resp.Body.Close reads the body to its end
		resp.Body.Close()
	})
	require.Equal(c, http.StatusOK, resp.StatusCode)
	e := k.eventSource(queryOf(ids, wire.Start{Topic: "a"}))
	c.Cleanup(e.leave)
	e.ids, e.body, e.lines = ids, c.Conn, bufio.NewReader(resp.Body)
	e.hello()
	return e
}

// onBothWaysOfAllKinds runs story for each way to wait and each kind of ids.
func onBothWaysOfAllKinds(t *testing.T, story func(t *testing.T, way lane.Way, ids idKind)) {
	t.Helper()
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
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
		c := k.Call()
		c.Send(asking(ids))
		e := eventsTo(k, c, ids)
		require.Equal(t, 1, k.OnLane())
		k.WantParked(1)
		require.EqualValues(t, 1, k.Counted("pubsubd_polls_parked", "sse"))
		for n := 1; n <= 20; n++ {
			k.Tell(n, n, 10)
			e.want("a" + strconv.Itoa(n))
		}
		k.Tell(21, 30, 10)
		for n := 21; n <= 30; n++ {
			e.want("a" + strconv.Itoa(n))
		}
		k.Want(30, func() int { return int(k.Counted("pubsubd_frames_delivered_total", "sse")) }, "frames delivered")
		require.Equal(t, 1, k.OnLane())
		require.Zero(t, k.Counted("pubsubd_lane_returned_total"))

		c.Reset()
		k.WantGone(1)
		k.WantOnLane(0)
		require.Zero(t, k.Parked())
	})
}

func TestAHeartbeatOfTheLaneCanBeAnEvent(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := serveLane(t, way, lanetest.Settings{Transport: transport.Config{Heartbeat: 10 * time.Millisecond}}, nil)
		ctx, stop := context.WithCancel(t.Context())
		var sweeping sync.WaitGroup
		sweeping.Go(func() {
			for ctx.Err() == nil {
				k.Parts.Sessions.Sweep(time.Now())
				time.Sleep(time.Millisecond)
			}
		})
		defer func() { stop(); sweeping.Wait() }()
		c := k.Call()
		c.Send(strings.Replace(asking(ids), "?", "?heartbeat=event&", 1))
		e := eventsTo(k, c, ids)
		for n := 1; n <= 3; n++ {
			e.wantHeartbeat()
			k.Tell(n, n, 10)
			e.want("a" + strconv.Itoa(n))
		}
		require.Equal(t, 1, k.OnLane())
	})
}

// An EventSource attaches to an open session on the lane, reconnects with its last event's
// id, and leaves the session to a poll. Nothing is lost or repeated.
func TestAnEventStreamOfTheLaneAttachesToASession(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		id := k.OpenA()
		e := k.eventSource(attaching(id, 0))
		e.ids, e.hurries, e.every = attached, true, 7
		e.hello()
		require.Equal(t, 1, k.OnLane())
		for n := 1; n <= 50; n++ {
			k.Tell(n, n, 10)
			e.want("a" + strconv.Itoa(n))
		}
		e.leave()
		e.cut()
		k.WantOnLane(0)
		k.Tell(51, 51, 10)
		_, text := k.Get("GET", "/v1/sessions/"+id+"/poll?ack=50", "")
		require.Contains(t, text, ":51\"")
		for query, code := range map[string]wire.Code{"&ack=49": wire.CodeStaleAck, "&ack=99": wire.CodeAckBeyondSent, "": wire.CodeInvalidRequest} {
			k.WantProblem(code, "GET", "/v1/sse?session="+id+query, "")
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
		k := serveLane(t, way, lanetest.Settings{}, lanetest.Small)
		c := k.Call()
		c.Send(asking(ids))
		e := eventsTo(k, c, ids)
		k.WantParked(1)
		k.Tell(1, 1, lanetest.Large)
		k.WantParked(0)
		k.Tell(2, 200, 4<<10)
		c.ReadsOn()
		for n := 1; n <= 200; n++ {
			e.want("a" + strconv.Itoa(n))
		}
		k.WantParked(1)
		require.Zero(t, k.Gone())
	})
}

// The lane composes few events ahead for a client that does not read, however long the
// history is.
func TestFewEventsAreComposedForASlowReader(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		for _, ids := range []idKind{ofSeveral, referring} {
			k := serveLane(t, way, lanetest.Settings{}, lanetest.Small)
			k.Tell(1, 200, 4<<10)
			c := k.Call()
			c.Send("GET /v1/sse?" + queryOf(ids, wire.Start{Topic: "a", From: wire.FromOldest}).Encode() + " HTTP/1.1\r\nHost: h\r\n\r\n")
			k.Want(1, func() int { return min(1, k.Delivered()) }, "frames were written")
			require.LessOrEqual(t, k.Delivered(), 64)
		}
	})
}

// The lane closes the connection of a client that never reads. When the client
// reconnects, it gets every message after its last event.
func TestAClientThatNeverReadsItsEventsIsClosedInTime(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := serveLane(t, way, lanetest.Settings{}, lanetest.Small)
		c := k.Call()
		c.Send(asking(ids))
		e := eventsTo(k, c, ids)
		k.WantParked(1)
		k.Tell(1, 1, lanetest.Large)
		c.WantStuck(1)
		k.WantOnLaneAfter(lanetest.Defaults.WriteTimeout, 0)
		c.WantClosed()

		k.Tell(2, 3, lanetest.Large)
		again := k.eventSource(e.query)
		again.ids, again.lastID = ids, e.lastID
		defer func() { again.leave(); again.cut() }()
		again.want("a1", "a2", "a3")
	})
}

// A session may end after the request has found it and the lane has taken the connection.
// The end frame says when to reconnect.
func TestAnEventStreamWhoseSessionEndsBeforeItBeginsReconnects(t *testing.T) {
	lanetest.OnBothWays(t, func(t *testing.T, way lane.Way) {
		k := newLaneKit(t, way)
		s, _, err := k.Parts.Sessions.Open(context.Background(), session.Opening{Topics: []wire.Start{{Topic: "a"}}, Ack: true}, time.Now())
		require.NoError(t, err)
		k.Parts.Sessions.End(s)
		c := k.callServed(func(w http.ResponseWriter, r *http.Request) {
			req := transport.Request{Mode: transport.Stream, Format: frame.EventStream, Events: transport.EventsReferringTo(s, 0, true)}
			if err := k.api.servePoll(k.api.response(w, r), r, s, req); err != nil {
				panic(http.ErrAbortHandler)
			}
		})
		c.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		require.Regexp(t, `^retry: \d+\nevent: end\ndata: \{"end":.*"session_ended".*\nid: ~.*:0\n\n$`, c.WantAnswer(http.StatusOK))
		require.Equal(t, 1, k.OnLane(), "and may do so on this connection")
	})
}

// callServed returns a caller of a separate server, whose connections the kit's lane may
// take.
func (k *kit) callServed(serve http.HandlerFunc) *lanetest.Caller {
	k.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(k, err)
	server := &http.Server{Handler: serve, ReadHeaderTimeout: time.Minute, ConnContext: listen.NewContext, ConnState: listen.ConnState}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(k.Parts.Counted(l)) })
	k.Cleanup(func() { require.NoError(k, server.Close()); running.Wait() })
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(k, err)
	k.Cleanup(func() { conn.Close() })
	require.NoError(k, conn.SetDeadline(time.Now().Add(lanetest.Surely)))
	return &lanetest.Caller{Kit: k.Kit, Conn: conn.(*net.TCPConn), Answers: bufio.NewReader(conn)}
}

// A drain ends each event stream with draining and closes its connection. The client then
// reconnects.
func TestADrainEndsEventStreamsOfTheLane(t *testing.T) {
	onBothWaysOfAllKinds(t, func(t *testing.T, way lane.Way, ids idKind) {
		k := newLaneKit(t, way)
		c := k.Call()
		c.Send(asking(ids))
		e := eventsTo(k, c, ids)
		k.WantParked(1)
		k.Tell(1, 1, 10)
		e.want("a1")
		k.Parts.Sessions.BeginDrain(lanetest.GoingAway()).End(math.MaxInt)
		_, err := e.nextFrame()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeDraining})
		c.WantClosed()
		k.WantOnLane(0)
	})
}
