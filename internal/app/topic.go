package app

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// read makes the checks of the calls that read or delete, check last. It calls do while the slot
// is held. A do that answers leaves the slot first: a client that does not read its answer holds
// memory, but keeps nobody waiting. topic is the one that do is about, or empty.
func (a *App) read(ctx context.Context, c *Caller, topic string, s slot, check func() error, do func(leave func()) error) (err error) {
	defer a.recovered(&err)
	if err := a.admit(ctx, c, limit.Requests); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	defer s.end()
	if err := s.take(ctx, a, c); err != nil {
		return err
	}
	if err := a.mayStillUse(c, topic); err != nil { // the slot may have taken long
		return err
	}
	return do(s.end)
}

// mayStillUse checks again, after a wait, what may have changed: the grant, and what is forbidden.
// An empty topic is none.
func (a *App) mayStillUse(c *Caller, topic string) error {
	if err := a.checkGrant(c.grant); err != nil || topic == "" {
		return err
	}
	return a.checkForbidden(c.grant, topic)
}

// readLong is read for an answer that may be long. It leaves the slot once the turn has come to
// prepare it: what waits for turns has a bound, too.
func (a *App) readLong(ctx context.Context, c *Caller, topic string, check func() error, do func(leave func()) error) error {
	return a.read(ctx, c, topic, slot{reads: true}, func() error {
		if err := a.cfg.Broker.Memory().AdmitAnswer(c.Who.Client()); err != nil {
			return err
		}
		return check()
	}, do)
}

// Call calls answer for a request that needs no permission.
func (a *App) Call(ctx context.Context, c Caller, answer func() error) error {
	return a.read(ctx, &c, "", slot{reads: true}, func() error { return nil }, func(leave func()) error {
		leave()
		return answer()
	})
}

// Topics calls answer with a page of the topics that the caller may subscribe to. They are
// listed in parts, when answer asks for them. Then next is set to the page's. A caller without
// credentials who may subscribe to no topic is refused: an empty list would hide that.
func (a *App) Topics(ctx context.Context, c Caller, p request.Page, answer func(topics iter.Seq[wire.TopicState], next *string, leave func()) error) error {
	next, err := a.cursor(p.After)
	check := func() error {
		if c.grant.Subject == "" {
			return cmp.Or(c.grant.AllowSome(auth.Subscribe), p.Fault, err)
		}
		return cmp.Or(p.Fault, err)
	}
	return a.readLong(ctx, &c, "", check, func(leave func()) error {
		return answer(a.topics(&c, &next, p.Limit), &next, leave)
	})
}

// topics returns at most n topics after next, and sets next.
func (a *App) topics(c *Caller, next *string, n int) iter.Seq[wire.TopicState] {
	forbidden := a.cfg.Revocations.Forbidden(c.grant.Subject)
	visible := func(topic string) bool {
		return c.grant.Allow(auth.Subscribe, topic) == nil && forbidden.Find(topic) == nil
	}
	listing := broker.NewListing(c.grant.Rights.Names(auth.Subscribe), visible)
	return func(yield func(wire.TopicState) bool) {
		for full := false; !full; {
			most := min(n, topicsAtOnce)
			part := a.cfg.Broker.Topics(listing, *next, most)
			*next = part.Next
			for _, topic := range part.Topics {
				if !yield(topic) {
					return
				}
			}
			n -= len(part.Topics)
			full = n == 0 || len(part.Topics) < most
		}
		if *next != "" && !visible(*next) {
			*next = a.sealed(*next)
		}
	}
}

// topicsAtOnce topics take at most about PieceBytes in JSON.
const topicsAtOnce = 64

// Topic calls answer with the state of a topic.
func (a *App) Topic(ctx context.Context, c Caller, topic string, answer func(wire.TopicState) error) error {
	return a.read(ctx, &c, topic, slot{reads: true}, func() error { return a.mayUse(&c, auth.Subscribe, topic) }, func(leave func()) error {
		state, ok := a.cfg.Broker.Topic(topic)
		leave()
		if !ok {
			return topicUnknown(topic, toHaveIt)
		}
		return answer(state)
	})
}

// Presence calls answer with who is on a topic. A daemon that drains refuses it: clients are moving
// to the next one, and it has not told who left.
func (a *App) Presence(ctx context.Context, c Caller, topic string, answer func(found wire.PresenceList, leave func()) error) error {
	if why := a.cfg.Sessions.Draining(); why != nil {
		return why
	}
	return a.readLong(ctx, &c, topic, func() error {
		if err := a.mayUse(&c, auth.Presence, topic); err != nil {
			return err
		}
		if !a.cfg.Broker.Route(topic).Rule.Presence {
			return problem.New(wire.CodeNotFound, "ask the operator to set presence: true in a rule that matches the topic",
				"presence is off for topic %s", wire.Quote(topic))
		}
		return a.mayCreate(&c, []wire.Start{{Topic: wire.PresenceTopic(topic)}})
	}, func(leave func()) error {
		found, err := a.cfg.Presence.List(topic, time.Now())
		if err != nil {
			return err
		}
		return answer(found, leave)
	})
}

