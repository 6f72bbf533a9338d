package eventloop_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/leaktest"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// forBoth runs a test on the loop that suits the system and on the portable one.
func forBoth(t *testing.T, test func(t *testing.T, open func(net.Addr) eventloop.Loop)) {
	for name, make := range map[string]func(eventloop.Config) (eventloop.Loop, error){
		"native": eventloop.New, "portable": eventloop.NewPortable,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, func(target net.Addr) eventloop.Loop {
				l, err := make(eventloop.Config{Target: target.(*net.TCPAddr)})
				require.NoError(t, err)
				t.Cleanup(l.Close)
				return l
			})
		})
	}
}

// serve runs handle for every connection until the test is over.
func serve(t *testing.T, handle func(net.Conn)) net.Addr {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr()
}

// A talker sends first, and then what it is told, until it has got enough.
type talker struct {
	first  []byte
	reply  func(b []byte) ([]byte, error)
	got    bytes.Buffer
	closed error
}

func (m *talker) Connected(time.Duration) []byte { return m.first }

func (m *talker) Receive(_ time.Duration, b []byte) ([]byte, error) {
	m.got.Write(b)
	if m.reply == nil {
		return nil, nil
	}
	return m.reply(b)
}

func (m *talker) Closed(_ time.Duration, err error) { m.closed = err }

// until is a Driver that ends when its condition holds.
type until func() bool

func (u until) Due(now time.Duration) (time.Duration, bool) { return now + time.Millisecond, u() }

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func TestManyConnectionsTalk(t *testing.T) {
	forBoth(t, func(t *testing.T, open func(net.Addr) eventloop.Loop) {
		l := open(serve(t, echo))
		all := make([]*talker, 50)
		for i := range all {
			all[i] = &talker{first: []byte("one,")}
			rounds := 0
			all[i].reply = func([]byte) ([]byte, error) {
				if rounds++; rounds == 2 {
					return nil, nil
				}
				return []byte("two"), nil
			}
			l.Dial(all[i])
		}
		complete := func() bool {
			for _, m := range all {
				if m.got.String() != "one,two" {
					return false
				}
			}
			return true
		}
		require.NoError(t, l.Run(t.Context(), until(complete)))
		in, out := l.Traffic()
		require.EqualValues(t, 50*7, in)
		require.EqualValues(t, 50*7, out)
	})
}

// What is sent beyond what the kernel takes at once arrives whole, as does what
// is sent before the connection is there.
func TestLargeSendsArriveWhole(t *testing.T) {
	forBoth(t, func(t *testing.T, open func(net.Addr) eventloop.Loop) {
		const size = 8 << 20
		received := make(chan []byte, 1)
		l := open(serve(t, func(c net.Conn) {
			b := make([]byte, size+5)
			_, _ = io.ReadFull(c, b)
			received <- b
		}))
		large := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		l.Dial(&talker{}).Send(append([]byte("early"), large...))
		var got []byte
		require.NoError(t, l.Run(t.Context(), until(func() bool {
			select {
			case got = <-received:
			default:
			}
			return got != nil
		})))
		require.True(t, bytes.Equal(append([]byte("early"), large...), got))
	})
}

func TestEndingsAreTold(t *testing.T) {
	forBoth(t, func(t *testing.T, open func(net.Addr) eventloop.Loop) {
		own := errors.New("own")
		l := open(serve(t, func(c net.Conn) {
			b := make([]byte, 1)
			_, _ = io.ReadFull(c, b)
			_, _ = c.Write(b)
			if b[0] == 'w' {
				_, _ = io.ReadFull(c, b)
			}
		}))
		left := &talker{first: []byte("x")}
		wrong := &talker{first: []byte("w"), reply: func([]byte) ([]byte, error) { return nil, own }}
		l.Dial(left)
		l.Dial(wrong)
		require.NoError(t, l.Run(t.Context(), until(func() bool { return left.closed != nil && wrong.closed != nil })))
		require.ErrorIs(t, left.closed, eventloop.ErrServerClosed)
		require.ErrorIs(t, wrong.closed, own)
	})
}

func TestARefusedConnectionIsTold(t *testing.T) {
	forBoth(t, func(t *testing.T, open func(net.Addr) eventloop.Loop) {
		l := open(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}) // which nobody is given by the kernel
		m := &talker{}
		l.Dial(m)
		require.NoError(t, l.Run(t.Context(), until(func() bool { return m.closed != nil })))
		require.ErrorContains(t, m.closed, "refused")
	})
}

func TestADoneContextEndsTheLoop(t *testing.T) {
	forBoth(t, func(t *testing.T, open func(net.Addr) eventloop.Loop) {
		ctx, cancel := context.WithCancel(t.Context())
		l := open(serve(t, echo))
		m := &talker{first: []byte("x"), reply: func([]byte) ([]byte, error) {
			cancel()
			return nil, nil
		}}
		l.Dial(m)
		require.ErrorIs(t, l.Run(ctx, sleeping{}), context.Canceled)
	})
}

// sleeping has nothing to do for an hour.
type sleeping struct{}

func (sleeping) Due(now time.Duration) (time.Duration, bool) { return now + time.Hour, false }

// The schedule is kept to well under a millisecond when nothing else happens.
func TestDueIsCalledOnTime(t *testing.T) {
	forBoth(t, func(t *testing.T, open func(net.Addr) eventloop.Loop) {
		l := open(serve(t, echo))
		d := &metronome{}
		require.NoError(t, l.Run(t.Context(), d))
		require.Less(t, d.best, time.Millisecond, "the least late of 50, or on a busy machine of 5000")
	})
}

// A metronome is due every 2 ms.
type metronome struct {
	beats int
	next  time.Duration
	best  time.Duration
}

func (m *metronome) Due(now time.Duration) (time.Duration, bool) {
	if m.beats == 0 {
		m.next, m.best = now, time.Hour
	}
	for m.next <= now {
		if m.beats > 0 {
			m.best = min(m.best, now-m.next)
		}
		m.beats++
		m.next += 2 * time.Millisecond
	}
	return m.next, m.beats > 50 && m.best < time.Millisecond || m.beats > 5000
}
