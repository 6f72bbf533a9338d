package app

import (
	"context"
	"iter"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Bounds of a page.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// read checks and carries out the calls that read or delete. check returns what to do with
// a slot, which is held until that is done and answered.
func (a *App) read(ctx context.Context, c *Caller, check func() (do func() error, err error)) error {
	if err := a.admit(c, limit.Requests); err != nil {
		return err
	}
	do, err := check()
	if err != nil {
		return err
	}
	var s slot
	defer s.end()
	if err := s.take(ctx, a, c); err != nil {
		return err
	}
	return do()
}

// readLong is read for an answer that may be long.
func (a *App) readLong(ctx context.Context, c *Caller, check func() (do func() error, err error)) error {
	return a.read(ctx, c, func() (func() error, error) {
		if err := a.cfg.Broker.Memory().AdmitAnswer(c.Who.Client()); err != nil {
			return nil, err
		}
		return check()
	})
}

// Call calls answer for a request that needs no permission.
func (a *App) Call(ctx context.Context, c Caller, answer func() error) (err error) {
	defer a.recovered(&err)
	return a.read(ctx, &c, func() (func() error, error) { return answer, nil })
}

// Topics calls answer with a page of the topics that the caller may subscribe to. Each
// part is made when answer asks for it.
func (a *App) Topics(ctx context.Context, c Caller, rawQuery string, answer func(parts iter.Seq[wire.TopicList]) error) (err error) {
	defer a.recovered(&err)
	return a.readLong(ctx, &c, func() (func() error, error) {
		q := parseQuery(rawQuery)
		after, n := q.one("after"), int(q.number("limit", 1, MaxPage, DefaultPage))
		return func() error { return answer(a.topics(&c, after, n)) }, q.err
	})
}

// topics returns at most n topics after a name. Next of the last part is the page's.
func (a *App) topics(c *Caller, after string, n int) iter.Seq[wire.TopicList] {
	show := func(topic string) bool { return a.cfg.Authority.Allow(c.principal, auth.Subscribe, topic) == nil }
	return func(yield func(wire.TopicList) bool) {
		for {
			part := a.cfg.Broker.Topics(after, min(n, topicsAtOnce), show)
			n -= len(part.Topics)
			if !yield(part) || part.Next == "" || n == 0 {
				return
			}
			after = part.Next
		}
	}
}

// topicsAtOnce topics take at most about PieceBytes in JSON.
const topicsAtOnce = 64

// Topic calls answer with the state of a topic.
func (a *App) Topic(ctx context.Context, c Caller, topic string, answer func(wire.TopicState) error) (err error) {
	defer a.recovered(&err)
	return a.read(ctx, &c, func() (func() error, error) {
		return func() error {
			state, ok := a.cfg.Broker.Topic(topic)
			if !ok {
				return topicUnknown(topic, toHaveIt)
			}
			return answer(state)
		}, a.mayRead(&c, topic)
	})
}

// toHaveIt is the remedy for reading a topic that does not exist.
const toHaveIt = "publish or subscribe to it"

func topicUnknown(topic, remedy string) *wire.Problem {
	return wire.NewProblem(wire.CodeTopicUnknown, remedy, "there is no topic %s now", wire.Quote(topic))
}

func (a *App) mayRead(c *Caller, topic string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	return a.cfg.Authority.Allow(c.principal, auth.Subscribe, topic)
}

// DeleteTopic deletes a topic's history, and calls answer with its state then.
func (a *App) DeleteTopic(ctx context.Context, c Caller, topic string, answer func(wire.TopicState) error) (err error) {
	defer a.recovered(&err)
	return a.read(ctx, &c, func() (func() error, error) {
		if err := checkTopic(topic); err != nil {
			return nil, err
		}
		if wire.ReservedTopic(topic) {
			return nil, reserved(topic)
		}
		return func() error {
			state, ok := a.cfg.Broker.Delete(topic, time.Now())
			if !ok {
				return topicUnknown(topic, "nothing of it is held; if it should be there, GET /v1/topics has the names of those that are")
			}
			return answer(state)
		}, a.cfg.Authority.Allow(c.principal, auth.Delete, topic)
	})
}

// A History is a request for what a topic holds.
type History struct {
	Topic, Query string // the query as it came
	Accepts      Accepts
}

// History calls answer with the frames that a topic holds. Each piece is read when answer
// asks for it. There may be none.
func (a *App) History(ctx context.Context, c Caller, h History, answer func(pieces iter.Seq[[]*frame.Frame], format frame.Format) error) (err error) {
	defer a.recovered(&err)
	return a.readLong(ctx, &c, func() (func() error, error) {
		if err := a.mayRead(&c, h.Topic); err != nil {
			return nil, err
		}
		start, n, format, err := h.read()
		return func() error {
			if !a.cfg.Broker.Has(h.Topic) {
				return topicUnknown(h.Topic, toHaveIt)
			}
			return answer(a.history(start, n), format)
		}, err
	})
}

// PieceBytes is about the size of the pieces of a long answer. One frame may be larger.
const PieceBytes = 64 << 10

// history returns at most n frames of a topic.
func (a *App) history(start wire.Start, n int) iter.Seq[[]*frame.Frame] {
	return func(yield func([]*frame.Frame) bool) {
		for n > 0 {
			frames, _ := a.cfg.Broker.ReadTopic(start, broker.Limit{Frames: n, Bytes: PieceBytes}, time.Now())
			if len(frames) == 0 || !yield(frames) {
				return
			}
			n -= len(frames)
			start = wire.StartAfter(frames[len(frames)-1].Position())
		}
	}
}

// read returns where to read from, how many frames, and in which format.
func (h History) read() (start wire.Start, n int, format frame.Format, err error) {
	q := parseQuery(h.Query)
	n, format = int(q.number("limit", 1, MaxPage, DefaultPage)), q.format(h.Accepts)
	after := q.one("after")
	if after == "" {
		return wire.Start{Topic: h.Topic, From: wire.FromOldest}, n, format, q.err
	}
	position, err := wire.ParsePosition(after)
	switch {
	case err != nil:
		q.fail(wire.NewProblem(wire.CodeInvalidPosition, "give a position of this topic", "%v", err))
	case position.Topic != h.Topic:
		q.fail(wire.NewProblem(wire.CodeInvalidPosition, "give a position of this topic",
			"position %s is of another topic than %s", wire.Quote(after), wire.Quote(h.Topic)))
	}
	return wire.StartAfter(position), n, format, q.err
}
