package session

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A line is an Outlet that records what the session hands to it.
type line struct {
	k     *kit
	then  State    // what HandOver answers
	told  []string // "a1 a2", or "" for a timeout
	woken int

	encoding Encoding
	encodes  func() Encoding // nil: encoding
}

func (l *line) HandOver(frames []*frame.Frame) State {
	for _, f := range frames {
		require.True(l.k, f.Size() < largeMessage || f.IsEncoded(l.encoding.Format, l.encoding.DeflateFrom), "the session has its lock")
	}
	l.told = append(l.told, said(frames))
	return l.then
}

func (l *line) Encoding() Encoding {
	if l.encodes != nil {
		return l.encodes()
	}
	return l.encoding
}

func (l *line) Wake() { l.woken++ }

// wants checks what the line has got since the last call.
func (l *line) wants(told ...string) {
	l.k.Helper()
	require.Equal(l.k, told, l.told)
	l.told = nil
}

// parkOn begins the first poll of s and parks it on l.
func (k *kit) parkOn(l *line, s *Session, stream bool) *Reader {
	k.Helper()
	p, err := s.Poll(0, stream, time.Now())
	require.NoError(k, err)
	frames, became, err := p.TakeOrPark(l, everything, patience, time.Now())
	require.NoError(k, err)
	require.Empty(k, frames)
	require.Equal(k, Parked, became)
	return p
}

func TestAFrameIsHandedToTheParkedConnection(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Over}
		p := k.parkOn(l, s, false)
		k.publishN("a", 3)
		l.wants("a1") // the answer is over: the others wait for the next poll
		over, woken := p.Unpark()
		require.True(k, over)
		require.False(k, woken)
		require.Equal(k, "a2 a3", k.poll(s, 1), "the first is acked, the others were queued")
		require.Zero(k, l.woken)
	})
}

func TestALostAnswerIsSentAgain(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Over}
		k.parkOn(l, s, false)
		k.publishN("a", 2)
		l.wants("a1")
		require.Equal(k, "a1 a2", k.poll(s, 0))
	})
}

func TestAStreamStaysParked(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Parked}
		p := k.parkOn(l, s, true)
		k.publishN("a", 2)
		l.wants("a1", "a2")
		l.then = Continues // its socket is full: from now on its connection writes
		k.publishN("a", 2)
		l.wants("a3")
		require.Equal(k, 1, l.woken)
		over, woken := p.Unpark()
		require.False(k, over)
		require.True(k, woken)
		frames, became, err := p.TakeOrPark(l, everything, patience, time.Now())
		require.NoError(k, err)
		require.Equal(k, Over, became)
		require.Equal(k, "a4", said(frames))
		p.Done(time.Now())
	})
}

func TestAParkedPollTimesOut(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Over}
		p := k.parkOn(l, s, false)
		k.registry.Sweep(time.Now().Add(patience - time.Millisecond))
		l.wants()
		k.registry.Sweep(time.Now().Add(patience))
		l.wants("")
		over, _ := p.Unpark()
		require.True(k, over)
		k.registry.Sweep(time.Now().Add(2 * patience))
		l.wants()
	})
}

func TestAQuietStreamTimesOutAgainAndAgain(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		l := &line{k: k, then: Parked}
		p := k.parkOn(l, k.open("a"), true)
		for range 3 {
			time.Sleep(patience)
			k.registry.Sweep(time.Now())
			l.wants("")
		}
		p.Unpark()
		p.Done(time.Now())
	})
}

