package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// A sink is a server that does nothing: it takes every connection, and answers
// every request with the same few bytes. What attackers cost a machine by
// themselves is what they cost while it is they who are served by it.
type sink struct {
	listener net.Listener
	serving  sync.WaitGroup
}

// sinkAnswer has what attackers look for in answers.
var sinkAnswer = func() []byte {
	const body = `{"session":"0123456789abcdefghijklm","position":"abuse.quiet@k3:1","positions":[]}`
	return []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}()

// newSink returns a sink that listens, on a port of its own choice.
func newSink(ctx context.Context) (*sink, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &sink{listener: l}, nil
}

func (s *sink) address() string { return s.listener.Addr().String() }

// serve returns when ctx is done, and everyone has left.
func (s *sink) serve(ctx context.Context) error {
	defer s.serving.Wait()
	defer context.AfterFunc(ctx, func() { _ = s.listener.Close() })()
	for {
		conn, err := s.listener.Accept()
		switch {
		case err == nil:
			s.serving.Go(func() { swallow(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case !isPassing(err):
			return err
		}
	}
}

// isPassing tells a connection that ended before it was taken from a listener that
// takes no more.
func isPassing(err error) bool {
	var fault *net.OpError
	return errors.As(err, &fault) && !errors.Is(err, net.ErrClosed)
}

// swallow answers what looks like requests until the connection ends.
func swallow(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	in := bufio.NewReaderSize(conn, 1<<10)
	for {
		length, err := skipHead(in)
		if err == nil {
			_, err = io.CopyN(io.Discard, in, length)
		}
		if err == nil {
			_, err = conn.Write(sinkAnswer)
		}
		if err != nil {
			return
		}
	}
}

// skipHead reads up to the empty line that ends a head of any length, and returns
// how long the body is said to be.
func skipHead(in *bufio.Reader) (int64, error) {
	var length int64
	for whole := true; ; {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			whole = false
			continue
		}
		if err != nil {
			return 0, err
		}
		begins := whole
		whole = true
		if line = bytes.TrimRight(line, "\r\n"); begins && len(line) == 0 {
			return length, nil
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); begins && strings.EqualFold(string(name), "content-length") {
			length, _ = strconv.ParseInt(string(value), 10, 64)
		}
	}
}
