package httpapi

import (
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A duplexConn is the client's side of a two-way connection. Its own goroutine receives.
type duplexConn interface {
	TrySend(command any) error
	Received() <-chan wire.Content // closed at the end; then Next returns the reason
	Replied() <-chan wire.Reply
	Next() (wire.Content, error)
	Close()
}

// duplexSystem implements transporttest.System over any kind of two-way connection.
type duplexSystem struct {
	system
	attached bool // each connection attaches to a session opened before, and acknowledges frames

	// dial opens a connection. If the daemon refuses it without a frame, the error is a
	// *wire.Problem.
	dial func(wire.ConnectRequest) (duplexConn, error)
}

func (s *duplexSystem) Subscribe(o transporttest.Opening) (transporttest.Subscriber, error) {
	s.Helper()
	d := &duplexClient{system: s, self: o.Client}
	d.begin(o.Topics)
	if s.attached {
		opened, err := s.openFor(o.Topics, o.Client)
		if err != nil {
			return nil, err
		}
		d.session = opened.Session
		d.told = opened.Positions
		d.learn(opened.Positions)
	}
	told, err := d.connect()
	if !s.attached {
		d.told = told
	}
	if err != nil {
		d.Close()
	}
	return d, err
}

// duplexClient is a client that uses one two-way connection after the other.
type duplexClient struct {
	progress
	system  *duplexSystem
	self    string // client whose messages it refuses; empty: it wants all
	session string // session of every connection; empty: each connection has its own

	conn    duplexConn
	had     chan uint64    // number of frames to acknowledge
	reading sync.Mutex     // held by the goroutine that receives
	early   []wire.Content // received while command waited for a reply; guarded by reading
}

// optional returns text as a member of a request, which an empty text omits.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// connect opens a connection and returns the positions from hello or from the reply to
// subscribe.
func (d *duplexClient) connect() ([]wire.Position, error) {
	d.system.Helper()
	request := wire.ConnectRequest{Session: optional(d.session), Ack: &d.got}
	starts := d.starts()
	many := len(starts) > manyStarts
	if d.session == "" {
		request = wire.ConnectRequest{Client: optional(d.self)}
		if d.self != "" {
			request.Echo = new(false)
		}
		if !many {
			request.Topics = starts
		}
	}
	conn, err := d.system.dial(request)
	if err != nil {
		return nil, err
	}
	d.carry(conn)
	c, err := conn.Next()
	if err != nil {
		return nil, err
	}
	require.NotNil(d.system, c.Hello, "%+v", c)
	told := c.Hello.Positions
	if many && d.session == "" {
		told, err = d.command(starts, nil)
	}
	d.learn(told)
	return told, err
}

// Return implements transporttest.Subscriber.
func (d *duplexClient) Return(lost int) {
	d.system.Helper()
	d.leave()
	d.lose(lost)
	_, err := d.connect()
	require.NoError(d.system, err)
}

// Leave implements transporttest.Subscriber.
func (d *duplexClient) Leave() { d.leave() }

// Leaves implements transporttest.SessionHolder.
func (d *duplexClient) Leaves() bool { return false }

// End implements transporttest.SessionHolder.
func (d *duplexClient) End() error {
	if d.session == "" {
		return errors.ErrUnsupported
	}
	d.system.endSession(d.session)
	return nil
}

// Rival implements transporttest.SessionHolder.
func (d *duplexClient) Rival() (transporttest.Subscriber, error) {
	if d.session == "" {
		return nil, errors.ErrUnsupported
	}
	rival := &duplexClient{system: d.system, session: d.session}
	rival.begin(nil)
	rival.got = d.got
	_, err := rival.connect()
	return rival, err
}

// Close implements transporttest.Subscriber.
func (d *duplexClient) Close() {
	d.leave()
	if d.session != "" {
		d.system.endSession(d.session)
	}
}

// carry replaces the current connection by conn.
func (d *duplexClient) carry(conn duplexConn) {
	d.leave()
	d.conn, d.early = conn, nil
	if d.session == "" {
		return
	}
	had := make(chan uint64, 1)
	d.had = had
	go func() { // a client that stops reading while it sends an ack may deadlock
		for n := range had {
			_ = conn.TrySend(wire.Command{Ack: &n}) // the receiving goroutine gets the error too
		}
	}()
}

// leave closes the connection, if there is one.
func (d *duplexClient) leave() {
	if d.conn != nil {
		d.conn.Close()
	}
	if d.had != nil {
		close(d.had)
	}
	d.conn, d.had = nil, nil
}

// ack acknowledges all frames received. A newer count replaces an unsent one.
func (d *duplexClient) ack() {
	if d.had == nil || d.got == 0 {
		return
	}
	select {
	case <-d.had:
	default:
	}
	d.had <- d.got
}

// Next implements transporttest.Subscriber.
func (d *duplexClient) Next() (wire.Content, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	d.ack()
	for {
		var c wire.Content
		var err error
		if len(d.early) > 0 {
			c, d.early = d.early[0], d.early[1:]
			if c.End != nil {
				err = c.End
			}
		} else {
			c, err = d.conn.Next()
		}
		if err != nil {
			return c, err
		}
		if d.take(c); c.Counts() {
			return c, nil
		}
	}
}

// Change implements transporttest.Subscriber.
func (d *duplexClient) Change(add []wire.Start, remove []string) ([]wire.Position, error) {
	d.system.Helper()
	told, err := d.command(add, remove)
	if err == nil {
		d.change(add, remove, told)
	}
	return told, err
}

// command changes the subscriptions. It receives the frames before the reply, unless
// another goroutine does. The error is a *wire.Problem.
func (d *duplexClient) command(add []wire.Start, remove []string) ([]wire.Position, error) {
	d.system.Helper()
	sent := make(chan error, 1)
	conn := d.conn
	go func() { sent <- conn.TrySend(wire.Command{Ref: new(uint64(7)), Subscribe: add, Unsubscribe: remove}) }()
	var received <-chan wire.Content
	if d.reading.TryLock() {
		defer d.reading.Unlock()
		received = d.conn.Received()
	}
	for {
		select {
		case reply := <-d.conn.Replied():
			require.NoError(d.system, <-sent)
			require.NotNil(d.system, reply.Ref)
			require.Equal(d.system, uint64(7), *reply.Ref)
			if reply.Problem != nil {
				return nil, reply.Problem
			}
			return reply.Positions, nil
		case c, ok := <-received:
			require.True(d.system, ok, "the connection ended before the reply")
			d.early = append(d.early, c)
		}
	}
}

// A moment after the end frame, the daemon disconnects a client that keeps sending.
func TestAClientThatKeepsSendingIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, lanetest.Settings{})
		s := k.Connect(wire.Start{Topic: "a"})
		s.Hello()
		k.Parts.Sessions.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(math.MaxInt)
		_, err := s.Next()
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeDraining})
		begun := time.Now()
		for err = s.TrySend(wire.Command{Ping: true}); err == nil && time.Since(begun) < time.Minute; {
			time.Sleep(100 * time.Millisecond)
			err = s.TrySend(wire.Command{Ping: true})
		}
		require.Error(t, err)
		require.Less(t, time.Since(begun), 3*time.Second)
		s.Close()
	})
}
