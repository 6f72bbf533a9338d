package loadtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A fakeServer speaks PROTOCOL.md as simply as possible, and misbehaves exactly
// as told. It keeps all messages of all topics for ever.
type fakeServer struct {
	faults faults
	pushed atomic.Int64 // connections that were not polled
	http   *httptest.Server

	mu       sync.Mutex // guards the fields below
	changed  chan struct{}
	topics   map[string][]*wire.Message
	sessions []*fakeSession
	publishN int         // publishes seen
	underway int         // publishes not answered
	most     int         // of them, at one time
	spoken   map[int]int // of them, those on sockets, by subscriber
	binaries int         // sockets that are binary
	scrapes  int
}

// A fakeSession is where one subscriber is. Subscriber n is the nth that came.
type fakeSession struct {
	number int
	topic  string
	offset int // messages of the topic that it was given
}

// faults are what the server does wrong. They are asked once for each message
// and subscriber.
type faults struct {
	// lines returns what subscriber n gets of a message in place of its line.
	lines func(subscriber int, m *wire.Message, line string) []string
	// refuse makes the nth publish (from 1) be answered 503.
	refuse func(n int) bool
	// delay is how long a publish waits before subscribers can have it.
	delay time.Duration
	// hangUp closes subscriber n's connection in place of answering poll k.
	hangUp func(subscriber, poll int) bool
	// step is from one offset to the next; 0 is 1.
	step int
	// answer returns what a publish is answered with in place of its position.
	answer func(p wire.Published) string
}

const fakeEpoch = "k3"

func startFake(t *testing.T, f faults) *fakeServer {
	t.Helper()
	s := newFake(f)
	s.http = httptest.NewServer(s)
	t.Cleanup(s.http.Close)
	return s
}

func newFake(f faults) *fakeServer {
	return &fakeServer{faults: f, changed: make(chan struct{}), topics: map[string][]*wire.Message{}, spoken: map[int]int{}}
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/metrics":
		s.metrics(w)
	case r.URL.Path == "/v1/sessions":
		s.open(w, r)
	case r.URL.Path == "/v1/sse":
		s.events(w, r)
	case r.URL.Path == "/v1/ws":
		s.socket(w, r)
	case r.URL.Path == "/v1/poll":
		s.stateless(w, r)
	case len(path) == 4 && path[1] == "topics" && path[3] == "messages":
		s.publish(w, r, path[2])
	case len(path) == 4 && path[1] == "sessions" && path[3] == "poll":
		s.poll(w, r, path[2])
	default:
		writeProblem(w, wire.CodeNotFound)
	}
}

func writeProblem(w http.ResponseWriter, code wire.Code) {
	p := problem.New(code, "", "as told")
	w.Header().Set("Content-Type", wire.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// metrics says figures that grow by a known step with each scrape.
func (s *fakeServer) metrics(w io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scrapes++
	_, _ = fmt.Fprintf(w, "# HELP x y\nprocess_cpu_seconds_total %d.5\nprocess_resident_memory_bytes %d\n"+
		"pubsubd_network_bytes_total{direction=\"in\"} %d\npubsubd_network_bytes_total{direction=\"out\"} %d\n"+
		"pubsubd_build_info{version=\"v1\",go=\"go1\"} 1\n", s.scrapes, s.scrapes*1_000_000, s.scrapes*10, s.scrapes*20)
}

func (s *fakeServer) open(w http.ResponseWriter, r *http.Request) {
	var o wire.OpenRequest
	if json.NewDecoder(r.Body).Decode(&o) != nil || len(o.Topics) != 1 {
		writeProblem(w, wire.CodeInvalidRequest)
		return
	}
	s.mu.Lock()
	session := s.subscribe(o.Topics[0].Topic)
	opened := wire.SessionOpened{
		Session:   strconv.Itoa(session.number),
		Ack:       true,
		Positions: []wire.Position{s.position(session.topic, session.offset)},
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(opened)
}

// subscribe is called with mu held.
func (s *fakeServer) subscribe(topic string) *fakeSession {
	session := &fakeSession{number: len(s.sessions), topic: topic, offset: len(s.topics[topic])}
	s.sessions = append(s.sessions, session)
	return session
}

func (s *fakeServer) publish(w http.ResponseWriter, r *http.Request, topic string) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.publishN++
	n := s.publishN
	s.underway++
	s.most = max(s.most, s.underway)
	s.mu.Unlock()
	defer s.publishEnds()
	if s.faults.refuse != nil && s.faults.refuse(n) {
		writeProblem(w, wire.CodeOverloaded)
		return
	}
	if s.faults.delay > 0 {
		<-time.After(s.faults.delay)
	}
	m := s.append(topic, r.Header.Get("Content-Type"), body)
	w.Header().Set("Content-Type", "application/json")
	published := wire.Published{Position: m.Position, Time: m.Time}
	if s.faults.answer != nil {
		_, _ = io.WriteString(w, s.faults.answer(published))
		return
	}
	_ = json.NewEncoder(w).Encode(published)
}

func (s *fakeServer) publishEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underway--
}

// mostAtOnce is how many publishes there were at one time.
func (s *fakeServer) mostAtOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// position is that of a topic's nth message, from 1.
func (s *fakeServer) position(topic string, n int) wire.Position {
	return wire.Position{Topic: topic, Epoch: fakeEpoch, Offset: uint64(n * max(s.faults.step, 1))}
}

// nth is the inverse of position.
func (s *fakeServer) nth(offset uint64) int { return int(offset) / max(s.faults.step, 1) }

func (s *fakeServer) append(topic, mediaType string, body []byte) *wire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mediaType == "application/json" {
		mediaType = ""
	}
	position := s.position(topic, len(s.topics[topic])+1)
	m := &wire.Message{Position: position, Time: 1700000000000, Type: mediaType, Data: body}
	s.topics[topic] = append(s.topics[topic], m)
	close(s.changed)
	s.changed = make(chan struct{})
	return m
}

