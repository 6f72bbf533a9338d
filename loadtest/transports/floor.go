package transports

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/floor/bare"
)

// bareNumber is under which the floor keeps a subject's frames.
func bareNumber(s subject) byte {
	switch {
	case s.transport == BareWriter:
		return 0
	case s.format == JSON:
		return 1
	}
	return 2
}

func bareAnswers(s subject) []byte { return []byte{bare.Answer, bareNumber(s)} }

// loadBare gives the floor what the server would send: for the bare writer, every
// message; for the bare loop, whole answers with the head that the server's have.
func (m *runner) loadBare(ctx context.Context, e *exchange) error {
	for _, s := range m.cfg.subjects() {
		if !s.isFloor() {
			continue
		}
		frames := m.frames(s)
		if s.transport == BareLoop {
			head, err := m.singleHead(e, s.format)
			if err != nil {
				return fmt.Errorf("poll once, for the bare loop: %w", err)
			}
			frames = answers(head, frames)
		}
		if err := m.sendFrames(ctx, bareNumber(s), frames); err != nil {
			return fmt.Errorf("load the floor: %w", err)
		}
	}
	return nil
}

// frames are the filled topic's messages as the server sends them, but for the
// time.
func (m *runner) frames(s subject) [][]byte {
	f := newContent(s.encoding(), m.filled, nil).form
	now := uint64(time.Now().UnixMilli())
	frames := make([][]byte, m.cfg.messages(s))
	for i := range frames {
		frames[i] = f.append(nil, seen{m.filled.Offset + uint64(i) + 1, now, i})
	}
	return frames
}

// singleHead returns the head of an answer with one message.
func (m *runner) singleHead(e *exchange, format string) ([]byte, error) {
	session, err := openSession(e, m.authority, m.filled.Topic+"@oldest")
	if err != nil {
		return nil, err
	}
	m.session = session
	request := client.Get(m.authority, "/v1/sessions/"+session+"/poll?ack=0&mode=single&format="+format)
	answer, body, err := e.call(request)
	if err != nil {
		return nil, err
	}
	if answer.Status != 200 {
		return nil, fmt.Errorf("answered %d: %.300q", answer.Status, body)
	}
	head, _, _ := bytes.Cut(e.raw, []byte("\r\n\r\n"))
	if head = bytes.Clone(head); !lengthLine.Match(head) {
		return nil, errNoLength
	}
	return append(head, "\r\n\r\n"...), e.remove(m.authority, "/v1/sessions/"+session)
}

var (
	lengthLine  = regexp.MustCompile(`(?i)(content-length: *)\d+`)
	errNoLength = errors.New("the answer's head has no Content-Length")
)

// answers puts a head before each frame.
func answers(head []byte, frames [][]byte) [][]byte {
	whole := make([][]byte, len(frames))
	for i, f := range frames {
		length := append([]byte("${1}"), strconv.Itoa(len(f))...)
		whole[i] = append(lengthLine.ReplaceAll(head, length), f...)
	}
	return whole
}

func (m *runner) sendFrames(ctx context.Context, number byte, frames [][]byte) error {
	conn, err := dial(ctx, m.bare)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write(bare.AppendLoad(nil, number, frames)); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}
