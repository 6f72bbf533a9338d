package pubsub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Now subscribes to what is published to topic from now on.
func Now(topic string) wire.Start { return wire.Start{Topic: topic} }

// Oldest subscribes to all that topic holds, and what follows.
func Oldest(topic string) wire.Start { return wire.Start{Topic: topic, From: wire.FromOldest} }

// After resumes after a position, such as one of Subscription.Positions. What the
// history no longer holds of it is announced by a gap.
func After(position wire.Position) wire.Start { return wire.StartAfter(position) }

// Paced returns start with at most one delivery in the given time, from a
// millisecond to an hour, and then of the newest message of each key; what those
// replace is a gap, conflated. Without a session it needs the mode Stream.
func Paced(start wire.Start, every time.Duration) wire.Start {
	start.Every = every
	return start
}

// A Mode says how the daemon answers a subscription's requests.
type Mode string

// The modes. What is delivered is the same in all.
const (
	Batch    Mode = "batch"    // all that is there in one answer, then the next poll; grows by itself with load
	Single   Mode = "single"   // one message an answer, for proxies that hold longer ones back
	Multiple Mode = "multiple" // an answer that stays open while more keeps coming
	Stream   Mode = "stream"   // one answer that does not end: the least delay and traffic, if no proxy buffers it
)

// Defaults of the options of Subscribe.
const (
	DefaultMode        = Batch
	DefaultOpenTimeout = 15 * time.Second // enough for what Auto gives up, and then some
)

// subscribeOptions are what a subscription can be told at its beginning.
type subscribeOptions struct {
	transport   Transport
	mode        Mode
	format      Format
	stateless   bool
	openTimeout time.Duration
	onRetry     func(err error, wait time.Duration)
	except      string // the client whose messages are left out
}

// A SubscribeOption changes a subscription from its defaults.
type SubscribeOption func(*subscribeOptions)

// WithMode sets the mode. Default DefaultMode, where there is one; Stream is that of
// the transport HTTPStream alone.
func WithMode(mode Mode) SubscribeOption {
	return func(o *subscribeOptions) { o.mode = mode }
}

// Stateless subscribes without a session: every poll names all topics with their
// positions, so any daemon behind one address serves it, and none remembers it.
// Change then restarts the poll. At least one topic is needed. SSE is always so; a
// WebSocket's or TCP's session is the connection's, and nothing else remembers it.
// Default: a session.
func Stateless() SubscribeOption {
	return func(o *subscribeOptions) { o.stateless = true }
}

// WithoutOwn leaves out what was published WithClient(client): one's own messages, live
// and from history. Default: they are delivered like all others.
func WithoutOwn(client string) SubscribeOption {
	return func(o *subscribeOptions) { o.except = client }
}

// WithOpenTimeout bounds how long Subscribe tries to reach the daemon before it
// returns the last error; 0 or less is as long as ctx lasts. A subscription once
// open tries for ever. Default DefaultOpenTimeout.
func WithOpenTimeout(d time.Duration) SubscribeOption {
	return func(o *subscribeOptions) { o.openTimeout = d }
}

// WithRetryNotify has notify called before every wait for another attempt, with
// what went wrong and how long the wait is (it may be 0): to log or to count.
// The calls come one at a time and hold the subscription up; notify must not call
// the subscription's Next or Close. Default: none.
func WithRetryNotify(notify func(err error, wait time.Duration)) SubscribeOption {
	return func(o *subscribeOptions) { o.onRetry = notify }
}

// errOpenTimeout is why an opening ended that took longer than WithOpenTimeout.
var errOpenTimeout = errors.New("the daemon could not be reached in time")

// Subscribe subscribes to topics, each from its own start, or to all that a pattern
// (chat.*, prices.>) stands for, and returns once the
// daemon has said from which positions delivery goes on: whatever is published
// after that is delivered, or announced as a gap.
//
// ctx is the life of the subscription, not only of the opening: when it ends, the
// subscription ends as if closed, and Next returns why. The opening is bounded by
// WithOpenTimeout besides. An answer that waiting does not mend (a wrong topic, a
// refusal) is returned at once, as a *wire.Problem if the daemon explained it.
//
// The caller must Close the subscription. To resume a stateless subscription from
// positions alone needs no question, so there the daemon may be unreachable still,
// and its refusal comes from Next.
func (c *Client) Subscribe(ctx context.Context, starts []wire.Start, opts ...SubscribeOption) (*Subscription, error) {
	options := subscribeOptions{openTimeout: DefaultOpenTimeout}
	for _, opt := range opts {
		opt(&options)
	}
	topics, err := newTopicList(starts)
	if err == nil {
		err = options.check(topics)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	s, err := c.start(ctx, topics, options)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return s, nil
}

func (o *subscribeOptions) check(topics *topicList) error {
	switch o.mode {
	case Batch, Single, Multiple, Stream:
	case "":
	default:
		return fmt.Errorf("there is no mode %q", o.mode)
	}
	if err := o.resolve(); err != nil {
		return err
	}
	if o.stateless && len(topics.marks) == 0 {
		return errNoTopics
	}
	if o.except != "" {
		return wire.CheckClient(o.except)
	}
	return nil
}

// start opens the subscription and starts its loop, which runs until ctx ends, or
// Close, or an error that retrying does not mend.
func (c *Client) start(ctx context.Context, topics *topicList, options subscribeOptions) (*Subscription, error) {
	life, end := context.WithCancelCause(ctx)
	s := newSubscription(topics, end)
	l := newLoop(c, s, options)

	opening, cancel := life, func() {}
	if options.openTimeout > 0 {
		opening, cancel = context.WithTimeoutCause(life, options.openTimeout, errOpenTimeout)
	}
	defer cancel()
	if err := l.open(life, opening); err != nil {
		end(ErrClosed)
		return nil, err
	}
	go l.main(life)
	return s, nil
}
