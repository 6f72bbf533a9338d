package lane

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A stage has a loop that the test runs by hand: nothing happens between its calls.
type stage struct {
	*testing.T
	*Lane
	loop   *loop
	broker *broker.Broker
}

// newLane returns a lane with an app without limits.
func newLane(t *testing.T, authority app.Authority) (*Lane, *broker.Broker) {
	m := metrics.New("test")
	b := broker.New(broker.Config{}, m, time.Now())
	t.Cleanup(b.Close)
	a := app.New(app.Config{
		Broker: b, Sessions: session.NewRegistry(session.Config{}, b, m), Authority: authority,
		Limiter: limit.New(limit.Config{}, m), Hook: hook.NewPublishes(hook.Config{}, nil, m, zap.NewNop()), Authorize: hook.NewSubscriptions(hook.AuthorizeConfig{}, nil, m, zap.NewNop()), Metrics: m, Log: zap.NewNop(),
		Limits: wire.Limits{MessageBytes: 1},
	})
	polls := transport.New(transport.Config{}, wire.Limits{}, b.Memory(), m, nil)
	return New(Config{App: a, Polls: polls, Metrics: m, Origins: cors.New(nil, zap.NewNop()), Hosts: everyHost()}), b
}

func newStage(t *testing.T, authority app.Authority) *stage {
	l, b := newLane(t, authority)
	s := &stage{T: t, Lane: l, loop: &l.loops[0], broker: b}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	require.NoError(t, err)
	s.loop.epoll = epoll
	t.Cleanup(func() {
		for _, c := range s.loop.conns {
			if c != nil {
				c.close()
				c.proceed()
			}
		}
		closeFD(epoll)
	})
	return s
}

// connect returns a connection of the loop, and the client's side of it.
func (s *stage) connect() (c *conn, client int) {
	s.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(s, err)
	s.Cleanup(func() { closeFD(pair[1]) })
	c = s.newConn(pair[0], nil)
	c.loop = s.loop
	require.NoError(s, s.loop.reserve(c.fd))
	s.running.Add(1)
	s.loop.join(c)
	return c, pair[1]
}

// published returns how many publishes were served.
func (s *stage) published() int {
	state, _ := s.broker.Topic("a")
	return int(state.Position.Offset)
}

// ask writes publishes on the client's side.
func ask(t *testing.T, client, requests int) {
	t.Helper()
	ahead := strings.Repeat("POST /v1/topics/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1", requests)
	n, errno := rawWrite(client, []byte(ahead))
	require.Zero(t, errno)
	require.Equal(t, len(ahead), n)
}

// hear has the loop handle the events that the kernel has.
func (s *stage) hear() {
	s.Helper()
	var events [atOnce]unix.EpollEvent
	n, err := unix.EpollWait(s.loop.epoll, events[:], 0)
	require.NoError(s, err)
	for _, e := range events[:n] {
		s.loop.handle(e)
	}
}

// A client sends many requests ahead. Other connections get their turns in between.
func TestConnectionsTakeTurns(t *testing.T) {
	const requests = 100
	s := newStage(t, auth.Open{})
	_, greedy := s.connect()
	_, modest := s.connect()
	ask(t, greedy, requests)
	ask(t, modest, 1)
	s.hear()
	require.LessOrEqual(t, s.published(), turn, "one turn")
	require.Contains(t, string(appendAll(t, nil, modest)), "HTTP/1.1 200 ")
	require.True(t, s.loop.tired, "other goroutines have their turn, too")
	for s.loop.deliver(false) {
	}
	require.Equal(t, requests+1, s.published(), "all turns")
}

// Commands may name topics, so their bytes count: a turn takes at most as many as fill 64 steps.
func TestATurnEndsAfterSomeBytesOfCommands(t *testing.T) {
	const commands = 100
	for bytes, most := range map[int]int{20: turn, bytesOfStep: turn / 2, 3 * bytesOfStep: turn / 4, 3 * turn * bytesOfStep: 1} {
		s := newStage(t, auth.Open{})
		s.cfg.Polls = transport.New(transport.Config{}, wire.Limits{}, nil, metrics.New("test"), nil)
		c, client := s.connect()
		done := 0
		c.talk = &conversation{
			giveUp: func() {}, Conversation: s.cfg.Polls.NewWebSocket(frame.NDJSON, false, nil, time.Now()),
			do: func(context.Context, *session.Session, transport.Action, transport.Resume) (*wire.Reply, transport.Later, context.CancelFunc, error) {
				done++
				return nil, nil, nil, nil
			},
		}
		var ahead []byte
		for range commands {
			head := ws.Header{Fin: true, OpCode: ws.OpText, Masked: true, Length: int64(bytes)}
			frame, err := ws.CompileFrame(ws.Frame{Header: head, Payload: make([]byte, bytes)})
			require.NoError(t, err)
			ahead = append(ahead, frame...)
		}
		go func() {
			for len(ahead) > 0 {
				n, _ := rawWrite(client, ahead)
				ahead = ahead[max(n, 0):]
			}
		}()
		most = min(most, turn)
		for before := 0; done < commands; before = done {
			s.hear()
			s.loop.deliver(false)
			require.LessOrEqual(t, done-before, 2*most, "a turn for the event, and one for the letter")
		}
	}
}