func (s *fakeServer) poll(w http.ResponseWriter, r *http.Request, id string) {
	n, _ := strconv.Atoi(id)
	ack, _ := strconv.Atoi(r.URL.Query().Get("ack"))
	s.mu.Lock()
	session := s.sessions[n]
	s.mu.Unlock()
	if s.faults.hangUp != nil && s.faults.hangUp(n, ack) {
		hangUp(w)
		return
	}
	s.answer(w, r, session, "")
}

func (s *fakeServer) stateless(w http.ResponseWriter, r *http.Request) {
	start, err := wire.ParseStart(r.URL.Query().Get("topic"))
	if err != nil {
		writeProblem(w, wire.CodeInvalidPosition)
		return
	}
	s.mu.Lock()
	if start.From == wire.FromNow {
		start = wire.StartAfter(s.position(start.Topic, len(s.topics[start.Topic])))
		s.mu.Unlock()
		hello := wire.Content{Hello: &wire.Hello{Positions: []wire.Position{start.Position()}}}.AppendJSON(nil)
		session := &fakeSession{topic: start.Topic, offset: s.nth(start.After)}
		s.answer(w, r, session, string(hello))
		return
	}
	s.mu.Unlock()
	s.answer(w, r, &fakeSession{topic: start.Topic, offset: s.nth(start.After)}, "")
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

// answer waits for frames and writes them in the mode asked for.
func (s *fakeServer) answer(w http.ResponseWriter, r *http.Request, session *fakeSession, first string) {
	mode := r.URL.Query().Get("mode")
	w.Header().Set("Content-Type", "application/x-ndjson")
	if mode == "stream" && first == "" {
		first = string(wire.Content{Hello: &wire.Hello{Positions: []wire.Position{s.position(session.topic, session.offset)}}}.AppendJSON(nil))
	}
	if mode != "stream" && mode != "multiple" {
		text := first
		if text == "" {
			text = s.next(r, session, mode == "single")
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = io.WriteString(w, text)
		return
	}
	for more := true; more; more = mode == "stream" {
		text := first
		if first == "" {
			text = s.next(r, session, false)
		}
		first = ""
		if text == "" {
			return
		}
		// Chunks that do not respect lines.
		for _, part := range []string{text[:len(text)/2], text[len(text)/2:]} {
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	}
}

// next returns the lines that are there, as soon as there are any; empty if the
// client has gone.
func (s *fakeServer) next(r *http.Request, session *fakeSession, single bool) string {
	for {
		s.mu.Lock()
		changed := s.changed
		messages := s.topics[session.topic][session.offset:]
		if single && len(messages) > 1 {
			messages = messages[:1]
		}
		session.offset += len(messages)
		s.mu.Unlock()
		var text strings.Builder
		for _, m := range messages {
			for _, line := range s.lines(session.number, m) {
				text.WriteString(line)
			}
		}
		if text.Len() > 0 {
			return text.String()
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return ""
		}
	}
}

func (s *fakeServer) lines(subscriber int, m *wire.Message) []string {
	line := string(wire.Content{Message: m}.AppendJSON(nil))
	if s.faults.lines == nil {
		return []string{line}
	}
	return s.faults.lines(subscriber, m, line)
}
