package loadtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// What of the fakeServer is not polled. A subscriber's lines are those of polls.

// begin makes a session that begins now, and its hello.
func (s *fakeServer) begin(topic string) (*fakeSession, string) {
	s.pushed.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.subscribe(topic)
	return session, string(wire.Content{Hello: &wire.Hello{Positions: []wire.Position{s.position(topic, session.offset)}}}.AppendJSON(nil))
}

func (s *fakeServer) events(w http.ResponseWriter, r *http.Request) {
	session, lines := s.begin(r.URL.Query().Get("topic"))
	w.Header().Set("Content-Type", "text/event-stream")
	for lines != "" {
		for line := range strings.Lines(lines) {
			_, _ = io.WriteString(w, asEvent(line))
		}
		w.(http.Flusher).Flush()
		lines = s.next(r, session, false)
	}
}

func asEvent(line string) string {
	switch c, err := wire.ParseLine([]byte(line)); {
	case err != nil || c.End != nil:
		return "event: end\ndata: " + line + "\n"
	case c.Hello != nil:
		return "retry: 1000\nevent: hello\nid: " + c.Hello.Positions[0].String() + "\ndata: " + line + "\n"
	case c.Gap != nil:
		return "event: gap\nid: " + c.Gap.Position.String() + "\ndata: " + line + "\n"
	default:
		return "id: " + c.Message.Position.String() + "\ndata: " + line + "\n"
	}
}

// A fakeSocket is a WebSocket to one subscriber.
type fakeSocket struct {
	binary bool

	mu   sync.Mutex // guards writing
	conn net.Conn
}

func (s *fakeServer) socket(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	socket := &fakeSocket{binary: r.URL.Query().Get("format") == "cbor", conn: conn}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	session, lines := s.begin(r.URL.Query().Get("topic"))
	if socket.binary {
		s.mu.Lock()
		s.binaries++
		s.mu.Unlock()
	}
	// A hijacked request's context does not end with its connection.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		defer cancel()
		s.obey(socket, session.number, rw.Reader)
	}()
	for lines != "" {
		for line := range strings.Lines(lines) {
			socket.say(line)
		}
		lines = s.next(r.WithContext(ctx), session, false)
	}
}

// say sends one frame; one that is none as it is.
func (s *fakeSocket) say(line string) {
	c, err := wire.ParseLine([]byte(line))
	payload, first := []byte(line), byte(0x81)
	if s.binary && err == nil {
		payload, first = itemOf(c), 0x82
	}
	head := binary.BigEndian.AppendUint16([]byte{first, 126}, uint16(len(payload)))
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.conn.Write(append(head, payload...))
}

func itemOf(c wire.Content) []byte {
	switch {
	case c.Message != nil:
		return wire.Content{Message: c.Message}.AppendCBOR(nil)
	case c.Gap != nil:
		return wire.Content{Gap: c.Gap}.AppendCBOR(nil)
	case c.Hello != nil:
		return wire.Content{Hello: c.Hello}.AppendCBOR(nil)
	case c.Reply != nil:
		return wire.Content{Reply: c.Reply}.AppendCBOR(nil)
	}
	return wire.Content{End: c.End}.AppendCBOR(nil)
}

// obey publishes what it is told to, until the connection ends.
func (s *fakeServer) obey(socket *fakeSocket, subscriber int, r *bufio.Reader) {
	for n := 0; ; n++ {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		if s.faults.hangUp != nil && s.faults.hangUp(subscriber, n) {
			_ = socket.conn.Close()
			return
		}
		socket.say(s.reply(subscriber, command))
	}
}

func (s *fakeServer) reply(subscriber int, c wire.Command) string {
	s.mu.Lock()
	s.publishN++
	s.spoken[subscriber]++
	n := s.publishN
	s.mu.Unlock()
	if s.faults.refuse != nil && s.faults.refuse(n) {
		return fmt.Sprintf(`{"reply":{"ref":%d,"problem":{"status":503,"code":"overloaded"}}}`, *c.Ref)
	}
	if s.faults.delay > 0 {
		<-time.After(s.faults.delay)
	}
	body := []byte(c.Publish.Data)
	if c.Publish.Text != nil {
		body = []byte(*c.Publish.Text)
	}
	m := s.append(c.Publish.Topic, c.Publish.Type, body)
	return fmt.Sprintf(`{"reply":{"ref":%d,"position":%q,"time":%d}}`, *c.Ref, m.Position, m.Time)
}

// readCommand reads a masked frame with the key zero.
func readCommand(r *bufio.Reader) (c wire.Command, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(r, head); err != nil {
		return c, err
	}
	length := int(head[1] & 0x7f)
	if length == 126 {
		var long [2]byte
		_, _ = io.ReadFull(r, long[:])
		length = int(binary.BigEndian.Uint16(long[:]))
	}
	payload := make([]byte, 4+length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return c, err
	}
	payload = payload[4:]
	if head[0] == 0x82 {
		payload = cbor.AppendJSON(nil, payload)
	}
	return c, json.Unmarshal(payload, &c)
}
