package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestABareConnectionTellsTheSame(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, b transporttest.Bounds) transporttest.System {
		return &bareSystem{newBareKit(t, settings{
			broker:  broker.Config{HistoryMessages: b.HistoryMessages, HistoryAge: b.HistoryAge},
			session: session.Config{Queue: b.Queue},
		})}
	})
}

// A bareKit is a kit with a port for bare connections besides.
type bareKit struct {
	system
	port *pipeListener
}

func newBareKit(t *testing.T, s settings) *bareKit {
	k := &bareKit{system{kit: newKit(t, s)}, newPipeListener()}
	port := transport.NewPort(k.api.BareHost())
	var running sync.WaitGroup
	running.Go(func() { require.ErrorIs(t, port.Serve(k.port), net.ErrClosed) })
	t.Cleanup(func() {
		require.NoError(t, k.port.Close())
		k.api.Close()
		port.Close()
		running.Wait()
	})
	return k
}

// bareSystem implements transporttest.System over bare connections.
type bareSystem struct{ *bareKit }

func (s *bareSystem) Subscribe(topics ...wire.Start) transporttest.Subscriber {
	s.Helper()
	sub := s.openBare(wire.ConnectRequest{Topics: topics})
	c := <-sub.frames
	require.NotNil(s, c.Hello)
	return sub
}

// bareSubscriber is the client of one bare connection.
type bareSubscriber struct {
	*bareKit
	conn    net.Conn
	replies chan wire.Reply
	frames  chan wire.Content // closed at the end
	err     error
	done    chan struct{}
}

func (k *bareKit) dialBare() net.Conn {
	k.Helper()
	conn, err := k.port.dial(context.Background(), "", "")
	require.NoError(k, err)
	return conn
}

func (k *bareKit) openBare(request wire.ConnectRequest) *bareSubscriber {
	k.Helper()
	s := &bareSubscriber{bareKit: k, conn: k.dialBare(), replies: make(chan wire.Reply, 100), frames: make(chan wire.Content), done: make(chan struct{})}
	go s.receive()
	s.send(request)
	return s
}

func (s *bareSubscriber) send(v any) {
	s.Helper()
	text, err := json.Marshal(v)
	require.NoError(s, err)
	_, err = s.conn.Write(wire.AppendCBORFromJSON(nil, text))
	require.NoError(s, err)
}

func (s *bareSubscriber) receive() {
	defer close(s.frames)
	frames := wire.NewCBORDecoder(s.conn)
	for {
		var c wire.Content
		if c, s.err = frames.Next(); s.err != nil {
			return
		}
		switch {
		case c.Reply != nil:
			s.replies <- *c.Reply
			continue
		case c == wire.Content{}:
			continue // a heartbeat
		}
		select {
		case s.frames <- c:
		case <-s.done:
			return
		}
	}
}

func (s *bareSubscriber) Next() (wire.Content, error) {
	c, ok := <-s.frames
	switch {
	case !ok:
		return c, s.err
	case c.End != nil:
		return c, c.End
	}
	return c, nil
}

func (s *bareSubscriber) Change(add []wire.Start, remove []string) bool {
	s.Helper()
	s.send(wire.Command{Ref: new(uint64(3)), Subscribe: add, Unsubscribe: remove})
	reply := <-s.replies
	require.Nil(s, reply.Problem)
	return true
}

func (s *bareSubscriber) Close() {
	close(s.done)
	s.conn.Close()
	for range s.frames {
	}
}

// Who says nothing, or nothing that can be read, is told and let go.
func TestABareConnectionHasToOpenSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, settings{})
		silent := k.dialBare()
		begun := time.Now()
		_, err := silent.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 10*time.Second, time.Since(begun))

		for opening, code := range map[string]wire.Code{
			"\x01":                            wire.CodeInvalidRequest, // no map
			"\xff":                            wire.CodeInvalidRequest,
			"\xa1\x61x\x01":                   wire.CodeInvalidRequest, // no member of it
			"\xf6\xa1\x67session\x64none":     wire.CodeSessionUnknown,
			"\xa1\x66topics\x81\x64a..b":      wire.CodeInvalidTopic,
			"\xa1\x63ack\x00":                 wire.CodeInvalidRequest,
			"\xa2\x66client\x61c\x64echo\xf4": "", // it may have no topics
		} {
			conn := k.dialBare()
			_, err := conn.Write([]byte(opening))
			require.NoError(t, err)
			c, err := wire.NewCBORDecoder(conn).Next()
			require.NoError(t, err, "%x", opening)
			if code == "" {
				require.NotNil(t, c.Hello, "%x", opening)
			} else {
				require.Equal(t, code, c.End.Code, "%x", opening)
			}
			conn.Close()
		}
	})
}

// A session goes on where it was, by another transport, and is acked there.
func TestABareConnectionGoesOnWithASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, settings{})
		id := k.open(`{"topics":["a"]}`).Session
		k.publish("a", `1`)
		k.publish("a", `{"n":[2,2.5]}`)
		_, body := k.get("GET", "/v1/sessions/"+id+"/poll?ack=0", "")
		require.Contains(t, body, `[2,2.5]`)
		s := k.openBare(wire.ConnectRequest{Session: id, Ack: new(uint64(1))})
		c := <-s.frames
		require.Equal(t, id, c.Hello.Session)
		c, err := s.Next()
		require.NoError(t, err)
		require.Equal(t, `{"n":[2,2.5]}`, string(c.Message.Data), "sent, but not acked")
		s.send(wire.Command{Ack: new(uint64(99)), Ref: new(uint64(1))})
		require.Equal(t, wire.CodeAckBeyondSent, (<-s.replies).Problem.Code)
		s.send(wire.Command{Publish: item("a", `3`), Ref: new(uint64(2))})
		require.Equal(t, uint64(3), (<-s.replies).Position.Offset)
		c, err = s.Next()
		require.NoError(t, err)
		require.Equal(t, "3", string(c.Message.Data))
		s.Close()
	})
}