// The longest turn of this minute and the one before is told.
func TestTheLongestTurnIsTold(t *testing.T) {
	s := newStage(t, auth.Open{})
	told := func(second int) float64 {
		s.Tick(s.begun.Add(time.Duration(second) * time.Second))
		return testutil.ToFloat64(s.cfg.Metrics.LaneLongestTurn)
	}
	s.loop.longest.Store(int64(2 * time.Second))
	require.EqualValues(t, 2, told(5))
	s.loop.longest.Store(int64(time.Second))
	require.EqualValues(t, 2, told(59))
	require.EqualValues(t, 2, told(60))
	s.loop.longest.Store(int64(time.Second))
	require.EqualValues(t, 2, told(119))
	require.EqualValues(t, 1, told(120))
	require.Zero(t, told(180))

	c, client := s.connect()
	ask(t, client, 1)
	s.hear()
	require.Positive(t, s.loop.longest.Load(), "an event")
	s.loop.longest.Store(0)
	s.loop.post(c, func(*conn) {})
	s.loop.deliver(false)
	require.Positive(t, s.loop.longest.Load(), "a letter")
}

// A command that waited is finished even if its client has left: it may hold a slot.
func TestACommandThatWaitedIsFinished(t *testing.T) {
	for name, leave := range map[string]func(*stage, *conn){
		"before its client leaves": func(s *stage, c *conn) {
			s.hear()
			require.Eventually(s, func() bool {
				s.loop.deliver(false)
				return c.talk.lend == nil && c.state == noPoll
			}, time.Minute, time.Millisecond)
			c.leave()
		},
		"while its client leaves": func(_ *stage, c *conn) {
			c.state = waiting // so that the loop does not finish it at once
			c.loop.deliver(false)
			c.state = noPoll
			c.leave()
		},
		"after its client left": func(s *stage, c *conn) {
			c.leave()
			s.loop.deliver(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, auth.Open{})
			s.cfg.Polls = transport.New(transport.Config{}, wire.Limits{}, nil, metrics.New("test"), nil)
			c, _ := s.connect()
			c.talk = &conversation{Conversation: s.cfg.Polls.NewWebSocket(frame.NDJSON, false, nil, time.Now())}
			finished := make(chan struct{}, 1)
			waited := make(chan struct{})
			c.carryOutLater(func(context.Context) (transport.Finish, func()) {
				defer close(waited)
				return func() (*wire.Reply, error) { finished <- struct{}{}; return nil, nil }, func() {}
			})
			<-waited
			require.Eventually(t, func() bool {
				s.loop.mail.Lock()
				defer s.loop.mail.Unlock()
				return len(s.loop.letters) > 0
			}, time.Minute, time.Millisecond)
			require.Empty(t, finished)
			leave(s, c)
			<-finished
		})
	}
}

// A command that cannot have the output at once, because frames are being written, gives back its turn.
func TestACommandWithoutTheOutputReleasesItsTurn(t *testing.T) {
	for _, state := range []pollState{noPoll, waiting} {
		s := newStage(t, auth.Open{})
		s.cfg.Polls = transport.New(transport.Config{}, wire.Limits{}, nil, metrics.New("test"), nil)
		c, _ := s.connect()
		c.talk = &conversation{Conversation: s.cfg.Polls.NewWebSocket(frame.NDJSON, false, nil, time.Now())}
		c.state = state
		released, finished := false, make(chan bool, 1)
		c.carryOutLater(func(context.Context) (transport.Finish, func()) {
			return func() (*wire.Reply, error) { finished <- released; return nil, nil }, func() { released = true }
		})
		require.Eventually(t, func() bool { s.loop.deliver(false); return released || len(finished) > 0 }, time.Minute, time.Millisecond)
		c.state = noPoll
		c.leave()
		require.Equal(t, state == waiting, <-finished)
	}
}

