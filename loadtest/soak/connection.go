package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A connection is one kept-alive connection, with requests written by hand: what
// the lane takes over. It is one goroutine's, but for close.
type connection struct {
	conn   *reader
	buffer *bufio.Reader
	stop   func() bool
}

// patience is how long an answer may be quiet: above the time for which a poll is
// held, and above two heartbeats.
const patience = 40 * time.Second

// dial connects; the connection is closed when ctx ends. A small buffer reads
// little by little.
func dial(ctx context.Context, address string, rng *rand.Rand) (*connection, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	r := &reader{Conn: conn, most: 64 << 10}
	if rng.IntN(5) == 0 {
		r.most = 20 + rng.IntN(200)
	}
	return &connection{conn: r, buffer: bufio.NewReader(r), stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
}

func (c *connection) close() {
	c.stop()
	_ = c.conn.Close()
}

// A reader reads little at a time, and gives up when nothing comes.
type reader struct {
	net.Conn
	most int
}

func (r *reader) Read(b []byte) (int, error) {
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return r.Conn.Read(b[:min(len(b), r.most)])
}

// ask sends a request and reads the head of its answer, whose body the caller reads
// to its end and closes.
func (c *connection) ask(method, path string, body any) (*http.Response, error) {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	var request bytes.Buffer
	fmt.Fprintf(&request, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/x-ndjson\r\n", method, path)
	if body != nil {
		fmt.Fprintf(&request, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(content))
	}
	request.WriteString("\r\n")
	request.Write(content)
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(request.Bytes()); err != nil {
		return nil, err
	}
	return http.ReadResponse(c.buffer, &http.Request{Method: method})
}

// call asks for an answer that is one JSON value. An answer with another status is
// a *wire.Problem if the daemon explains it.
func (c *connection) call(method, path string, body any, want int, answer any) error {
	resp, err := c.ask(method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != want {
		return problemOf(resp, content)
	}
	return json.Unmarshal(content, answer)
}

// errNotOurs is an answer that the daemon never gives.
var errNotOurs = errors.New("the answer does not come from pubsubd")

// isHalfRequest reports whether err is what a request is answered of which only a
// part came, followed by the end of what the client sends: by net/http if the head
// was cut, by the daemon if the body was.
func isHalfRequest(err error) bool {
	if problem, ok := errors.AsType[*wire.Problem](err); ok {
		return problem.Code == wire.CodeInvalidRequest && strings.Contains(problem.Detail, "the body did not arrive")
	}
	return err != nil && strings.Contains(err.Error(), "400 Bad Request") && !strings.Contains(err.Error(), "{")
}

func problemOf(resp *http.Response, content []byte) error {
	var p wire.Problem
	if err := json.Unmarshal(content, &p); err != nil || p.Code == "" || p.Status != resp.StatusCode {
		return fmt.Errorf("%w: %s %.200q", errNotOurs, resp.Status, content)
	}
	return &p
}
