package pubsub

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// PresenceListed is the Event of a PresenceChange after which the list is another one.
const PresenceListed = "list"

// A PresenceChange says what has changed in a Presence.
type PresenceChange struct {
	// Event is PresenceListed: the whole list was read; or, as in package wire, PresenceJoin: the
	// member came, or has other claims; PresenceLeave: it left; PresenceCount: the counts changed.
	Event  string
	Member wire.ListedMember // of a join or a leave; of a leave without claims and since
}

// A Presence is a live list of who is on a topic. It changes when Next returns: Members and Counts
// are those after the change that Next returned last.
//
// After a restart of the daemon, and whenever changes were lost, Next reads the list again and
// returns PresenceListed. Above 500 members the daemon sends counts alone. Then Counts().Exact is
// false, and Members has some who were there when the list was read.
//
// Only one goroutine at a time may call Next or range over All. The other methods may be called
// concurrently. The caller must call Close, even after Next has failed.
type Presence struct {
	client  *Client
	topic   string
	options subscribeOptions
	life    context.Context // of the Presence: from its opening until Close
	end     context.CancelCauseFunc
	sub     *Subscription // to the topic's presence topic

	// Owned by the goroutine that calls Next.
	at      wire.Position // of the list in the presence topic
	listed  bool          // Next returns PresenceListed
	stale   bool          // the list must be read again
	reading chan listing  // has room for what is being read; nil: nothing is; never closed
	err     error         // final: why the list cannot be read

	reads sync.WaitGroup // the goroutine that reads; Go needs mu, and a life that has not ended

	mu      sync.Mutex // guards the fields below
	members map[string]wire.ListedMember
	counts  wire.PresenceCounts
}

// Presence returns a live list of who is on topic, whose rule must have presence. It needs the
// right "presence" on the topic. The options are those of Subscribe: changes come by a subscription.
//
// It lasts as long as ctx: when ctx ends, Next returns its cause. A refusal is a *wire.Problem, for
// example not_found for a topic without presence. Other failures are retried for as long as
// WithOpenTimeout says, and later without a limit.
func (c *Client) Presence(ctx context.Context, topic string, opts ...SubscribeOption) (*Presence, error) {
	p, err := c.openPresence(ctx, topic, opts)
	if err != nil {
		return nil, fmt.Errorf("presence of %q: %w", topic, err)
	}
	return p, nil
}

func (c *Client) openPresence(ctx context.Context, topic string, opts []SubscribeOption) (*Presence, error) {
	if err := wire.CheckTopic(topic); err != nil {
		return nil, err
	}
	p := &Presence{client: c, topic: topic, options: subscribeOptions{openTimeout: DefaultOpenTimeout}}
	for _, opt := range opts {
		opt(&p.options)
	}
	if notify := p.options.onRetry; notify != nil {
		p.options.onRetry = oneAtATime(notify)
		opts = append(opts[:len(opts):len(opts)], WithRetryNotify(p.options.onRetry))
	}
	p.life, p.end = context.WithCancelCause(ctx)
	opening, cancel := p.life, func() {}
	if p.options.openTimeout > 0 {
		opening, cancel = context.WithTimeoutCause(p.life, p.options.openTimeout, errOpenTimeout)
	}
	defer cancel()
	begun := c.clock.now()
	list, err := p.read(opening)
	if err == nil {
		p.adopt(list)
		if p.options.openTimeout > 0 {
			opts = append(opts[:len(opts):len(opts)], WithOpenTimeout(max(1, p.options.openTimeout-c.clock.since(begun))))
		}
		p.sub, err = c.Subscribe(p.life, []wire.Start{FromPosition(p.at)}, opts...)
	}
	if err != nil {
		p.end(ErrClosed)
		return nil, err
	}
	return p, nil
}

// oneAtATime returns notify for two goroutines: the subscription retries while the list is read.
func oneAtATime(notify func(error, time.Duration)) func(error, time.Duration) {
	turn := make(chan struct{}, 1)
	return func(err error, wait time.Duration) {
		turn <- struct{}{}
		defer func() { <-turn }()
		notify(err, wait)
	}
}

// Next waits for the next change; the first is PresenceListed. If ctx ends, Next returns its cause,
// and the Presence continues. Any other error is final: ErrClosed after Close, the cause of the end
// of its context, or a *wire.Problem that the daemon answered.
func (p *Presence) Next(ctx context.Context) (PresenceChange, error) {
	for {
		if p.stale {
			if err := p.readAgain(ctx); err != nil {
				return PresenceChange{}, err
			}
		}
		if p.listed {
			p.listed = false
			return PresenceChange{Event: PresenceListed}, nil
		}
		item, err := p.sub.Next(ctx)
		if err != nil {
			return PresenceChange{}, err
		}
		if change := p.take(item); change.Event != "" {
			return change, nil
		}
	}
}

