package pubsub

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// ErrClosed is what Next and Change return after Close.
var ErrClosed = errors.New("pubsub: the subscription is closed")

// errNoTopics is a stateless subscription to nothing, which could not be polled.
var errNoTopics = errors.New("a stateless subscription needs a topic")

// itemBuffer is how many items wait for Next before nothing more is asked for. It
// covers the round trip of the next poll; history covers the rest.
const itemBuffer = 64

// An Item is what a subscription delivers: exactly one member is set.
type Item struct {
	Message *wire.Message
	Gap     *wire.Gap // the messages that are lost
}

// Position returns the position of a subscriber that has received the item.
func (i Item) Position() wire.Position {
	if i.Gap != nil {
		return i.Gap.Position
	}
	return i.Message.Position
}

// size returns about how many bytes the item takes in memory.
func (i Item) size() int {
	if i.Message != nil {
		return i.Message.Size()
	}
	return gapSize
}

// gapSize is about what a gap takes, or a position that moves without an item.
const gapSize = 160

// A Subscription delivers the messages of its topics and the gaps between them. The
// messages of one topic come in order, each once.
//
// Only one goroutine at a time may call Next or range over All. The other methods may be
// called concurrently. If the program takes no items, the subscription stops asking for
// more, and the daemon's history holds them as long as it can.
//
// The caller must call Close, even after Next has failed or the context of Subscribe has
// ended.
type Subscription struct {
	end     context.CancelCauseFunc // ends the loop
	items   chan received           // closed by the loop when it ends
	changes chan *change            // never closed
	done    chan struct{}           // closed by the loop, last
	err     error                   // why the loop ended; written before items is closed

	mu        sync.Mutex // guards the rest, and returned and removed of every mark
	topics    *topicList // replaced by the loop alone
	transport Transport  // of the stay
}

// received is an item on its way to Next, with the mark that it moves. Without an item, only the
// mark moves: to a position past messages of the caller that the daemon has left out.
type received struct {
	item Item
	mark *topicMark
	at   wire.Position
}

func newSubscription(topics *topicList, end context.CancelCauseFunc) *Subscription {
	return &Subscription{
		end:     end,
		items:   make(chan received, itemBuffer),
		changes: make(chan *change),
		done:    make(chan struct{}),
		topics:  topics,
	}
}

// Next waits for the next item. If ctx ends, Next returns its cause, and the subscription
// continues. Any other error is final: Next returns it after all items that had arrived, and
// in every later call. It is ErrClosed after Close, the cause of the end of Subscribe's
// context, or a *wire.Problem that the daemon answered.
func (s *Subscription) Next(ctx context.Context) (Item, error) {
	for {
		select {
		case r, open := <-s.items:
			if !open {
				return Item{}, s.err
			}
			if s.returned(r) && r.item != (Item{}) {
				return r.item, nil
			}
		case <-ctx.Done():
			return Item{}, context.Cause(ctx)
		}
	}
}

// returned moves the position of the item's topic, and reports whether the
// topic is still subscribed to.
func (s *Subscription) returned(r received) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.mark.removed {
		return false
	}
	r.mark.returned = r.at
	return true
}

// All ranges over the items that Next returns. It ends after an error, which comes with the
// zero Item. After Close it ends without an error. The subscription stays open when the
// loop ends.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for {
			item, err := s.Next(ctx)
			if errors.Is(err, ErrClosed) || !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// Positions returns the position of each topic and pattern after the items that Next has
// returned. They are in the order in which topics were added or, with patterns, first
// delivered. A program that stores them together with its own state resumes with
// FromPosition(position) of each: then it misses no message and gets none twice. Resume with the
// positions of patterns, too: they stand for topics without an item. With WithoutOwn, a call of Next
// that waits moves them past own messages.
func (s *Subscription) Positions() []wire.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	positions := make([]wire.Position, 0, len(s.topics.marks))
	for _, m := range s.topics.marks {
		if m.named || m.returned.Epoch != "" {
			positions = append(positions, m.returned)
		}
	}
	return positions
}

// Transport returns the present transport: with Auto, the one that worked.
func (s *Subscription) Transport() Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.transport
}

func (s *Subscription) over(t Transport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transport = t
}

// adopt makes the edit that the daemon has made; for the loop.
func (s *Subscription) adopt(e edit, positions []wire.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range e.removed {
		m.removed = true
	}
	e.next.settle(positions)
	s.topics = e.next
}

// drop lets go of a topic whose subscription the daemon has ended. What waits to be returned
// is returned; for the loop.
func (s *Subscription) drop(m *topicMark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics = s.topics.edit(nil, []string{m.start.Topic}).next
}

// forget lets go of a topic that a pattern stands for and that the daemon leaves out; for the loop.
func (s *Subscription) forget(m *topicMark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics.forget(m)
}

// markOf returns the mark of a topic that is subscribed to, by its name or by a
// pattern, or nil; for the loop.
func (s *Subscription) markOf(topic string) *topicMark {
	if m := s.topics.byName[topic]; m != nil {
		return m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topics.matched(topic)
}

// positionsOf returns the positions of topics that are subscribed to; for the loop.
func (s *Subscription) positionsOf(starts []wire.Start) []wire.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	positions := make([]wire.Position, len(starts))
	for i, start := range starts {
		if m := s.topics.byName[start.Topic]; m != nil {
			positions[i] = m.returned
		}
	}
	return positions
}

// A change is a call of Change on its way through the loop.
type change struct {
	ctx    context.Context // of the caller, who waits; not kept longer
	add    []wire.Start
	remove []string
	answer chan changed // has room for the one answer; never closed
}

type changed struct {
	positions []wire.Position
	err       error
}

// Change removes topics and then adds topics; it makes all of the change or none. It returns
// the position of each topic of add, in order: delivery continues after it. Adding a topic
// that the subscription has changes nothing. A topic in both lists moves to a new start.
// After Change has returned, Next returns no item of a removed topic.
//
// While the daemon is unreachable, Change waits for it, at most until ctx ends. Positions then
// tells whether the change was made. A refusal is a *wire.Problem, and the subscription
// continues unchanged. That includes 429 and 503, which Change does not retry, and an
// *UnexpectedAnswerError.
func (s *Subscription) Change(ctx context.Context, add []wire.Start, remove []string) ([]wire.Position, error) {
	if _, err := newTopicList(add); err != nil {
		return nil, fmt.Errorf("change topics: %w", err)
	}
	// Clones: the loop may be at it still when the caller has given up.
	positions, err := s.change(&change{ctx: ctx, add: slices.Clone(add), remove: slices.Clone(remove), answer: make(chan changed, 1)})
	if err != nil {
		return nil, fmt.Errorf("change topics: %w", err)
	}
	return positions, nil
}

func (s *Subscription) change(ch *change) ([]wire.Position, error) {
	select {
	case s.changes <- ch:
	case <-ch.ctx.Done():
		return nil, context.Cause(ch.ctx)
	case <-s.done:
		return nil, s.err
	}
	select {
	case a := <-ch.answer:
		return a.positions, a.err
	case <-ch.ctx.Done():
		return nil, context.Cause(ch.ctx)
	case <-s.done:
		return nil, s.err
	}
}

// closeTimeout bounds the farewell to the daemon, which forgets a session by itself.
const closeTimeout = 2 * time.Second

// Close ends the subscription. It ends the session on the daemon, but waits at most 2 s for
// that, and waits for the goroutines. Close may be called again. Next still returns items
// that had arrived.
func (s *Subscription) Close() {
	s.end(ErrClosed)
	<-s.done
}
