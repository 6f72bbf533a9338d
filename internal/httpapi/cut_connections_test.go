package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Cuts the connection at each byte of a poll's answer in turn: in the head, within a
// frame, between frames, and in the chunked framing. In every mode, the subscriber gets
// each message once, in order, and without a gap. That holds for the Go client and for a
// strict client that follows only the protocol's rules.
func TestNothingIsLostWhereverAnAnswerIsCut(t *testing.T) {
	for _, mode := range transport.Modes() {
		for _, stateless := range []bool{false, true} {
			for name, subscribe := range map[string]subscribeFunc{"plain": subscribePlainly, "Go client": subscribeByClient} {
				t.Run(fmt.Sprintf("%s stateless=%t %s", mode, stateless, name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						k := newKit(t, lanetest.Settings{})
						k.cutEverywhere(250, func(at int) bool { return k.cutAnswerAt(at, mode, stateless, false, subscribe) })
					})
				})
			}
		}
	}
}

// cutEverywhere cuts an answer at each byte in turn, or at a sample that depends on the
// test's name. cut reports whether the answer was longer than at bytes. The answer must
// be longer than least bytes.
func (k *kit) cutEverywhere(least int, cut func(at int) bool) {
	k.Helper()
	step := exhaustive.Step(151)
	at := len(k.Name()) % step
	for cut(at) {
		at += step
	}
	require.Greater(k, at, least, "a head and a frame have more bytes")
}

// cutAnswerAt runs one subscription and cuts the first poll's answer after at bytes. It
// reports whether the answer was that long. Each request has its own connection. If the
// lane is to take the connection, the request does not announce its close.
func (k *kit) cutAnswerAt(at int, mode transport.Mode, stateless, lane bool, subscribe subscribeFunc) bool {
	network := &scissors{dial: k.HTTP.Transport.(*http.Transport).DialContext}
	network.left.Store(int64(at))
	hc := &http.Client{Transport: &http.Transport{DialContext: network.dialContext, DisableKeepAlives: true, DisableCompression: true}}
	if lane {
		hc.Transport = onceEach{network}
	}

	s := &system{kit: k, mode: mode, stateless: stateless}
	topic := fmt.Sprintf("cut.at-%d", at)
	say := func(n int) { s.Publish(*lanetest.Item(topic, fmt.Sprintf("[%d]", n))) }
	for n := 1; n <= 3; n++ {
		say(n)
	}
	// From the oldest message, the first answer has three messages. A stateless answer
	// begins with hello.
	next, closeAll := subscribe(s, hc, pubsub.FromOldest(topic))
	defer closeAll()
	for n := 1; n <= 5; n++ {
		if n == 4 {
			say(4)
			say(5)
		}
		m := next()
		require.NotNil(k, m, "cut at %d: a gap", at)
		require.EqualValues(k, n, m.Position.Offset, "cut at %d", at)
		require.Equal(k, fmt.Sprintf("[%d]", n), string(m.Data))
	}
	return network.cut.Load()
}

// A subscribeFunc subscribes. next returns the next message, or nil for a gap, and
// reconnects after a cut. leave ends the subscription.
type subscribeFunc func(s *system, hc *http.Client, start wire.Start) (next func() *wire.Message, leave func())

func subscribeByClient(s *system, hc *http.Client, start wire.Start) (next func() *wire.Message, leave func()) {
	client, err := pubsub.New("http://pubsubd", pubsub.WithHTTPClient(hc))
	require.NoError(s, err)
	options := []pubsub.SubscribeOption{pubsub.WithMode(pubsub.Mode(s.mode))}
	if s.stateless {
		options = append(options, pubsub.Stateless())
	}
	sub, err := client.Subscribe(context.Background(), []wire.Start{start}, options...)
	require.NoError(s, err)
	next = func() *wire.Message {
		item, err := sub.Next(context.Background())
		require.NoError(s, err)
		return item.Message
	}
	return next, sub.Close
}

// subscribePlainly polls again after a cut. In a session, it acknowledges the frames that
// it has. Stateless polls start from its positions, and so does a new session for a cut
// stream.
func subscribePlainly(s *system, hc *http.Client, start wire.Start) (next func() *wire.Message, leave func()) {
	cuttable := *s.Kit
	cuttable.HTTP = hc
	mine := *s
	mine.kit = &kit{&cuttable, s.api}
	sub := mine.newSubscriber("")
	sub.begin([]wire.Start{start})
	if !s.stateless {
		require.NoError(s, sub.openSession(sub.starts()))
	}
	next = func() *wire.Message {
		for {
			c, err := sub.Next()
			if err == nil {
				return c.Message
			}
			_, refused := errors.AsType[*wire.Problem](err)
			require.False(s, refused, "%v", err)
			sub.answer = nil
			if s.mode == transport.Stream && !s.stateless {
				require.NoError(s, sub.openSession(sub.starts()))
			}
		}
	}
	return next, sub.Close
}

// scissors cut the first connection that carries a poll, after a number of bytes were
// read from it.
type scissors struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	used atomic.Bool  // the first poll has begun
	left atomic.Int64 // bytes until the cut
	cut  atomic.Bool
}

func (s *scissors) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := s.dial(ctx, network, address)
	return &cuttable{Conn: c, scissors: s}, err
}

type cuttable struct {
	net.Conn
	scissors *scissors
	armed    atomic.Bool
}

func (c *cuttable) Write(b []byte) (int, error) {
	if line, _, _ := bytes.Cut(b, []byte("\r\n")); (bytes.Contains(line, []byte("/poll")) || bytes.Contains(line, []byte(ssePath))) && c.scissors.used.CompareAndSwap(false, true) {
		c.armed.Store(true)
	}
	return c.Conn.Write(b)
}

// Read cuts only after bytes have arrived, because net/http reads before it writes.
func (c *cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.armed.Load() || err != nil {
		return n, err
	}
	left := int(c.scissors.left.Load())
	if n <= left {
		c.scissors.left.Add(-int64(n))
		return n, nil
	}
	c.scissors.left.Store(0)
	c.scissors.cut.Store(true)
	c.Close()
	if left == 0 {
		return 0, net.ErrClosed
	}
	return left, nil
}

// onceEach sends each request on its own connection without announcing a close. It never
// retries a request; an http.Transport would.
type onceEach struct{ *scissors }

func (o onceEach) RoundTrip(r *http.Request) (*http.Response, error) {
	conn, err := o.dialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		return nil, err
	}
	if err := r.Write(conn); err != nil {
		conn.Close()
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		conn.Close()
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{resp.Body, conn}
	return resp, nil
}
