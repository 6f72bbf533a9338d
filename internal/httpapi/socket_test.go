package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAWebSocketTellsTheSame(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, b transporttest.Bounds) transporttest.System {
		k := newKit(t, settings{
			broker:  broker.Config{HistoryMessages: b.HistoryMessages, HistoryAge: b.HistoryAge},
			session: session.Config{Queue: b.Queue},
		})
		return &socketSystem{system{kit: k}}
	})
}

// socketSystem implements transporttest.System over WebSockets.
type socketSystem struct{ system }

func (s *socketSystem) Subscribe(topics ...wire.Start) transporttest.Subscriber {
	s.Helper()
	sub := s.connect(topics...)
	sub.hello()
	return sub
}

// socketSubscriber is the client of one WebSocket.
type socketSubscriber struct {
	*kit
	conn    net.Conn
	read    io.Reader
	replies chan wire.Reply
	frames  chan wire.Content // closed at the end
	err     error
	done    chan struct{}
}

func (k *kit) connect(topics ...wire.Start) *socketSubscriber {
	k.Helper()
	q := url.Values{}
	for _, start := range topics {
		q.Add("topic", start.String())
	}
	return k.dialSocket("/v1/ws?" + q.Encode())
}

func (k *kit) dialSocket(path string) *socketSubscriber {
	k.Helper()
	d := ws.Dialer{NetDial: func(ctx context.Context, _, _ string) (net.Conn, error) { return k.dial() }}
	conn, buffered, _, err := d.Dial(context.Background(), "ws://pubsubd"+path)
	require.NoError(k, err)
	s := &socketSubscriber{kit: k, conn: conn, read: conn, replies: make(chan wire.Reply, 100), frames: make(chan wire.Content), done: make(chan struct{})}
	if buffered != nil {
		s.read = buffered
	}
	go s.receive()
	return s
}

func (s *socketSubscriber) receive() {
	defer close(s.frames)
	for {
		var text []byte
		if text, s.err = wsutil.ReadServerText(struct {
			io.Reader
			io.Writer
		}{s.read, s.conn}); s.err != nil {
			return
		}
		var c wire.Content
		if c, s.err = wire.ParseLine(text); s.err != nil {
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

func (s *socketSubscriber) hello() *wire.Hello {
	s.Helper()
	c := <-s.frames
	require.NotNil(s, c.Hello)
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

func (s *socketSubscriber) send(command wire.Command) {
	s.Helper()
	text, err := json.Marshal(command)
	require.NoError(s, err)
	require.NoError(s, wsutil.WriteClientText(s.conn, text))
}

func (s *socketSubscriber) Change(add []wire.Start, remove []string) bool {
	s.Helper()
	s.send(wire.Command{Ref: new(uint64(7)), Subscribe: add, Unsubscribe: remove})
	reply := <-s.replies
	require.Nil(s, reply.Problem)
	require.Equal(s, uint64(7), *reply.Ref)
	return true
}

func (s *socketSubscriber) Close() {
	close(s.done)
	s.conn.Close()
	for range s.frames {
	}
}

// wantFrame receives a message and compares.
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