// toHaveIt is the remedy for reading a topic that does not exist.
const toHaveIt = "publish or subscribe to it"

func topicUnknown(topic, remedy string) *wire.Problem {
	return problem.New(wire.CodeTopicUnknown, remedy, "topic %s does not exist", wire.Quote(topic))
}

// DeleteTopic deletes a topic's history, and calls answer with its state then.
func (a *App) DeleteTopic(ctx context.Context, c Caller, topic string, answer func(wire.TopicState) error) error {
	return a.read(ctx, &c, topic, slot{}, func() error { return a.mayUse(&c, auth.Delete, topic) }, func(leave func()) error {
		state, err := a.cfg.Broker.Delete(topic, time.Now())
		leave()
		switch {
		case errors.Is(err, broker.ErrNoTopic):
			return topicUnknown(topic, "check the name against GET /v1/topics")
		case err != nil:
			return err
		}
		return answer(state)
	})
}

// History calls answer with the frames of a topic's history. The last is its done. Each
// piece is read when answer asks for it.
func (a *App) History(ctx context.Context, c Caller, h request.History, answer func(pieces iter.Seq[[]*frame.Frame], leave func()) error) error {
	topic, n := h.Start.Topic, h.Limit
	return a.readLong(ctx, &c, topic, func() error { return cmp.Or(a.mayUse(&c, auth.History, topic), h.Fault) }, func(leave func()) error {
		if h.Start.From == wire.FromNewest {
			page, ok := a.cfg.Broker.PageBefore(topic, h.Before, n, time.Now())
			if !ok {
				return topicUnknown(topic, toHaveIt)
			}
			return answer(a.whilePermitted(&c, topic, a.page(page, h.Before)), leave)
		}
		frames, from := a.cfg.Broker.ReadTopic(h.Start, frame.Limit{Frames: n, Bytes: PieceBytes}, time.Now())
		if from == (wire.Position{}) {
			return topicUnknown(topic, toHaveIt)
		}
		return answer(a.whilePermitted(&c, topic, a.history(frames, from, n)), leave)
	})
}

// whilePermitted ends a history without its done once the caller may not read the topic any more.
// Its client takes that for an answer that was cut, asks again, and gets the refusal.
func (a *App) whilePermitted(c *Caller, topic string, pieces iter.Seq[[]*frame.Frame]) iter.Seq[[]*frame.Frame] {
	return func(yield func([]*frame.Frame) bool) {
		for frames := range pieces {
			if a.mayStillUse(c, topic) != nil || !yield(frames) {
				return
			}
		}
	}
}

// PieceBytes is about the size of the pieces of a long answer. One frame may be larger.
const PieceBytes = 64 << 10

// history returns at most n frames of a topic, of which the first were read from a
// position, and the done.
func (a *App) history(first []*frame.Frame, from wire.Position, n int) iter.Seq[[]*frame.Frame] {
	at := from // of the last frame
	read := func(limit frame.Limit) []*frame.Frame {
		frames, _ := a.cfg.Broker.ReadTopic(wire.StartAfter(at), limit, time.Now())
		return frames
	}
	return func(yield func([]*frame.Frame) bool) {
		for frames := first; ; frames = read(frame.Limit{Frames: n, Bytes: PieceBytes}) {
			if len(frames) > 0 {
				at = frames[len(frames)-1].Position()
			}
			n -= len(frames)
			more := len(read(frame.Limit{Frames: 1})) > 0
			if n == 0 || !more {
				yield(append(frames, frame.NewDone(wire.Done{Position: at, More: more})))
				return
			}
			if !yield(frames) {
				return
			}
		}
	}
}

// page returns the frames of a page that ends before a position, and the done, from which
// the client reads the page before it.
func (a *App) page(p broker.Page, before wire.Position) iter.Seq[[]*frame.Frame] {
	done := wire.Done{Position: cmp.Or(before, p.From)}
	return func(yield func([]*frame.Frame) bool) {
		var frames []*frame.Frame
		for at := p.From; at.Offset < p.UpTo; at = frames[len(frames)-1].Position() {
			if len(frames) > 0 && !yield(frames) {
				return
			}
			if frames = a.cfg.Broker.ReadPage(p, at, frame.Limit{Frames: math.MaxInt, Bytes: PieceBytes}, time.Now()); len(frames) == 0 {
				break
			}
			if at == p.From {
				done.Position = frames[0].Position()
			}
			if g := frames[0].Gap(); g != nil && g.Reason == wire.GapRestarted {
				break
			}
		}
		older, _ := a.cfg.Broker.PageBefore(done.Position.Topic, done.Position, 1, time.Now())
		done.More = !older.IsEmpty()
		yield(append(frames, frame.NewDone(done)))
	}
}
