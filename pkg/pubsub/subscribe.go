package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// FromNow returns the start of a subscription to the messages published to topic from now on.
func FromNow(topic string) wire.Start { return wire.Start{Topic: topic} }

// FromOldest returns the start of a subscription that begins with the oldest message in the
// history of topic.
func FromOldest(topic string) wire.Start { return wire.Start{Topic: topic, From: wire.FromOldest} }

// FromNewest returns the start of a subscription that begins with the newest n messages in the
// history of topic; of a pattern, of each of its topics. n is 1 to 1000.
func FromNewest(topic string, n int) wire.Start {
	return wire.Start{Topic: topic, From: wire.FromNewest, Newest: int32(min(max(n, 0), math.MaxInt32))}
}

// FromPosition returns the start of a subscription that resumes after position, such as one of
// Subscription.Positions. A gap announces messages that the history no longer holds.
func FromPosition(position wire.Position) wire.Start { return wire.StartAfter(position) }

// Paced returns start with at most one delivery in each period of every, which must be a
// millisecond to an hour. The daemon delivers the newest message of each key; a gap,
// conflated, announces those that it replaced. Without a session it needs the mode Stream.
func Paced(start wire.Start, every time.Duration) wire.Start {
	start.Every = every
	return start
}

// A Mode is the form of the answers to polls; see PROTOCOL.md, Polls and acknowledgements.
type Mode string

// The modes. The delivered messages are the same in all.
const (
	Batch    Mode = "batch"    // each answer has all frames that are ready
	Single   Mode = "single"   // each answer has one frame, for proxies that buffer longer answers
	Multiple Mode = "multiple" // an answer stays open while more frames come
	Stream   Mode = "stream"   // one answer that does not end: least delay and traffic, if no proxy buffers it
)

// Defaults of the options of Subscribe.
const (
	DefaultMode        = Batch
	DefaultOpenTimeout = 15 * time.Second // enough for Auto to try all transports
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

// WithMode sets the mode of LongPoll. Stream is the mode of HTTPStream, and of no other
// transport. Default: DefaultMode.
func WithMode(mode Mode) SubscribeOption {
	return func(o *subscribeOptions) { o.mode = mode }
}

// Stateless subscribes without a session: every poll names all topics with their
// positions, so any daemon behind one address can answer it. The subscription needs at
// least one topic, and Change restarts the poll. SSE is always stateless. The session of a
// WebSocket or TCP connection ends with the connection. Default: a session.
func Stateless() SubscribeOption {
	return func(o *subscribeOptions) { o.stateless = true }
}

// WithoutOwn leaves out messages that were published with WithClient(client), live and from
// history. They cause no gap, and move the positions: within some seconds, with LongPoll at the end
// of a poll. Default: all messages are delivered.
func WithoutOwn(client string) SubscribeOption {
	return func(o *subscribeOptions) { o.except = client }
}

// WithOpenTimeout sets how long Subscribe tries to reach the daemon before it returns the
// last error. 0 or less means as long as ctx lasts. An open subscription reconnects without
// a time limit. Default: DefaultOpenTimeout.
func WithOpenTimeout(d time.Duration) SubscribeOption {
	return func(o *subscribeOptions) { o.openTimeout = d }
}

// WithRetryNotify calls notify before each wait for another attempt, with the error and the
// length of the wait (it may be 0), so that a program can log or count. While a proxy or another
// program answers in the daemon's place, the error is an *UnexpectedAnswerError or mentions a proxy.
// The calls come one at a time, and the subscription waits for them. notify must not call the
// subscription's Next or Close. Default: none.
func WithRetryNotify(notify func(err error, wait time.Duration)) SubscribeOption {
	return func(o *subscribeOptions) { o.onRetry = notify }
}

// errOpenTimeout is why an opening ended that took longer than WithOpenTimeout.
var errOpenTimeout = errors.New("the daemon did not answer in time")

// Subscribe subscribes to topics and patterns (chat.*, prices.>), each from its own start. It
// returns when the daemon has answered with the positions. Every message published after that is
// delivered, or announced as a gap.
//
// The subscription lasts as long as ctx: when ctx ends, Next returns its cause.
// WithOpenTimeout also limits the opening. An error that a retry would not fix, such as a
// wrong topic or a refusal, is returned at once, as a *wire.Problem if it is the daemon's. After
// an answer that is not the daemon's, Subscribe retries.
//
// The caller must Close the subscription. A stateless subscription that resumes only from
// positions sends nothing before Subscribe returns. So Subscribe succeeds even if the daemon
// is unreachable, and Next returns a refusal.
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
		return fmt.Errorf("unknown mode %q", o.mode)
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