// All ranges over the changes that Next returns. It ends after an error, which comes with the zero
// PresenceChange. After Close it ends without an error.
func (p *Presence) All(ctx context.Context) iter.Seq2[PresenceChange, error] {
	return func(yield func(PresenceChange, error) bool) {
		for {
			change, err := p.Next(ctx)
			if errors.Is(err, ErrClosed) || !yield(change, err) || err != nil {
				return
			}
		}
	}
}

// Members returns the members by their keys. The caller may change the map.
func (p *Presence) Members() map[string]wire.ListedMember {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.members)
}

// Counts returns how many members there are, how many subscriptions without a subject and a
// client's name, and whether Members has all members.
func (p *Presence) Counts() wire.PresenceCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Close ends the Presence, as Subscription.Close does.
func (p *Presence) Close() {
	p.mu.Lock()
	p.end(ErrClosed) // from here on no read begins
	p.mu.Unlock()
	p.sub.Close()
	p.reads.Wait()
}

// take makes the change that an item of the presence topic says, if it says one. What is not after
// the list, in its epoch, the list has: the subscription went on while it was read.
func (p *Presence) take(item Item) PresenceChange {
	at := item.Position()
	isNew := at.Epoch != p.at.Epoch || at.Offset > p.at.Offset
	switch gap := item.Gap; {
	case gap != nil && gap.Reason == wire.GapForbidden: // the list is refused, too, and that says why
		p.stale = true
	case gap != nil:
		p.stale = isNew && gap.Reason != wire.GapConflated // the newest message of each member is enough
	case isNew && at.Epoch == p.at.Epoch:
		var e wire.PresenceEvent
		if jsonv2.Unmarshal(item.Message.Data, &e) == nil {
			return p.change(item.Message.Key, &e)
		}
	}
	return PresenceChange{}
}

// change makes a change. Of an event that it does not know, it makes none.
func (p *Presence) change(key string, e *wire.PresenceEvent) PresenceChange {
	p.mu.Lock()
	defer p.mu.Unlock()
	member := wire.ListedMember{Key: key, Member: e.Member}
	switch {
	case e.Event == wire.PresenceJoin:
		p.members[key] = member
		p.counts.Count = len(p.members)
	case e.Event == wire.PresenceLeave:
		delete(p.members, key)
		p.counts.Count = len(p.members)
	case e.Event == wire.PresenceCount && e.PresenceCounts != nil:
		p.counts = *e.PresenceCounts
		return PresenceChange{Event: e.Event}
	default:
		return PresenceChange{}
	}
	return PresenceChange{e.Event, member}
}

// A listing is the result of reading the list.
type listing struct {
	list wire.PresenceList
	err  error
}

// readAgain waits until the list has been read, or ctx or the Presence ends. A read goes on when ctx
// ends, so that a program whose calls of Next are short gets the list, and asks for it no more often.
func (p *Presence) readAgain(ctx context.Context) error {
	if p.err != nil {
		return p.err
	}
	if p.reading == nil && !p.beginReading() {
		return context.Cause(p.life)
	}
	select {
	case read := <-p.reading:
		p.reading = nil
		if read.err != nil {
			p.err = fmt.Errorf("presence of %q: %w", p.topic, read.err)
			return p.err
		}
		p.stale = false
		p.adopt(read.list)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// beginReading reads the list in a goroutine, for which Close waits. It returns false after the end.
func (p *Presence) beginReading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.Err() != nil {
		return false
	}
	read := make(chan listing, 1)
	p.reading = read
	p.reads.Go(func() {
		list, err := p.read(p.life)
		read <- listing{list, err}
	})
	return true
}

// read reads the list. It retries what may pass until ctx ends, with the waits of a subscription.
func (p *Presence) read(ctx context.Context) (wire.PresenceList, error) {
	pauses := backoff{max: p.client.maxBackoff}
	for {
		list, err := p.readOnce(ctx)
		if err == nil {
			return list, nil
		}
		if ctx.Err() != nil {
			return list, whyGivenUp(ctx, err)
		}
		if !mayPass(err) {
			return list, err
		}
		patient := pauses
		if isForeign(err) {
			patient.max *= foreignFactor
		}
		wait := patient.next(retryAfter(err))
		pauses.failures++
		if p.options.onRetry != nil {
			p.options.onRetry(err, wait)
		}
		if p.client.clock.sleep(ctx, wait) != nil {
			return list, whyGivenUp(ctx, err)
		}
	}
}

func (p *Presence) readOnce(ctx context.Context) (list wire.PresenceList, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errSilent)
	defer cancel()
	if err := p.client.call(ctx, http.MethodGet, "v1/topics/"+p.topic+"/presence", nil, http.StatusOK, &list); err != nil {
		return list, err
	}
	if list.Topic != p.topic || list.Position.Topic != wire.PresenceTopic(p.topic) {
		return list, unexpected(http.StatusOK, "with what is not the presence of the topic")
	}
	return list, nil
}

func (p *Presence) adopt(list wire.PresenceList) {
	members := make(map[string]wire.ListedMember, len(list.Members))
	for _, m := range list.Members {
		members[m.Key] = m
	}
	p.at, p.listed = list.Position, true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members, p.counts = members, list.PresenceCounts
}
