package transports

import (
	"context"
	"fmt"
	"net"
	"time"
)

// A subscriber is one client on its connection. All but close belongs to the
// goroutine that runs it.
type subscriber struct {
	conn      net.Conn
	transport transport
	content   *content
	buffer    []byte

	in, out int64  // bytes
	known   uint64 // messages when the deadline was set
}

// Sizes of what is read at once: large for one client, less for many.
const (
	mostBuffer  = 256 << 10
	leastBuffer = 16 << 10
	allBuffers  = 64 << 20
)

func bufferSize(clients int) int { return min(max(allBuffers/clients, leastBuffer), mostBuffer) }

func newSubscriber(ctx context.Context, authority string, prologue []byte, buffer int) (*subscriber, error) {
	conn, err := dial(ctx, authority)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(prologue); err != nil {
		conn.Close()
		return nil, err
	}
	return &subscriber{conn: conn, buffer: make([]byte, buffer)}, nil
}

// run asks for messages and reads until they are all there. greeted is called once
// the server has said hello.
func (s *subscriber) run(greeted func()) error {
	reply := s.transport.ask()
	for {
		if err := s.send(reply); err != nil {
			return err
		}
		if s.content.hello && greeted != nil {
			greeted()
			greeted = nil
		}
		if s.content.tally.complete() {
			return nil
		}
		b, err := s.read()
		if err != nil {
			return fmt.Errorf("with %d messages missing: %w", s.content.tally.lost(), err)
		}
		if reply, err = s.transport.receive(b); err != nil {
			return err
		}
	}
}

func (s *subscriber) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	s.out += int64(len(b))
	_, err := s.conn.Write(b)
	return err
}

// read waits until something comes, but no longer than for a message: answers
// without one do not count.
func (s *subscriber) read() ([]byte, error) {
	if frames := s.content.tally.frames; frames != s.known || frames == 0 && s.in == 0 {
		s.known = frames
		if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
	}
	n, err := s.conn.Read(s.buffer)
	s.in += int64(n)
	if n > 0 {
		return s.buffer[:n], nil
	}
	return nil, err
}

// close ends run. It may be called from any goroutine.
func (s *subscriber) close() { s.conn.Close() }
