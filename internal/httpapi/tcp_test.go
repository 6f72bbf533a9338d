package httpapi

import (
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

func TestATCPConnectionDeliversTheSame(t *testing.T) {
	for i, name := range []string{"of its own", "of a session"} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, someStories(i, 2), func(t *testing.T, b transporttest.Bounds) transporttest.System {
				k := newBareKit(t, boundsOf(b))
				return &duplexSystem{system: k.system, attached: i == 1, dial: k.dialFor}
			})
		})
	}
}

// A bareKit is a kit that also accepts connections without HTTP.
type bareKit struct {
	system
	port *pipeListener
}

func newBareKit(t *testing.T, s lanetest.Settings) *bareKit {
	k := &bareKit{system{kit: newKit(t, s)}, newPipeListener()}
	port := transport.NewPort(k.api.Lane)
	var running sync.WaitGroup
	running.Go(func() { require.ErrorIs(t, port.Serve(k.Parts.Counted(k.port)), net.ErrClosed) })
	t.Cleanup(func() {
		require.NoError(t, k.port.Close())
		k.api.Lane.Close()
		port.Close()
		running.Wait()
	})
	return k
}

// dialFor opens a connection for the test suite.
func (k *bareKit) dialFor(request wire.ConnectRequest) (duplexConn, error) {
	k.Helper()
	return k.openBare(request), nil
}

// bareSubscriber is the client of one bare connection.
type bareSubscriber struct {
	*bareKit
	conn    net.Conn
	writing sync.Mutex
	replies chan wire.Reply
	frames  chan wire.Content // closed at the end
	err     error
	done    chan struct{}
}

func (k *bareKit) dialBare() net.Conn { return k.dialBareFrom(200) }

func (k *bareKit) dialBareFrom(last int) net.Conn {
	k.Helper()
	conn, err := k.port.dial(from(k.Context(), last), "", "")
	require.NoError(k, err)
	return conn
}

func (k *bareKit) openBare(request wire.ConnectRequest) *bareSubscriber {
	k.Helper()
	s := &bareSubscriber{bareKit: k, conn: k.dialBare(), replies: make(chan wire.Reply, 100), frames: make(chan wire.Content), done: make(chan struct{})}
	go s.receive()
	s.Send(request)
	return s
}

func (s *bareSubscriber) Send(v any) {
	s.Helper()
	require.NoError(s, s.TrySend(v))
}

func (s *bareSubscriber) TrySend(v any) error {
	s.Helper()
	text, err := json.Marshal(v)
	require.NoError(s, err)
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err = s.conn.Write(cbor.AppendFromJSON(nil, text))
	return err
}

func (s *bareSubscriber) Received() <-chan wire.Content { return s.frames }
func (s *bareSubscriber) Replied() <-chan wire.Reply    { return s.replies }

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

func (s *bareSubscriber) Close() {
	close(s.done)
	s.conn.Close()
	for range s.frames {
	}
}

// The daemon closes a connection that sends no opening in time. It answers an invalid
// opening with an end frame.
func TestATCPConnectionMustOpenASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, lanetest.Settings{})
		silent := k.dialBare()
		begun := time.Now()
		_, err := silent.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 10*time.Second, time.Since(begun))

		for opening, code := range map[string]wire.Code{
			"\x01":                            wire.CodeInvalidRequest, // not a map
			"\xff":                            wire.CodeInvalidRequest,
			"\xa1\x61x\x01":                   wire.CodeInvalidRequest, // unknown member
			"\xf6\xa1\x67session\x64none":     wire.CodeSessionUnknown,
			"\xa1\x66topics\x81\x64a..b":      wire.CodeInvalidTopic,
			"\xa1\x63ack\x00":                 wire.CodeInvalidRequest,
			"\xa2\x66client\x61c\x64echo\xf4": "", // an opening without topics is valid
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

// A TCP connection continues a session of long polling and acknowledges its frames.
func TestATCPConnectionContinuesASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, lanetest.Settings{})
		id := k.Open(`{"topics":["a"]}`).Session
		k.Kit.Publish("a", `1`)
		k.Kit.Publish("a", `{"n":[2,2.5]}`)
		_, body := k.Get("GET", "/v1/sessions/"+id+"/poll?ack=0", "")
		require.Contains(t, body, `[2,2.5]`)
		s := k.openBare(wire.ConnectRequest{Session: &id, Ack: new(uint64(1))})
		c := <-s.frames
		require.Equal(t, id, c.Hello.Session)
		c, err := s.Next()
		require.NoError(t, err)
		require.Equal(t, `{"n":[2,2.5]}`, string(c.Message.Data), "sent, but not acked")
		s.Send(wire.Command{Ack: new(uint64(99)), Ref: new(uint64(1))})
		require.Equal(t, wire.CodeAckBeyondSent, (<-s.replies).Problem.Code)
		s.Send(wire.Command{Publish: lanetest.Item("a", `3`), Ref: new(uint64(2))})
		require.Equal(t, uint64(3), (<-s.replies).Position.Offset)
		c, err = s.Next()
		require.NoError(t, err)
		require.Equal(t, "3", string(c.Message.Data))
		s.Close()
	})
}

// Unfinished openings are bounded like unfinished bodies.
func TestUnfinishedTCPOpeningsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBareKit(t, lanetest.Settings{Broker: broker.Config{MemoryBudget: 32 << 20}})
		var conns []net.Conn
		for i := range 20 {
			nc := k.dialBareFrom(i % 4)
			conns = append(conns, nc)
			go func() { _, _ = io.Copy(io.Discard, nc) }()
			go func() { _, _ = nc.Write(append([]byte{0x5a, 0, 0x0f, 0x42, 0x40}, make([]byte, 900_000)...)) }()
			synctest.Wait()
		}
		require.LessOrEqual(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(8<<20+20*5000), "a quarter, and a reading each")
		require.Greater(t, k.api.Polls.Memory().Of(memory.Unfinished), int64(6<<20))
		k.wantFreed(conns...)
	})
}

// The daemon delays refusals to a client that keeps opening connections.
func TestARefusedTCPOpeningIsDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates := limit.Rates{limit.Sessions: {limit.Address: lanetest.Once}}
		k := newBareKit(t, lanetest.Settings{Limits: limit.Config{Rates: rates, Wait: 2 * time.Second}})
		begun := time.Now()
		for i := range 30 {
			s := k.openBare(wire.ConnectRequest{Topics: []wire.Start{{Topic: "a"}}})
			hello := <-s.Received()
			require.Equal(t, i == 0, hello.Hello != nil)
			if i > 0 {
				require.Equal(t, wire.CodeLimited, hello.End.Code)
			}
			s.Close()
		}
		require.Greater(t, time.Since(begun), 5*time.Second, "some at once, and the others few a second")
	})
}
