package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/cbor"
)

// A requester is the client of one connection that goes both ways. It implements
// transport.Commands.
type requester struct {
	api   *API
	asker asker
	read  func([]byte) (*wire.Command, error)
}

// Do implements transport.Commands. It does not wait: what has to is done later. If it
// panics that is the connection's end, and not the daemon's, as net/http has it for
// requests.
func (c *requester) Do(ctx context.Context, s *session.Session, raw []byte) (reply *wire.Reply, later transport.Later, err error) {
	defer c.api.survive(&err)
	return c.do(ctx, s, raw)
}

func (c *requester) do(ctx context.Context, s *session.Session, raw []byte) (*wire.Reply, transport.Later, error) {
	command, err := c.read(raw)
	reply := &wire.Reply{}
	if command != nil {
		reply.Ref = command.Ref
	}
	later := func(ctx context.Context) *wire.Reply {
		return c.replyInTime(ctx, reply, c.carryOut(ctx, s, command, reply))
	}
	switch {
	case err != nil && command == nil:
		return nil, nil, err
	case err == nil && command.Publish != nil && c.api.Hook.Wants(command.Publish.Topic):
		return nil, c.surviving(reply.Ref, later), nil
	case err == nil:
		err = c.carryOut(noPatience, s, command, reply)
	default:
		err = c.badCommand(err)
	}
	if errors.Is(err, context.Canceled) { // it would have to wait
		return nil, c.surviving(reply.Ref, later), nil
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && refusal.Hold > 0 {
		return nil, c.surviving(reply.Ref, func(ctx context.Context) *wire.Reply { return c.replyInTime(ctx, reply, refusal) }), nil
	}
	return c.replyWith(ctx, reply, err), nil, nil
}

// surviving is later, but that a panic is the command's failure.
func (c *requester) surviving(ref *uint64, later transport.Later) transport.Later {
	return func(ctx context.Context) (reply *wire.Reply) {
		var err error
		defer func() {
			if err != nil {
				reply = &wire.Reply{Ref: ref, Problem: c.api.problemOfCommand(ctx, err)}
			}
		}()
		defer c.api.survive(&err)
		return later(ctx)
	}
}

var errPanicked = errors.New("what was asked panicked")

// survive is deferred: it logs a panic, and sets err.
func (a *API) survive(err *error) {
	if why := recover(); why != nil {
		a.Log.Error("panic", zap.Any("panic", why), zap.Stack("stack"))
		*err = errPanicked
	}
}

// replyInTime is replyWith once it is to be told.
func (c *requester) replyInTime(ctx context.Context, reply *wire.Reply, err error) *wire.Reply {
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok {
		c.api.Limiter.Hold(ctx, refusal)
	}
	return c.replyWith(ctx, reply, err)
}

// replyWith returns the reply to a command, or nil if there is none.
func (c *requester) replyWith(ctx context.Context, reply *wire.Reply, err error) *wire.Reply {
	switch {
	case err != nil:
		return &wire.Reply{Ref: reply.Ref, Problem: c.api.problemOfCommand(ctx, err)}
	case reply.Ref == nil:
		return nil
	}
	return reply
}

// problemOfCommand is problemOf where there is no request. If ctx has ended nobody is
// left to be told.
func (a *API) problemOfCommand(ctx context.Context, err error) *wire.Problem {
	p, ok := errors.AsType[*wire.Problem](err)
	if !ok {
		p = wire.NewProblem(wire.CodeInternal, "try again; if it stays, see the daemon's log", "the daemon failed")
		if ctx.Err() != nil {
			return p
		}
		a.Log.Error("command failed", zap.Error(err))
	}
	a.Metrics.Refused.WithLabelValues(string(p.Code)).Inc()
	return p.Spread()
}

// carryOut does what a command says, and notes in the reply what came of it.
func (c *requester) carryOut(ctx context.Context, s *session.Session, command *wire.Command, reply *wire.Reply) error {
	if err := checkCommand(command); err != nil {
		return c.badCommand(err)
	}
	if command.Publish != nil {
		return c.publish(ctx, command.Publish, reply)
	}
	if command.Ping || command.Ack != nil {
		return c.hear(s, command)
	}
	return c.change(ctx, s, command, reply)
}

// badCommand returns err, or a refusal: what says nothing has to be answered, too.
func (c *requester) badCommand(err error) error {
	if refused := c.api.Limiter.Admit(limit.Requests, c.asker.Who); refused != nil {
		return refused
	}
	return err
}

// checkCommand returns an error unless a command says one thing.
func checkCommand(c *wire.Command) error {
	says := 0
	for _, so := range []bool{c.Subscribe != nil || c.Unsubscribe != nil, c.Publish != nil, c.Ack != nil, c.Ping} {
		if so {
			says++
		}
	}
	switch {
	case says != 1:
		return wire.NewProblem(wire.CodeInvalidRequest, "say one of subscribe (and unsubscribe), publish, ack and ping", "the command says %d things", says)
	case c.Ref != nil && *c.Ref > wire.MaxRef:
		return wire.NewProblem(wire.CodeInvalidRequest, "use a whole number up to 2^53-1", "ref is too large")
	}
	return nil
}

// hear hears of what a poll would say by being there.
func (c *requester) hear(s *session.Session, command *wire.Command) error {
	if err := c.api.Limiter.Admit(limit.Polls, c.asker.Who); err != nil || command.Ping {
		return err
	}
	return s.Ack(*command.Ack)
}

// publish publishes one message.
func (c *requester) publish(ctx context.Context, item *wire.PublishItem, reply *wire.Reply) error {
	if why := c.api.Sessions.Draining(); why != nil {
		return why
	}
	var published wire.Published
	err := c.api.call(ctx, c.asker, func() (err error) {
		published, err = c.api.takeItem(ctx, c.asker, item)
		return err
	})
	if err != nil {
		return err
	}
	c.api.Metrics.CommandPublishes.Inc()
	reply.Position, reply.Time = &published.Position, published.Time
	return nil
}

// change changes the session's subscriptions.
func (c *requester) change(ctx context.Context, s *session.Session, command *wire.Command, reply *wire.Reply) error {
	return c.api.call(ctx, c.asker, func() (err error) {
		if err := c.api.Limiter.Admit(limit.Requests, c.asker.Who); err != nil {
			return err
		}
		if err := c.api.allowAll(c.asker, command.Subscribe); err != nil {
			return err
		}
		reply.Positions, err = s.Change(command.Subscribe, command.Unsubscribe)
		return err
	})
}

// readCBORCommand reads a command in CBOR, as readCommand does.
func readCBORCommand(raw []byte) (*wire.Command, error) {
	object, kept, err := cbor.MapToJSON(raw, "publish")
	if err != nil {
		return nil, wire.NewProblem(wire.CodeInvalidRequest, `send {"subscribe":["a"],"ref":1} as a map, or another command of PROTOCOL.md`, "what was sent is not a map: %v", err)
	}
	command, err := readCommand(object)
	if err == nil && command.Publish != nil { // in another case, which encoding/json takes for the same
		err = wire.NewProblem(wire.CodeInvalidRequest, "see PROTOCOL.md for the members", `unknown field: write "publish"`)
	}
	if err != nil || kept["publish"] == nil {
		return command, err
	}
	if command.Publish, err = readCBORItem(kept["publish"]); err != nil {
		return &wire.Command{Ref: command.Ref}, err
	}
	return command, nil
}

// readCommand reads a command in JSON. With an error comes what there is of the
// command, if it is one at all, for its ref.
func readCommand(raw []byte) (*wire.Command, error) {
	if !bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) {
		return nil, noCommand()
	}
	command := &wire.Command{}
	err := decode(raw, command)
	switch {
	case err == nil:
		return command, nil
	case !json.Valid(raw):
		return nil, noCommand()
	}
	var named struct {
		Ref *uint64 `json:"ref"`
	}
	_ = json.Unmarshal(raw, &named) // whatever else is wrong with it
	return &wire.Command{Ref: named.Ref}, err
}

func noCommand() *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest, `send {"subscribe":["a"],"ref":1}, or another command of PROTOCOL.md`, "what was sent is not an object")
}
