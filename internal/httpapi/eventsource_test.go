package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An eventSource behaves like a browser's EventSource (HTML, section "Server-sent
// events"), but strictly. Input that a browser would ignore fails the test.
type eventSource struct {
	*kit
	http  *http.Client
	ctx   context.Context
	leave context.CancelFunc
	query url.Values

	ids     idKind
	lastID  string        // of the last event on any connection
	retry   time.Duration // delay before it reconnects
	stopped int           // status after which it does not reconnect
	problem *wire.Problem // reason for which it stopped
	body    io.Closer     // current connection; nil: none
	lines   *bufio.Reader
	begun   bool // the connection has received its first event
	count   uint64
	session string // named by the last hello
	hurries bool   // reconnects without delay
	every   int    // cuts its connection after this many events; 0: never
	events  int
}

// idKind is the kind of event ids that the daemon must use in a stream.
type idKind string

const (
	ofOneTopic idKind = "one topic"
	ofSeveral  idKind = "several topics"
	referring  idKind = "a reference"
	attached   idKind = "a reference to an open session" // the URL names it, and no topic
)

// refer reports whether ids refer to a session.
func (i idKind) refer() bool { return i == referring || i == attached }

func (k *kit) eventSource(query url.Values) *eventSource {
	e := &eventSource{kit: k, http: k.HTTP, query: query, retry: 3 * time.Second}
	e.ctx, e.leave = context.WithCancel(context.Background())
	return e
}

// An event is one dispatched server-sent event.
type event struct{ name, id, data string }

// heartbeat is the name of an event that is no frame.
const heartbeat = "heartbeat"

// wantHeartbeat receives a heartbeat.
func (e *eventSource) wantHeartbeat() {
	e.Helper()
	ev, err := e.next()
	require.NoError(e, err)
	require.Equal(e, event{name: heartbeat, data: "{}"}, ev)
}

// next returns the next event and reconnects as often as necessary. Once the client has
// stopped for good, the error names the status.
func (e *eventSource) next() (event, error) {
	e.Helper()
	for e.stopped == 0 {
		if e.body == nil {
			if err := e.connect(); err != nil {
				return event{}, err
			}
			continue
		}
		ev, err := e.read()
		if err == nil {
			if ev.name == heartbeat {
				require.True(e, e.begun, "a client would forget what it has")
				return ev, nil
			}
			e.check(ev)
			e.lastID = ev.id
			if e.events++; e.every > 0 && e.events%e.every == 0 {
				e.cut()
			}
			return ev, nil
		}
		e.cut()
		if e.ctx.Err() != nil {
			return event{}, e.ctx.Err()
		}
		e.wait()
	}
	return event{}, fmt.Errorf("stopped at status %d", e.stopped)
}

// wait waits for the retry delay.
func (e *eventSource) wait() {
	if !e.hurries {
		time.Sleep(e.retry)
	}
}

func (e *eventSource) connect() error {
	r, err := http.NewRequestWithContext(e.ctx, "GET", "http://pubsubd/v1/sse?"+e.query.Encode(), nil)
	require.NoError(e, err)
	r.Header.Set("Accept", "text/event-stream")
	if e.lastID != "" {
		r.Header.Set("Last-Event-ID", e.lastID)
	}
	resp, err := e.http.Do(r)
	if err != nil {
		if e.ctx.Err() != nil {
			return err
		}
		e.wait()
		return nil
	}
	if resp.StatusCode != http.StatusOK {
		e.stopped, e.problem = resp.StatusCode, &wire.Problem{}
		_ = json.NewDecoder(resp.Body).Decode(e.problem) // a 204 has no body
		return resp.Body.Close()
	}
	require.Equal(e, "text/event-stream", resp.Header.Get("Content-Type"))
	e.body, e.lines, e.begun = resp.Body, bufio.NewReader(resp.Body), false
	return nil
}

func (e *eventSource) cut() {
	if e.body != nil {
		e.body.Close()
		e.body = nil
	}
}

// read reads one event. It returns an error if the connection is cut before the event's
// final empty line.
func (e *eventSource) read() (event, error) {
	e.Helper()
	var ev event
	lines := map[string]bool{}
	for {
		line, err := e.lines.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" && len(lines) > 0 {
			return ev, nil
		}
		if line == ":" {
			require.Empty(e, lines, "a heartbeat within an event")
			_, err = e.lines.ReadString('\n')
			if err != nil {
				return event{}, err
			}
			continue
		}
		field, value, ok := strings.Cut(line, ": ")
		require.True(e, ok && !lines[field], "%q", line)
		lines[field] = true
		switch field {
		case "event":
			ev.name = value
		case "id":
			ev.id = value
		case "data":
			ev.data = value
		case "retry":
			ms, err := strconv.Atoi(value)
			require.NoError(e, err)
			require.Positive(e, ms)
			e.retry = time.Duration(ms) * time.Millisecond
		default:
			require.Fail(e, "no such field", "%q", line)
		}
	}
}

