package lanetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A SocketSubscriber is the client of one WebSocket. A goroutine of its own receives.
type SocketSubscriber struct {
	*Kit
	Conn    net.Conn
	format  frame.Format // of its frames
	read    io.Reader
	writing sync.Mutex // held while a command or control frame is written
	Replies chan wire.Reply
	Frames  chan wire.Content // closed at the end
	err     error
	done    chan struct{}
}

// Connect opens a WebSocket on topics.
func (k *Kit) Connect(topics ...wire.Start) *SocketSubscriber {
	k.Helper()
	q := url.Values{}
	AddTopics(q, topics)
	return k.DialSocket("/v1/ws?" + q.Encode())
}

// DialSocket opens a WebSocket at a path, with its query.
func (k *Kit) DialSocket(path string) *SocketSubscriber {
	k.Helper()
	s, err := k.TryDialSocket(path)
	require.NoError(k, err)
	return s
}

// dialSocket connects to where the kit opens WebSockets.
func (k *Kit) dialSocket(ctx context.Context) (net.Conn, error) {
	if k.HTTP == nil {
		return k.dialTo(ctx, k.socketAddr)
	}
	return k.Dial()
}

// TryDialSocket opens a WebSocket. If it is refused, the error is a *wire.Problem.
func (k *Kit) TryDialSocket(path string) (*SocketSubscriber, error) {
	k.Helper()
	var refused *wire.Problem
	d := ws.Dialer{
		NetDial: func(ctx context.Context, _, _ string) (net.Conn, error) { return k.dialSocket(ctx) },
		OnStatusError: func(status int, _ []byte, answer io.Reader) {
			resp, err := http.ReadResponse(bufio.NewReader(answer), nil)
			require.NoError(k, err)
			defer resp.Body.Close()
			refused = &wire.Problem{}
			require.NoError(k, json.NewDecoder(resp.Body).Decode(refused))
			require.Equal(k, status, refused.Status)
		},
	}
	conn, buffered, _, err := d.Dial(context.Background(), "ws://pubsubd"+path)
	if refused != nil {
		return nil, refused
	}
	require.NoError(k, err)
	s := &SocketSubscriber{Kit: k, Conn: conn, read: conn, Replies: make(chan wire.Reply, 100), Frames: make(chan wire.Content), done: make(chan struct{})}
	if u, err := url.Parse(path); err == nil && u.Query().Get("format") == "cbor" {
		s.format = frame.CBOR
	}
	if buffered != nil {
		s.read = buffered
	}
	go s.receive()
	return s, nil
}

func (s *SocketSubscriber) receive() {
	defer close(s.Frames)
	for {
		var c wire.Content
		if c, s.err = s.receiveOne(); s.err != nil {
			return
		}
		if c.Reply != nil {
			s.Replies <- *c.Reply
			continue
		}
		select {
		case s.Frames <- c:
		case <-s.done:
			return
		}
	}
}

// receiveOne reads one message, and answers the control frames before it.
func (s *SocketSubscriber) receiveOne() (wire.Content, error) {
	both := struct {
		io.Reader
		io.Writer
	}{s.read, lockedWriter{s}}
	if s.format != frame.CBOR {
		text, err := wsutil.ReadServerText(both)
		if err != nil {
			return wire.Content{}, err
		}
		return wire.ParseLine(text)
	}
	item, err := wsutil.ReadServerBinary(both)
	if err != nil {
		return wire.Content{}, err
	}
	c, n, err := wire.ParseItem(item)
	if err == nil && n != len(item) {
		err = errors.New("a message has more than one frame")
	}
	return c, err
}

// lockedWriter writes answers to control frames between commands.
type lockedWriter struct{ s *SocketSubscriber }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.s.writing.Lock()
	defer w.s.writing.Unlock()
	return w.s.Conn.Write(b)
}

// Hello returns the first frame.
func (s *SocketSubscriber) Hello() *wire.Hello {
	s.Helper()
	c, ok := <-s.Frames
	if !ok {
		require.NoError(s, s.err)
	}
	require.NotNil(s, c.Hello, "%+v", c)
	return c.Hello
}

// Next returns the next frame, or why there is none: an end frame is an error.
func (s *SocketSubscriber) Next() (wire.Content, error) {
	c, ok := <-s.Frames
	switch {
	case !ok:
		return c, s.err
	case c.End != nil:
		return c, c.End
	}
	return c, nil
}

// Send sends a command.
func (s *SocketSubscriber) Send(command any) {
	s.Helper()
	require.NoError(s, s.TrySend(command))
}

// TrySend is Send on a connection that may have ended.
func (s *SocketSubscriber) TrySend(command any) error {
	s.Helper()
	said, err := json.Marshal(command)
	require.NoError(s, err)
	kind := ws.OpText
	if s.format == frame.CBOR {
		kind, said = ws.OpBinary, cbor.AppendFromJSON(nil, said)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	return wsutil.WriteClientMessage(s.Conn, kind, said)
}

// Received returns the channel of frames, which is closed at the end.
func (s *SocketSubscriber) Received() <-chan wire.Content { return s.Frames }

// Replied returns the channel of replies to commands.
func (s *SocketSubscriber) Replied() <-chan wire.Reply { return s.Replies }

// Close closes the connection, and drops what has arrived.
func (s *SocketSubscriber) Close() {
	close(s.done)
	s.Conn.Close()
	for range s.Frames {
	}
}

// WantFrame receives a message and compares its position and data.
func (s *SocketSubscriber) WantFrame(position, data string) {
	s.Helper()
	c, err := s.Next()
	require.NoError(s, err)
	require.NotNil(s, c.Message)
	require.Equal(s, position, fmt.Sprintf("%s%d", c.Message.Position.Topic, c.Message.Position.Offset))
	require.Equal(s, data, string(c.Message.Data))
}

// WantReply waits for the next reply, and requires its ref.
func (s *SocketSubscriber) WantReply(ref uint64) wire.Reply {
	s.Helper()
	reply := <-s.Replies
	require.NotNil(s, reply.Ref)
	require.Equal(s, ref, *reply.Ref)
	return reply
}

// AddTopics adds starts to a query.
func AddTopics(q url.Values, starts []wire.Start) {
	for _, start := range starts {
		q.Add("topic", start.String())
	}
}
