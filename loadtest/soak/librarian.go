package soak

import (
	"context"
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A librarian subscribes with the Go client, which must hide every cut from it.
type librarian struct {
	*member
	starts []wire.Start // where it begins, before its first subscription is open
}

// mostTopicsEach bounds a subscriber's topics.
const mostTopicsEach = 6

func (l *librarian) live(ctx context.Context) {
	client, err := pubsub.New("http://"+l.ports.http.address(), pubsub.WithMaxBackoff(time.Second), pubsub.WithTCPAddr(l.ports.bare.address(), nil))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	defer client.Close()
	l.starts = l.drawStarts(l.rng, 1+l.rng.IntN(4), func(string) bool { return false })
	for ctx.Err() == nil && !l.mayLeave() {
		l.stay(ctx, client)
		if !l.isCalm() && l.rng.IntN(3) == 0 {
			l.staged.resumed.Add(1)
			l.way = ways[l.rng.IntN(len(ways))] // positions go with any
		}
	}
}

// stay is one subscription, from where the trails are.
func (l *librarian) stay(ctx context.Context, client *pubsub.Client) {
	options := append(l.way.options(), pubsub.WithOpenTimeout(0),
		pubsub.WithRetryNotify(func(error, time.Duration) { l.staged.reconnects.Add(1) }))
	starts, asked := l.resume(), time.Now()
	sub, err := client.Subscribe(ctx, starts, options...)
	if err != nil {
		l.judge(ctx, err)
		return
	}
	defer sub.Close()
	l.follow(starts, sub.Positions(), asked)
	l.read(ctx, sub)
}

// resume returns where the next subscription begins.
func (l *librarian) resume() []wire.Start {
	if len(l.trails) == 0 {
		return l.starts
	}
	starts := make([]wire.Start, 0, len(l.trails))
	for _, name := range l.ledger.names { // in one order, for a run to be repeated
		if t := l.trails[name]; t != nil {
			starts = append(starts, wire.StartAfter(t.position()))
		}
	}
	return starts
}

// follow begins the trails of topics that are new.
func (l *librarian) follow(starts []wire.Start, positions []wire.Position, asked time.Time) {
	for i, p := range positions {
		if l.trails[p.Topic] == nil {
			l.trails[p.Topic] = l.world.follow(l.who, starts[i], p, noOwn, asked)
		}
	}
}

// read reads, and between messages does what subscribers do, until it leaves or the
// subscription has ended.
func (l *librarian) read(ctx context.Context, sub *pubsub.Subscription) {
	for {
		reading, cancel := context.WithTimeout(ctx, time.Duration(100+l.rng.IntN(3000))*time.Millisecond)
		err := l.readUntil(reading, sub)
		interrupted := reading.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil || l.mayLeave():
			return
		case !interrupted:
			l.judge(ctx, err)
			return
		case !l.isCalm() && !l.act(ctx, sub):
			return
		}
	}
}

func (l *librarian) readUntil(ctx context.Context, sub *pubsub.Subscription) error {
	for {
		item, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		t := l.trails[item.Position().Topic]
		if t == nil {
			l.fault(Protocol, l.who, item.Position().Topic, "the client delivered %v for a topic without a subscription", item.Position())
			continue
		}
		t.frame(wire.Content{Message: item.Message, Gap: item.Gap}, time.Now())
	}
}

// act does something, and reports whether the subscription goes on.
func (l *librarian) act(ctx context.Context, sub *pubsub.Subscription) bool {
	switch draw := l.rng.IntN(100); {
	case draw < 30:
		l.pause()
	case draw < 60:
		l.change(ctx, sub)
	case draw < 70:
		return false
	}
	return true
}

// change adds and removes topics while the poll goes on.
func (l *librarian) change(ctx context.Context, sub *pubsub.Subscription) {
	add := l.drawStarts(l.rng, l.rng.IntN(3), func(topic string) bool { return l.trails[topic] != nil })
	var remove []string
	if len(l.trails) > 1 && (l.rng.IntN(2) == 0 || len(l.trails)+len(add) > mostTopicsEach) {
		remove = []string{l.resume()[l.rng.IntN(len(l.trails))].Topic}
	}
	asked := time.Now()
	positions, err := sub.Change(ctx, add, remove)
	if err != nil {
		l.judge(ctx, err)
		return
	}
	l.staged.changes.Add(1)
	for _, topic := range remove {
		l.drop(topic)
	}
	l.follow(add, positions, asked)
}

// judge finds fault with an error that no daemon in its right mind gives. That
// another poll took the place of ours happens: ours, delayed on the way.
func (l *librarian) judge(ctx context.Context, err error) {
	problem, ok := errors.AsType[*wire.Problem](err)
	switch {
	case ctx.Err() != nil || errors.Is(err, pubsub.ErrClosed):
	case ok && problem.Code == wire.CodePollReplaced:
		l.staged.replaced.Add(1)
	case isHalfRequest(err):
		l.staged.halfRequests.Add(1)
	case ok && (problem.Status == 503 || problem.Status == 429):
	default:
		l.fault(Protocol, l.who, "", "the client gave up: %v", err)
	}
}
