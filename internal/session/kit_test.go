package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// A kit is a broker and a registry on fake time.
type kit struct {
	*testing.T
	broker   *broker.Broker
	registry *Registry
	epoch    string
}

// story runs a test on fake time.
func story(t *testing.T, bc broker.Config, sc Config, tell func(k *kit)) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		b := broker.New(bc, m, time.Now())
		k := &kit{T: t, broker: b, registry: NewRegistry(sc, b, m)}
		k.epoch = k.publish("_epoch").Position.Epoch
		tell(k)
		b.Close()
		k.registry.sessions.each(k.consistent)
	})
}

// Poll begins a new poll whose Arrival is unknown.
func (s *Session) Poll(ack uint64, trust bool, now time.Time) (*Reader, error) {
	p, acking := &Reader{}, AcksNext
	if trust {
		acking = Trusted
	}
	if err := p.Begin(s, ack, acking, Arrival{}, now); err != nil {
		return nil, err
	}
	return p, nil
}

// consistent checks the invariants that hold between any two calls.
func (k *kit) consistent(s *Session) {
	k.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.EqualValues(k, s.window.sent, s.window.acked+uint64(len(s.window.unacked)), "what was sent is acked or kept")
	require.LessOrEqual(k, len(s.window.unacked), s.registry.cfg.Load().Unacked)
	for _, sub := range s.behind {
		require.True(k, sub.behind && !sub.dropped)
	}
	for _, sub := range s.subs.all() {
		require.False(k, sub.dropped)
		require.GreaterOrEqual(k, sub.cursor, sub.sentTo.Offset)
	}
	if s.ended == nil {
		s.checkMatched(k.T)
	}
}

func (k *kit) publish(topic string) wire.Published {
	k.Helper()
	p, err := k.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
	require.NoError(k, err)
	return p
}

// publishN publishes n messages and lets the fan-outs finish.
func (k *kit) publishN(topic string, n int) {
	k.Helper()
	for range n {
		k.publish(topic)
		synctest.Wait()
	}
}

func (k *kit) starts(texts ...string) []wire.Start {
	k.Helper()
	starts := make([]wire.Start, len(texts))
	for i, text := range texts {
		var err error
		starts[i], err = wire.ParseStart(strings.ReplaceAll(text, "EPOCH", k.epoch))
		require.NoError(k, err)
	}
	return starts
}

func (k *kit) open(topics ...string) *Session {
	k.Helper()
	s, positions, err := k.registry.Open(context.Background(), Opening{Topics: k.starts(topics...), Ack: true}, time.Now())
	require.NoError(k, err)
	require.Len(k, positions, len(topics))
	return s
}

var everything = frame.Limit{Frames: 1000, Bytes: 1 << 20}

const patience = 25 * time.Second

// poll polls once, as in mode batch, and returns the frames.
func (k *kit) poll(s *Session, ack uint64) string {
	k.Helper()
	said, err := k.tryPoll(s, ack, everything)
	require.NoError(k, err)
	return said
}

func (k *kit) tryPoll(s *Session, ack uint64, limit frame.Limit) (string, error) {
	p, err := s.Poll(ack, false, time.Now())
	if err != nil {
		return "", err
	}
	defer func() { p.Done(time.Now()) }()
	frames, err := p.Take(context.Background(), limit, patience)
	if err != nil {
		return "", err
	}
	return said(p.WithMoved(frames)), nil
}

// parked is a poll that waits in a goroutine.
type parked struct {
	k    *kit
	done chan struct{}
	said string
	err  error
}

// park begins a poll and waits until it is parked.
func (k *kit) park(s *Session, ack uint64) *parked {
	k.Helper()
	p := &parked{k: k, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.said, p.err = k.tryPoll(s, ack, everything)
	}()
	synctest.Wait()
	select {
	case <-p.done:
		require.Fail(k, "the poll was answered at once", "%q %v", p.said, p.err)
	default:
	}
	return p
}

func (p *parked) wantFrames(want string) {
	p.k.Helper()
	<-p.done
	require.NoError(p.k, p.err)
	require.Equal(p.k, want, p.said)
}

func (p *parked) wantProblem(code wire.Code) wire.Problem {
	p.k.Helper()
	<-p.done
	problem, ok := errors.AsType[*wire.Problem](p.err)
	require.True(p.k, ok, "%v", p.err)
	require.Equal(p.k, code, problem.Code)
	return *problem
}

// said formats frames as "a1 gap(slow a2-5) b1 moved(a7 b3)".
func said(frames []*frame.Frame) string {
	words := make([]string, 0, len(frames))
	for _, f := range frames {
		at := f.Position()
		if m := f.Moved(); m != nil {
			var to []string
			for _, p := range m.Positions {
				to = append(to, fmt.Sprintf("%s%d", p.Topic, p.Offset))
			}
			words = append(words, "moved("+strings.Join(to, " ")+")")
		} else if g := f.Gap(); g != nil {
			words = append(words, fmt.Sprintf("gap(%s %s%d-%d)", g.Reason, g.Topic, g.After.Offset, at.Offset))
		} else {
			words = append(words, fmt.Sprintf("%s%d", at.Topic, at.Offset))
		}
	}
	return strings.Join(words, " ")
}

// span returns "a3 a4 a5" for span("a", 3, 5).
func span(topic string, from, to int) string {
	words := make([]string, 0, to-from+1)
	for i := from; i <= to; i++ {
		words = append(words, fmt.Sprintf("%s%d", topic, i))
	}
	return strings.Join(words, " ")
}

// subscriptionsOf returns the states of the subscriptions.
func subscriptionsOf(s *Session) []wire.SubscriptionState {
	_, subscriptions := s.State(time.Now())
	return slices.Collect(subscriptions)
}

func patternsOf(s *Session) []string {
	state, _ := s.State(time.Now())
	return state.Patterns
}