// check verifies the name, id and order of an event.
func (e *eventSource) check(ev event) {
	e.Helper()
	c := content(e, ev)
	if c.End == nil || e.lastID != "" {
		require.NotEmpty(e, ev.id, "%+v: a client would forget what it has", ev)
	}
	require.Equal(e, ev.name, map[bool]string{c.Hello != nil: "hello", c.Gap != nil: "gap", c.Moved != nil: "moved", c.End != nil: "end"}[true], "%+v", ev)
	require.Equal(e, !e.begun, c.Hello != nil || c.End != nil && !e.begun, "hello is the first: %+v", ev)
	e.begun = true
	switch {
	case c.Hello != nil:
		e.session = c.Hello.Session
		if e.ids.refer() {
			e.recount(ev.id)
			return
		}
		require.Empty(e, c.Hello.Session)
		for _, p := range c.Hello.Positions {
			require.Contains(e, strings.Split(ev.id, ","), p.String())
		}
	case c.End != nil:
		require.Equal(e, e.lastID, ev.id, "it has no more than it had")
	case c.Moved != nil:
		reference, positions, _ := strings.Cut(ev.id, ",")
		if !e.ids.refer() {
			positions = ev.id
		} else if require.Equal(e, fmt.Sprintf("~%s:%d", e.session, e.count), reference, "it does not count"); e.ids == attached {
			return
		}
		for _, p := range c.Moved.Positions {
			require.Contains(e, strings.Split(positions, ","), p.String())
		}
	case e.ids.refer():
		e.count++
		reference, positions, _ := strings.Cut(ev.id, ",")
		require.Equal(e, fmt.Sprintf("~%s:%d", e.session, e.count), reference, ev.id)
		require.Less(e, len(ev.id), 2<<10)
		if e.ids == attached {
			require.Empty(e, positions)
		} else if c.Gap != nil && c.Gap.IsLeftOut() && !wire.IsPattern(c.Gap.Topic) {
			require.NotContains(e, ","+positions, ","+c.Gap.Topic+"@", "there may be any number of such topics")
		} else if positions != "" {
			require.Contains(e, strings.Split(positions, ","), position(c).String())
		}
	case e.ids == ofOneTopic:
		p := position(c)
		require.Equal(e, p.String(), ev.id)
	default:
		p := position(c)
		require.Contains(e, strings.Split(ev.id, ","), p.String())
		require.Len(e, strings.Split(ev.id, ","), len(e.query["topic"]))
	}
}

// recount sets the frame count from the id of hello, which may refer to a new session.
func (e *eventSource) recount(id string) {
	e.Helper()
	if last := referenceOf(e.lastID); strings.HasPrefix(last, "~"+e.session+":") {
		require.Equal(e, last, referenceOf(id))
	}
	had, err := transport.ParseEventID(id)
	require.NoError(e, err)
	require.Equal(e, e.session, had.Session)
	e.count = had.Count
}

// referenceOf returns an id without its positions.
func referenceOf(id string) string {
	reference, _, _ := strings.Cut(id, ",")
	return reference
}

func content(t require.TestingT, ev event) wire.Content {
	c, err := wire.ParseLine([]byte(ev.data))
	require.NoError(t, err, ev.data)
	return c
}

// nextFrame returns the next message or gap.
func (e *eventSource) nextFrame() (wire.Content, error) {
	e.Helper()
	for {
		ev, err := e.next()
		if err != nil {
			return wire.Content{}, err
		}
		if ev.name == heartbeat {
			continue
		}
		c := content(e, ev)
		if c.End != nil {
			return c, c.End
		}
		if c.Counts() {
			return c, nil
		}
	}
}

// hello connects and returns the first event's content.
func (e *eventSource) hello() *wire.Hello {
	e.Helper()
	ev, err := e.next()
	require.NoError(e, err)
	require.Equal(e, "hello", ev.name, "%+v", ev)
	return content(e, ev).Hello
}

