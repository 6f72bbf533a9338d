package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A connection is one keep-alive connection that is asked one thing at a time. It
// belongs to one goroutine.
type connection struct {
	conn   net.Conn
	parser *client.Parser

	request []byte // being made
	part    []byte // what is read at a time
	head    client.Head
	body    []byte
	whole   bool // the answer is

	in, out int64 // bytes
}

// readBytes holds most answers whole.
const readBytes = 64 << 10

func dial(ctx context.Context, address string, gzip bool) (*connection, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &connection{conn: conn, parser: client.NewParser(gzip), part: make([]byte, readBytes)}, nil
}

// get sends a GET of target, with prepared header lines.
func (c *connection) get(target []byte, headers string) error {
	b := append(c.request[:0], "GET "...)
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = append(b, headers...)
	c.request = append(b, "\r\n"...)
	return c.send()
}

// post sends a POST, of which begin is all up to the length.
func (c *connection) post(begin string, body []byte) error {
	b := append(c.request[:0], begin...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	c.request = append(b, body...)
	return c.send()
}

func (c *connection) send() error {
	c.parser.Expect()
	n, err := c.conn.Write(c.request)
	c.out += int64(n)
	return err
}

// answer reads a whole answer. The body is valid until the next.
func (c *connection) answer() (client.Head, []byte, error) {
	c.whole = false
	for !c.whole {
		n, err := c.conn.Read(c.part)
		if err == nil {
			c.in += int64(n)
			err = c.parser.Feed(c.part[:n], c)
		}
		if err != nil {
			return client.Head{}, nil, err
		}
	}
	return c.head, c.body, nil
}

// mostAnswer is above what an answer may have: about 1 MiB.
const mostAnswer = 4 << 20

// Head is part of client.Receiver.
func (c *connection) Head(h client.Head) error {
	c.head, c.body = h, c.body[:0]
	return nil
}

// Body is part of client.Receiver.
func (c *connection) Body(part []byte) error {
	if len(c.body)+len(part) > mostAnswer {
		return fmt.Errorf("answer is longer than %d bytes", mostAnswer)
	}
	c.body = append(c.body, part...)
	return nil
}

// End is part of client.Receiver.
func (c *connection) End() error {
	c.whole = true
	return nil
}

// wanted reads an answer of the given status.
func (c *connection) wanted(what string, status int) (client.Head, []byte, error) {
	head, body, err := c.answer()
	if err != nil {
		return head, nil, fmt.Errorf("%s: %w", what, err)
	}
	if head.Status != status {
		return head, nil, fmt.Errorf("%s: %w", what, refusal(head, body))
	}
	return head, body, nil
}

// A refused request got another status than the one that means yes.
type refused struct {
	status int
	reason string
}

func (r *refused) Error() string { return fmt.Sprintf("answered %d: %s", r.status, r.reason) }

func refusal(head client.Head, body []byte) error {
	var p wire.Problem
	if head.ContentType == wire.ProblemType && json.Unmarshal(body, &p) == nil && p.Code != "" {
		return &refused{head.Status, p.Error()}
	}
	return &refused{head.Status, fmt.Sprintf("%.200q", bytes.TrimSpace(body))}
}
