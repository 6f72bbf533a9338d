package transports

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
)

// patience is how long nothing may be heard before what is missing is lost.
const patience = 10 * time.Second

// dial connects to authority. The caller must close the connection.
func dial(ctx context.Context, authority string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", authority)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// An exchange is a connection on which a request is answered before the next is
// sent. It is not safe for concurrent use.
type exchange struct {
	conn   net.Conn
	parser *client.Parser
	buffer []byte

	head  client.Head
	body  []byte
	raw   []byte // the whole answer as it came
	ended bool
}

// newExchange connects. Whoever gets an exchange must close its connection.
func newExchange(ctx context.Context, authority string) (*exchange, error) {
	conn, err := dial(ctx, authority)
	return &exchange{conn: conn, parser: client.NewParser(false), buffer: make([]byte, 64<<10)}, err
}

// call sends a request and returns its answer, whose body is valid until the next.
func (e *exchange) call(request []byte) (client.Head, []byte, error) {
	e.parser.Expect()
	e.body, e.raw, e.ended = e.body[:0], e.raw[:0], false
	if err := e.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return client.Head{}, nil, err
	}
	if _, err := e.conn.Write(request); err != nil {
		return client.Head{}, nil, err
	}
	for !e.ended {
		n, err := e.conn.Read(e.buffer)
		if err != nil {
			return client.Head{}, nil, err
		}
		e.raw = append(e.raw, e.buffer[:n]...)
		if err := e.parser.Feed(e.buffer[:n], e); err != nil {
			return client.Head{}, nil, err
		}
	}
	return e.head, e.body, nil
}

// Head is part of client.Receiver.
func (e *exchange) Head(h client.Head) error {
	e.head = h
	return nil
}

// mostAnswered bounds an answer: a thousand results of a publish.
const mostAnswered = 4 << 20

// Body is part of client.Receiver.
func (e *exchange) Body(part []byte) error {
	if e.body = append(e.body, part...); len(e.body) > mostAnswered {
		return fmt.Errorf("answer is longer than %d bytes", mostAnswered)
	}
	return nil
}

// End is part of client.Receiver.
func (e *exchange) End() error {
	e.ended = true
	return nil
}

// post returns a request with a body of JSON, or of lines of it.
func post(authority, path, contentType string, body []byte) []byte {
	b := []byte(client.PostTo(authority, path, contentType, ""))
	b = strconv.AppendInt(b, int64(len(body)), 10)
	return append(append(b, "\r\n\r\n"...), body...)
}

// remove sends a DELETE.
func (e *exchange) remove(authority, path string) error {
	request := strings.Replace(string(client.Get(authority, path)), "GET", "DELETE", 1)
	head, body, err := e.call([]byte(request))
	if err == nil && head.Status >= 300 {
		err = fmt.Errorf("answered %d: %.300q", head.Status, body)
	}
	return err
}
