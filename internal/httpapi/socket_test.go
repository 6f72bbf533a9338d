package httpapi

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
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

func TestAWebSocketDeliversTheSame(t *testing.T) {
	for i, w := range everySocket() {
		t.Run(w.String(), func(t *testing.T) {
			transporttest.Run(t, someStories(i), func(t *testing.T, b transporttest.Bounds) transporttest.System {
				return w.on(newKit(t, boundsOf(b)))
			})
		})
	}
}

// A socketWay is a way to open a WebSocket.
type socketWay struct {
	format   frame.Format
	attached bool // attaches to a session opened before
}

func everySocket() (all []socketWay) {
	for _, format := range []frame.Format{frame.NDJSON, frame.CBOR} {
		all = append(all, socketWay{format, false}, socketWay{format, true})
	}
	return all
}

func (w socketWay) String() string {
	if w.attached {
		return formatNames[w.format] + " of a session"
	}
	return formatNames[w.format]
}

func (w socketWay) on(k *kit) *duplexSystem {
	return &duplexSystem{system: system{kit: k}, attached: w.attached, dial: func(request wire.ConnectRequest) (duplexConn, error) {
		k.Helper()
		q := url.Values{"format": {formatNames[w.format]}}
		addTopics(q, request.Topics)
		addWishes(q, request.Topics, request.Client)
		if request.Session != "" {
			q.Set("session", request.Session)
			q.Set("ack", strconv.FormatUint(*request.Ack, 10))
		}
		return k.tryDialSocket("/v1/ws?" + q.Encode())
	}}
}

// socketSubscriber is the client of one WebSocket. It implements duplexConn.
type socketSubscriber struct {
	*kit
	conn    net.Conn
	format  frame.Format // of its frames
	read    io.Reader
	writing sync.Mutex // held while a command or control frame is written
	replies chan wire.Reply
	frames  chan wire.Content // closed at the end
	err     error
	done    chan struct{}
}

func (k *kit) connect(topics ...wire.Start) *socketSubscriber {
	k.Helper()
	q := url.Values{}
	addTopics(q, topics)
	return k.dialSocket("/v1/ws?" + q.Encode())
}

func (k *kit) dialSocket(path string) *socketSubscriber {
	k.Helper()
	s, err := k.tryDialSocket(path)
	require.NoError(k, err)
	return s
}

// tryDialSocket opens a WebSocket. If it is refused, the error is a *wire.Problem.
func (k *kit) tryDialSocket(path string) (*socketSubscriber, error) {
	k.Helper()
	var refused *wire.Problem
	d := ws.Dialer{
		NetDial: func(context.Context, string, string) (net.Conn, error) { return k.dial() },
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
	s := &socketSubscriber{kit: k, conn: conn, read: conn, replies: make(chan wire.Reply, 100), frames: make(chan wire.Content), done: make(chan struct{})}
	if u, err := url.Parse(path); err == nil && u.Query().Get("format") == "cbor" {
		s.format = frame.CBOR
	}
	if buffered != nil {
		s.read = buffered
	}
	go s.receive()
	return s, nil
}

func (s *socketSubscriber) receive() {
	defer close(s.frames)
	for {
		var c wire.Content
		if c, s.err = s.receiveOne(); s.err != nil {
			return
		}
		if c.Reply != nil {
			s.replies <- *c.Reply
			continue
		}
		select {
		case s.frames <- c:
		case <-s.done:
			return
		}
	}
}

// receiveOne reads one message, and answers the control frames before it.
func (s *socketSubscriber) receiveOne() (wire.Content, error) {
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
type lockedWriter struct{ s *socketSubscriber }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.s.writing.Lock()
	defer w.s.writing.Unlock()
	return w.s.conn.Write(b)
}

func (s *socketSubscriber) hello() *wire.Hello {
	s.Helper()
	c, ok := <-s.frames
	if !ok {
		require.NoError(s, s.err)
	}
	require.NotNil(s, c.Hello, "%+v", c)
	return c.Hello
}

func (s *socketSubscriber) Next() (wire.Content, error) {
	c, ok := <-s.frames
	switch {
	case !ok:
		return c, s.err
	case c.End != nil:
		return c, c.End
	}
	return c, nil
}

func (s *socketSubscriber) send(command any) {
	s.Helper()
	require.NoError(s, s.trySend(command))
}

func (s *socketSubscriber) trySend(command any) error {
	s.Helper()
	said, err := json.Marshal(command)
	require.NoError(s, err)
	kind := ws.OpText
	if s.format == frame.CBOR {
		kind, said = ws.OpBinary, cbor.AppendFromJSON(nil, said)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	return wsutil.WriteClientMessage(s.conn, kind, said)
}

func (s *socketSubscriber) received() <-chan wire.Content { return s.frames }
func (s *socketSubscriber) replied() <-chan wire.Reply    { return s.replies }

func (s *socketSubscriber) Close() {
	close(s.done)
	s.conn.Close()
	for range s.frames {
	}
}

// wantFrame receives a message and compares its position and data.
func (s *socketSubscriber) wantFrame(position, data string) {
	s.Helper()
	c, err := s.Next()
	require.NoError(s, err)
	require.NotNil(s, c.Message)
	require.Equal(s, position, fmt.Sprintf("%s%d", c.Message.Position.Topic, c.Message.Position.Offset))
	require.Equal(s, data, string(c.Message.Data))
}

func (s *socketSubscriber) wantReply(ref uint64) wire.Reply {
	s.Helper()
	reply := <-s.replies
	require.NotNil(s, reply.Ref)
	require.Equal(s, ref, *reply.Ref)
	return reply
}

func item(topic, data string) *wire.PublishItem {
	return &wire.PublishItem{Topic: topic, Data: json.RawMessage(data)}
}

func (k *kit) publish(topic, data string) {
	k.Helper()
	status, body := k.get("POST", "/v1/topics/"+topic+"/messages", data, jsonType)
	require.Equal(k, 200, status, body)
}

// The daemon reads pongs while a write to their client is blocked. A client answers a
// ping before it reads on.
func TestPongsAreReadDuringLongWrites(t *testing.T) {
	k := newKit(t, settings{})
	s := k.connect(wire.Start{Topic: "a"})
	s.hello()
	for range 3 {
		k.publish("a", `1`) // the receiver holds one; the connection buffers none
	}
	require.NoError(t, s.conn.SetWriteDeadline(time.Now().Add(time.Minute)))
	for range 50 {
		require.NoError(t, ws.WriteFrame(s.conn, ws.MaskFrame(ws.NewPongFrame(nil))))
	}
	s.Close()
}