// want receives one frame per word, such as "a1" or "gap(slow a2-5)".
func (e *eventSource) want(words ...string) {
	e.Helper()
	for i, word := range words {
		c, err := e.nextFrame()
		require.NoError(e, err, "%q", words[i:])
		require.Equal(e, word, wordOf(c), "of %q", words)
	}
}

func wordOf(c wire.Content) string {
	if g := c.Gap; g != nil {
		return fmt.Sprintf("gap(%s %s%d-%d)", g.Reason, g.Topic, g.After.Offset, g.Position.Offset)
	}
	return fmt.Sprintf("%s%d", c.Message.Position.Topic, c.Message.Position.Offset)
}

// sseSystem implements transporttest.System.
type sseSystem struct {
	system
	ids   idKind
	every int
}

func (s *sseSystem) Subscribe(o transporttest.Opening) (transporttest.Subscriber, error) {
	s.Helper()
	e := s.kit.eventSource(queryOf(s.ids, o.Topics...))
	addWishes(e.query, o.Topics, o.Client)
	e.ids, e.every, e.hurries = s.ids, s.every, true
	if len(o.Topics) > 1 && e.ids == ofOneTopic {
		e.ids = ofSeveral
	}
	hasPattern := slices.ContainsFunc(o.Topics, func(s wire.Start) bool { return wire.IsPattern(s.Topic) })
	if (hasPattern || len(e.query.Encode()) > 2<<10) && !e.ids.refer() {
		e.ids = referring
	}
	var opened wire.SessionOpened
	if s.ids == attached {
		var err error
		if opened, err = s.openFor(o.Topics, o.Client); err != nil {
			return nil, err
		}
		e.query = attaching(opened.Session, 0)
	}
	sub := &sseSubscriber{eventSource: e}
	ev, err := e.next()
	switch {
	case e.problem != nil:
		return nil, e.problem
	case err != nil:
		return nil, err
	}
	c := content(e, ev)
	if c.End != nil {
		sub.Close()
		return nil, c.End
	}
	sub.told, sub.had = c.Hello.Positions, []string{e.lastID}
	if s.ids == attached {
		sub.told = opened.Positions
	}
	return sub, nil
}

// attaching returns a query for a session of which the client has count frames.
func attaching(session string, count uint64) url.Values {
	return url.Values{"session": {session}, "ack": {strconv.FormatUint(count, 10)}}
}

// queryOf returns a query for topics. It adds a topic or pattern that makes the daemon
// use this kind of ids.
func queryOf(ids idKind, topics ...wire.Start) url.Values {
	q := url.Values{}
	lanetest.AddTopics(q, topics)
	switch ids {
	case ofSeveral:
		q.Add("topic", "nobody.publishes-here")
	case referring:
		q.Add("topic", "nobody.publishes.>")
	}
	return q
}

// sseSubscriber implements transporttest.Subscriber.
type sseSubscriber struct {
	*eventSource
	told []wire.Position
	had  []string // last event id after hello and after each frame
}

func (s *sseSubscriber) Positions() []wire.Position { return s.told }

func (s *sseSubscriber) Next() (wire.Content, error) {
	s.Helper()
	c, err := s.nextFrame()
	if err == nil {
		s.had = append(s.had, s.lastID)
	}
	return c, err
}

func (s *sseSubscriber) Change(add []wire.Start, remove []string) ([]wire.Position, error) {
	s.Helper()
	if !s.ids.refer() {
		return nil, errors.ErrUnsupported
	}
	return s.changeSession(s.session, add, remove)
}

// Leaves implements transporttest.SessionHolder.
func (s *sseSubscriber) Leaves() bool { return false }

// End implements transporttest.SessionHolder.
func (s *sseSubscriber) End() error {
	if !s.ids.refer() {
		return errors.ErrUnsupported
	}
	s.endSession(s.session)
	return nil
}

// Rival implements transporttest.SessionHolder.
func (s *sseSubscriber) Rival() (transporttest.Subscriber, error) {
	if !s.ids.refer() {
		return nil, errors.ErrUnsupported
	}
	e := s.kit.eventSource(attaching(s.session, s.count))
	e.ids = attached
	return &sseSubscriber{eventSource: e}, nil
}

// Return forgets the last frames. The next call of Next reconnects with the id of an
// earlier event.
func (s *sseSubscriber) Return(lost int) {
	s.cut()
	s.had = s.had[:len(s.had)-lost]
	s.lastID = s.had[len(s.had)-1]
}

// Leave implements transporttest.Subscriber.
func (s *sseSubscriber) Leave() { s.cut() }

func (s *sseSubscriber) Close() {
	s.leave()
	s.cut()
}