// The loop opens letters in parts, so that the kernel's events get their turn however many
// letters there are.
func TestLettersAndEventsTakeTurns(t *testing.T) {
	s := newStage(t, auth.Open{})
	c, _ := s.connect()
	done := 0
	for range 2*atOnce + 1 {
		s.loop.post(c, func(*conn) { done++ })
	}
	require.True(t, s.loop.deliver(false))
	require.Equal(t, atOnce, done)
	s.loop.post(c, func(*conn) {
		require.Equal(t, 2*atOnce+1, done, "in the order in which they were posted")
		done++
	})
	require.True(t, s.loop.deliver(false))
	require.True(t, s.loop.deliver(false))
	require.True(t, s.loop.deliver(false))
	require.False(t, s.loop.asleep)
	require.False(t, s.loop.deliver(false))
	require.True(t, s.loop.asleep)
	require.Equal(t, 2*atOnce+2, done)
}

// A loop does not wait for a connection whose output is lent to a goroutine. It notes
// events, and continues when the goroutine posts its letter.
func TestALoopDoesNotTouchALentOutput(t *testing.T) {
	s := newStage(t, auth.Open{})
	c, client := s.connect()
	c.state = waiting
	ctx := c.makeWaiter().client
	ask(t, client, 1)
	s.hear()
	require.Zero(t, s.published())
	require.NoError(t, ctx.Err())
	require.NoError(t, syscall.Shutdown(client, syscall.SHUT_WR))
	s.hear()
	require.Error(t, ctx.Err(), "the context ends when the client leaves")
	s.loop.post(c, func(c *conn) { c.state = noPoll })
	s.loop.deliver(false)
	require.Equal(t, 1, s.published())
}

// A descriptor is closed and reused while letters and events for its first connection are
// under way. The second connection gets none of them.
func TestAReusedDescriptorGetsNoOldEvents(t *testing.T) {
	s := newStage(t, auth.Open{})
	first, client := s.connect()
	fd := first.fd
	ask(t, client, 1)
	closing := func(c *conn) { c.ending = closing }
	s.loop.post(first, closing)
	s.loop.post(first, func(*conn) { t.Error("a letter was delivered to a connection that had left") })
	s.loop.deliver(false)
	require.Equal(t, left, first.ending)

	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer closeFD(pair[1])
	if pair[0] != fd {
		_, _, errno := syscall.Syscall(syscall.SYS_DUP3, uintptr(pair[0]), uintptr(fd), syscall.O_CLOEXEC)
		require.Zero(t, errno)
		closeFD(pair[0])
	}
	second := s.newConn(fd, nil)
	second.loop = s.loop
	require.NoError(t, s.loop.reserve(fd))
	s.loop.handle(unix.EpollEvent{Fd: int32(fd), Events: unix.EPOLLIN | unix.EPOLLRDHUP}) // of the first connection: the second has not joined yet
	s.running.Add(1)
	ask(t, pair[1], 1)
	s.loop.join(second)
	s.loop.deliver(false)
	require.False(t, second.ended)
	require.Zero(t, s.published())
	s.hear() // also the event from before it joined
	require.Equal(t, 1, s.published())
	require.Equal(t, staying, second.ending)
}

// A connection may join just when the lane closes, for example after an upgrade.
func TestAConnectionThatJoinsAClosingLaneIsClosed(t *testing.T) {
	s := newStage(t, auth.Open{})
	c, client := s.connect()
	s.loop.closeAll()
	require.Equal(t, left, c.ending)
	late, lateClient := s.connect()
	late.proceed()
	require.Equal(t, left, late.ending)
	for _, fd := range []int{client, lateClient} {
		n, errno := rawRead(fd, make([]byte, 1))
		require.Zero(t, errno)
		require.Zero(t, n)
	}
}

// A letter wakes a sleeping loop each time.
func TestALetterWakesTheLoop(t *testing.T) {
	l, _ := newLane(t, auth.Open{})
	l.mu.Lock()
	loop := &l.loops[0]
	require.NoError(t, loop.open())
	l.mu.Unlock()
	for range 100 {
		done := make(chan struct{})
		loop.post(nil, func(*conn) { close(done) })
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			require.Fail(t, "the loop slept through a letter")
		}
	}
	l.Close()
	l.Close()
	require.False(t, loop.isOpen())
}
