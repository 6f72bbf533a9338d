package pubsub

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func textsOf(t *testing.T, positions []wire.Position) (texts []string) {
	t.Helper()
	for _, p := range positions {
		texts = append(texts, p.String())
	}
	return texts
}

// A connection that breaks resumes at once from a moved position. The program reaches it when it
// has taken the items before.
func TestAMovedPositionIsKeptLikeThatOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list, err := newTopicList([]wire.Start{FromNow("a"), FromNow("b.*")})
		require.NoError(t, err)
		list.settle([]wire.Position{position(t, "a@k3:1"), position(t, "b.*@k3:0")})
		l := &loop{s: newSubscription(list, nil), stay: countingStay{}, answer: &answer{}}
		moved := func(texts ...string) wire.Content {
			var positions []wire.Position
			for _, text := range texts {
				positions = append(positions, position(t, text))
			}
			return wire.Content{Moved: &wire.Moved{Positions: positions}}
		}
		resumes := func(want ...string) {
			t.Helper()
			var texts []string
			for _, start := range l.s.topics.starts() {
				texts = append(texts, start.String())
			}
			require.Equal(t, want, texts)
		}
		l.accept(wire.Content{Message: &wire.Message{Position: position(t, "a@k3:5")}})
		l.accept(moved("a@k3:9", "b.1@k3:2", "c@k3:7"))
		require.True(t, l.answer.useful)
		resumes("a@k3:9", "b.*@k3:0", "b.1@k3:2")
		l.accept(moved("a@k3:9", "a@k3:8", "a@k4:20"))
		resumes("a@k3:9", "b.*@k3:0", "b.1@k3:2")
		require.Len(t, l.waiting, 3)
		l.accept(wire.Content{Message: &wire.Message{Position: position(t, "a@k3:9")}})
		require.Len(t, l.waiting, 3, "the position is past it")

		for _, r := range l.waiting {
			l.s.items <- r
		}
		require.Equal(t, []string{"a@k3:1", "b.*@k3:0"}, textsOf(t, l.s.Positions()))
		item, err := l.s.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, "a@k3:5", item.Position().String())
		require.Equal(t, []string{"a@k3:5", "b.*@k3:0"}, textsOf(t, l.s.Positions()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.s.Next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "there is no other item")
		require.Equal(t, []string{"a@k3:9", "b.*@k3:0", "b.1@k3:2"}, textsOf(t, l.s.Positions()))
	})
}

// More own messages than the history holds are no gap for whoever resumes, on any transport. Only
// between two polls without a session, nobody holds the position.
func TestOwnMessagesThatWereEvictedAreNoGap(t *testing.T) {
	t.Parallel()
	d := startRealDaemon(t, func(c *config.Config) {
		c.Broker.HistoryMessages = 10
		c.Transport.PollTimeout = 200 * time.Millisecond
	})
	c, err := New("http://"+d.PublicAddr(), WithTCPAddr(d.TCPAddr(), nil))
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for name, options := range map[string][]SubscribeOption{
		"poll":           {WithTransport(LongPoll)},
		"poll-single":    {WithTransport(LongPoll), WithMode(Single)},
		"poll-multiple":  {WithTransport(LongPoll), WithMode(Multiple)},
		"stream":         {WithTransport(HTTPStream)},
		"sse":            {WithTransport(SSE)},
		"websocket":      {WithTransport(WebSocket)},
		"websocket-cbor": {WithTransport(WebSocket), WithFormat(CBOR)},
		"tcp":            {WithTransport(TCP)},
	} {
		all.Go(func() {
			options := append(options, WithoutOwn("me"))
			s, err := c.Subscribe(ctx, []wire.Start{FromNow(name)}, options...)
			if !assertNoError(t, name, err) {
				return
			}
			defer s.Close()
			var last wire.Published
			for range 30 {
				if last, err = c.Publish(ctx, name, "", []byte("1"), WithClient("me")); !assertNoError(t, name, err) {
					return
				}
			}
			for s.Positions()[0] != last.Position && ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				if item, err := s.Next(short); err == nil {
					t.Errorf("%s: got %v", name, item.Position())
				}
				cancel()
			}
			again, err := c.Subscribe(ctx, []wire.Start{FromPosition(s.Positions()[0])}, options...)
			if !assertNoError(t, name, err) {
				return
			}
			defer again.Close()
			_, err = c.Publish(ctx, name, "", []byte("2"))
			assertNoError(t, name, err)
			item, err := again.Next(ctx)
			if assertNoError(t, name, err) && item.Gap != nil {
				t.Errorf("%s: %v", name, item.Gap)
			}
		})
	}
	all.Wait()
}

// assertNoError is for goroutines, which must not end the test.
func assertNoError(t *testing.T, name string, err error) bool {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return err == nil
}
