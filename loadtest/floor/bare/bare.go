// Package bare is the floor for one fast connection, where package floor is that
// for many slow ones: made with Go's own sockets, goroutines and one channel, and
// nothing else.
//
// It sends what it was given before, byte for byte, in two ways. Written: one
// goroutine pushes frames into one buffered channel, from which another takes what
// is there and writes it at once. Answered: a goroutine reads a request up to its
// empty line and writes one frame, over and over. No request is looked at, nothing
// is encoded, no client can fall behind or come back.
//
// The first byte on a connection says what it is for, the second which frames are
// meant. Numbers are big-endian.
//
//	L number count(4) [ length(4) frame ]…   keep these; answered with L
//	W number                                 write them
//	A number                                 answer the requests that follow with them, in turn
package bare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// What a connection is for.
const (
	Load   = 'L'
	Write  = 'W'
	Answer = 'A'
)

// A Server is the floor, listening. Everything may be called concurrently.
type Server struct {
	listener net.Listener

	mu     sync.Mutex // guards the fields below
	frames [256][][]byte
	conns  map[net.Conn]struct{} // nil once stopped
	served sync.WaitGroup
}

// Listen returns a Server that listens on address. Whoever gets it must call
// Serve.
func Listen(address string) (*Server, error) {
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // its sockets do more than the floor needs
	l, err := plain.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", address, err)
	}
	return &Server{listener: l, conns: map[net.Conn]struct{}{}}, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves until Stop, and returns when all connections are closed.
func (s *Server) Serve() error {
	defer s.served.Wait()
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		s.start(conn)
	}
}

// Stop ends Serve and closes all connections.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener.Close()
	for conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

func (s *Server) start(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		conn.Close()
		return
	}
	s.conns[conn] = struct{}{}
	s.served.Go(func() {
		s.serve(conn)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
	})
}

// serve does what a connection is for. One that ends, as all do, is no error.
func (s *Server) serve(conn net.Conn) {
	defer conn.Close()
	var first [2]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return
	}
	switch first[0] {
	case Load:
		s.load(conn, first[1])
	case Write:
		write(conn, s.loaded(first[1]))
	case Answer:
		answer(conn, s.loaded(first[1]))
	}
}

func (s *Server) loaded(number byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frames[number]
}

func (s *Server) load(conn net.Conn, number byte) {
	frames, err := readFrames(bufio.NewReaderSize(conn, 1<<20))
	if err != nil {
		return
	}
	s.mu.Lock()
	s.frames[number] = frames
	s.mu.Unlock()
	_, _ = conn.Write([]byte{Load})
}

// mostFrame bounds a frame.
const mostFrame = 1 << 20

func readFrames(in io.Reader) ([][]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return nil, err
	}
	var frames [][]byte
	for range binary.BigEndian.Uint32(size[:]) {
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return nil, err
		}
		length := binary.BigEndian.Uint32(size[:])
		if length > mostFrame {
			return nil, fmt.Errorf("frame of %d bytes is longer than %d", length, mostFrame)
		}
		frame := make([]byte, length)
		if _, err := io.ReadFull(in, frame); err != nil {
			return nil, err
		}
		frames = append(frames, frame)
	}
	return frames, nil
}

// AppendLoad appends what makes a Server keep frames under a number.
func AppendLoad(b []byte, number byte, frames [][]byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, Load, number), uint32(len(frames)))
	for _, f := range frames {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}

// A channel that seldom keeps either side waiting, and about as much in one write as
// a socket takes at once.
const (
	buffered   = 1024
	writeBatch = 64 << 10
)

// write sends frames through one channel, and waits for the client to leave.
func write(conn net.Conn, frames [][]byte) {
	queue, gone := make(chan []byte, buffered), make(chan struct{})
	go func() {
		defer close(queue)
		for _, f := range frames {
			select {
			case queue <- f:
			case <-gone:
				return
			}
		}
	}()
	drain(conn, queue)
	close(gone)
	for range queue { // until the other is gone
	}
	_, _ = io.Copy(io.Discard, conn)
}

// drain writes what is in the queue, as much as there is at a time, until it is
// closed or a write fails.
func drain(conn net.Conn, queue <-chan []byte) {
	batch := make([]byte, 0, 2*writeBatch) // grows if a frame is large
	for frame := range queue {
		batch = append(batch[:0], frame...)
		for len(batch) < writeBatch && len(queue) > 0 {
			batch = append(batch, <-queue...)
		}
		if _, err := conn.Write(batch); err != nil {
			return
		}
	}
}

// answer answers requests without a body, each with the next of frames.
func answer(conn net.Conn, frames [][]byte) {
	end := []byte("\r\n\r\n")
	buffer, held := make([]byte, 16<<10), 0
	for _, f := range frames {
		for !bytes.HasSuffix(buffer[:held], end) {
			n, err := conn.Read(buffer[held:])
			if held += n; err != nil || held == len(buffer) {
				return
			}
		}
		held = 0
		if _, err := conn.Write(f); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, conn)
}