// Everything else wakes the connection of a parked poll, once. The next TakeOrPark
// returns the cause.
func TestAParkedPollIsWoken(t *testing.T) {
	for name, happening := range map[string]struct {
		happen func(k *kit, s *Session)
		want   wire.Code // empty: frames
		frames string
	}{
		"by a newer poll": {happen: func(k *kit, s *Session) {
			newer := &Reader{}
			require.NoError(k, newer.Begin(s, 0, AcksNext, Arrival{}, time.Now()))
			newer.Done(time.Now())
		}, want: wire.CodePollReplaced},
		"by its session's end": {happen: func(k *kit, s *Session) { k.registry.End(s) }, want: wire.CodeSessionEnded},
		"by a topic that has messages": {happen: func(k *kit, s *Session) {
			k.publishN("b", 2)
			_, err := s.Change(k.starts("b@oldest"), nil, nil)
			require.NoError(k, err)
		}, frames: "b1 b2"},
		"by a message whose life is over": {happen: func(k *kit, s *Session) {
			f := frame.New(&wire.Message{Position: wire.Position{Topic: "a", Epoch: k.epoch, Offset: 1}}, time.Now().Add(-time.Hour), time.Second, nil)
			s.subs.get("a").Offer([]*frame.Frame{f}, time.Now())
		}, frames: "gap(expired a0-1)"},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, broker.Config{}, Config{}, func(k *kit) {
				s := k.open("a")
				l := &line{k: k, then: Over}
				p := k.parkOn(l, s, false)
				happening.happen(k, s)
				l.wants()
				require.Equal(k, 1, l.woken)
				over, woken := p.Unpark()
				require.False(k, over)
				require.True(k, woken)
				frames, became, err := p.TakeOrPark(l, everything, patience, time.Now())
				require.Equal(k, Over, became)
				require.Equal(k, happening.want, codeOf(err))
				require.Equal(k, happening.frames, said(frames))
				p.Done(time.Now())
			})
		})
	}
}

func codeOf(err error) wire.Code {
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return p.Code
	}
	return ""
}

// Frames beyond the limit of one answer wait in the queue.
func TestFramesBeyondOneAnswerAreQueued(t *testing.T) {
	story(t, broker.Config{}, Config{Unacked: 2}, func(k *kit) {
		s := k.open("a")
		l := &line{k: k, then: Over}
		k.parkOn(l, s, false)
		var many []*frame.Frame
		for offset := range uint64(4) {
			many = append(many, frame.New(&wire.Message{Position: wire.Position{Topic: "a", Epoch: k.epoch, Offset: offset + 1}}, time.Now(), 0, nil))
		}
		s.subs.get("a").Offer(many, time.Now())
		l.wants("a1 a2") // as many as may be unacked
		require.Equal(k, 2, len(s.queue.frames))
		require.Equal(k, "a3 a4", k.poll(s, 2))
	})
}

// A stateless poll unsubscribes with its answer. Its connection may end the session much
// later.
func TestAnAnsweredStatelessPollIsOfferedNothing(t *testing.T) {
	story(t, broker.Config{}, Config{}, func(k *kit) {
		s, _, err := k.registry.OpenEphemeral(Opening{Topics: k.starts("a", "p.*")}, time.Now())
		require.NoError(k, err)
		l := &line{k: k, then: Over}
		k.parkOn(l, s, false)
		k.publishN("a", 2)
		l.wants("a1")
		require.Empty(k, k.followers("p.1"))
		require.Empty(k, s.queue.frames)
		var g metrics.Gauges
		k.broker.Gauges(&g)
		require.Zero(k, g.Subscriptions)
		require.Zero(k, s.Subscriptions(), "it holds no topic")
		k.registry.End(s)
		synctest.Wait()
	})
}

// A large message is encoded, and deflated, before the session takes its lock. If another poll
// parks meanwhile, which needs another encoding, it takes the message from the queue.
func TestALargeMessageIsEncodedWithoutTheLock(t *testing.T) {
	for name, e := range map[string]Encoding{
		"plain":    {frame.NDJSON, -1},
		"CBOR":     {frame.CBOR, -1},
		"deflated": {frame.NDJSON, 1 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, broker.Config{}, Config{}, func(k *kit) {
				s := k.open("a")
				l := &line{k: k, then: Parked, encoding: e}
				k.parkOn(l, s, true)
				k.publishN("a", 1)
				k.publishLarge("a")
				l.wants("a1", "a2")

				changes := 0
				l.encodes = func() Encoding {
					changes++
					return Encoding{frame.NDJSON, changes}
				}
				k.publishLarge("a")
				l.wants()
				require.Equal(t, 1, l.woken)
			})
		})
	}
}

// publishLarge publishes a message that is not small any more, and can be deflated.
func (k *kit) publishLarge(topic string) {
	k.Helper()
	data := []byte(`"` + strings.Repeat("x", largeMessage) + `"`)
	_, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: data}, 0, time.Now())
	require.NoError(k, err)
	synctest.Wait()
}
