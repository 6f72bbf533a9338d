package app

import (
	"context"
	"errors"
	"time"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/hook"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// commands carries out the commands of one two-way connection.
type commands struct {
	app    *App
	caller Caller
	binary bool // the commands are CBOR
}

// do is the Do of a transport.Duplex. A panic ends the connection, and not the daemon.
func (c *commands) do(ctx context.Context, s *session.Session, a transport.Action, resume transport.Resume) (reply *wire.Reply, later transport.Later, giveUp context.CancelFunc, err error) {
	defer c.app.recovered(&err)
	if a.Large != nil {
		return nil, c.doLarge(s, a.Large), nil, nil
	}
	command, err := request.CommandOf(a.Command, c.binary, c.app.MostNamed(), quickNames)
	switch {
	case errors.Is(err, request.ErrLong):
		return nil, c.doLarge(s, func() ([]byte, error) { return a.Command, nil }), nil, nil
	case command == nil: // not even a ref
		return nil, nil, nil, err
	}
	var held slot
	var change func(inTurn bool) error
	switch {
	case err != nil:
		err = c.app.Reject(c.caller, err)
	case command.Publish != nil:
		if reply, giveUp, err = c.publish(ctx, command, resume); giveUp != nil {
			return nil, nil, giveUp, nil
		}
	case c.waits(command, &held):
		return nil, c.later(s, command, errWaits), nil, nil
	default:
		reply, change, err = c.carryOut(ctx, s, command, &held)
	}
	if refusal, ok := errors.AsType[*limit.Refusal](err); ok && refusal.Hold > 0 {
		return nil, c.later(s, command, err), nil, nil
	}
	if change != nil {
		err = change(false)
	}
	return c.reply(command.Ref, reply, err), nil, nil, nil
}

// publish publishes without waiting. If the publish waits, it ends in resume, and giveUp is not
// nil. It is carried out although its client has left, since a client may close the connection
// right behind it; but a hook is no longer asked.
func (c *commands) publish(ctx context.Context, command *wire.Command, resume transport.Resume) (reply *wire.Reply, giveUp context.CancelFunc, err error) {
	p, m, err := c.app.beginItem(ctx, c.caller, command.Publish)
	if err != nil {
		return nil, nil, err
	}
	published, over, err := p.Send(m)
	if over {
		return c.published(published, err), nil, err
	}
	asks := p.to.Rule.Hook
	if !asks {
		p.ctx = context.WithoutCancel(p.ctx)
	}
	giveUp = p.Continue(func(published wire.Published, err error) {
		err = c.survive(func() error { return err })
		resume(func() (*wire.Reply, error) { return c.reply(command.Ref, c.published(published, err), err), nil })
	})
	if !asks {
		giveUp = func() {}
	}
	return nil, giveUp, nil
}

// published counts a publish, and returns the reply.
func (c *commands) published(published wire.Published, err error) *wire.Reply {
	if err == nil {
		c.app.cfg.Metrics.CommandPublishes.Inc()
	}
	return &wire.Reply{Position: &published.Position, Time: published.Time}
}

// doLarge is do for a command that takes long. It waits for a turn, and is decoded only if the
// rates allow it. A panic while it is decoded ends the connection. It counts as memory until its
// reply, because its change waits for a second turn.
func (c *commands) doLarge(s *session.Session, read transport.Large) transport.Later {
	return func(ctx context.Context) (transport.Finish, func()) {
		defer func() { c.caller.paid = false }()
		var command *wire.Command
		held := &memory.UnfinishedBytes{}
		err := c.app.inTurn(ctx, &c.caller, true, func() (err error) {
			defer c.app.recovered(&err)
			command, err = c.readLarge(read, held)
			return err
		})
		switch {
		case command == nil: // not even a ref
			_ = c.hold(held, 0) // fewer bytes are never refused
			return func() (*wire.Reply, error) { return nil, err }, func() {}
		case err == nil:
			err = errWaits
		}
		finish, release := c.later(s, command, err)(ctx)
		return func() (*wire.Reply, error) {
			defer func() { _ = c.hold(held, 0) }()
			return finish()
		}, release
	}
}

// hold counts the bytes of a command.
func (c *commands) hold(held *memory.UnfinishedBytes, bytes int) error {
	return held.Set(c.app.cfg.Broker.Memory(), int64(bytes), c.caller.Who)
}

// readLarge reads a large command, and returns what read does. If a rate or the memory refuses the
// command, it is not decoded.
func (c *commands) readLarge(read transport.Large, held *memory.UnfinishedBytes) (*wire.Command, error) {
	raw, err := read()
	if err != nil {
		return nil, err
	}
	if err := c.hold(held, len(raw)); err != nil {
		ref, _ := request.Peek(raw, c.binary)
		return &wire.Command{Ref: ref}, err
	}
	if limits := c.app.cfg.Limiter; limits.Limits(limit.Requests) || limits.Limits(limit.Publishes) {
		ref, publishes := request.Peek(raw, c.binary)
		kind := limit.Requests
		if publishes {
			kind = limit.Publishes
		}
		if err := limits.Admit(kind, 1, c.caller.Who); err != nil {
			return &wire.Command{Ref: ref}, err
		}
		c.caller.paid = true
	}
	command, err := request.CommandOf(raw, c.binary, c.app.MostNamed(), allNames)
	if command != nil && err != nil {
		err = c.app.Reject(c.caller, err)
	}
	return command, err
}

// errWaits says that a command is not carried out yet.
var errWaits = errors.New("the command waits")

// later returns the rest of a command that ended with err: it has to wait, or its refusal is
// delayed. A change that takes long waits for its turn while frames are written. It keeps the turn
// only if it can have the output at once, because its client may not read.
func (c *commands) later(s *session.Session, command *wire.Command, err error) transport.Later {
	return func(ctx context.Context) (transport.Finish, func()) {
		var reply *wire.Reply
		var change func(inTurn bool) error
		inTurn, turns := false, c.app.cfg.Limiter.Turns()
		release := func() {
			if inTurn {
				inTurn = false
				turns.Leave()
			}
		}
		if errors.Is(err, errWaits) {
			// A publish is carried out although its client has left, since a client may close the
			// connection right behind it; but a hook is no longer asked.
			lasting := ctx
			if p := command.Publish; p != nil && !c.app.cfg.Broker.Route(p.Topic).Rule.Hook {
				lasting = context.WithoutCancel(ctx)
			}
			err = c.survive(func() (err error) {
				reply, change, err = c.carryOut(lasting, s, command, &slot{})
				return err
			})
		}
		if change != nil && takesLong(command.Subscribe, command.Unsubscribe) {
			err = turns.Enter(ctx, c.caller.Who.Client())
			inTurn = err == nil
		}
		if refusal, ok := errors.AsType[*limit.Refusal](err); ok {
			c.app.cfg.Limiter.Hold(ctx, refusal)
		}
		return func() (*wire.Reply, error) {
			defer release()
			if change != nil && err == nil {
				err = c.survive(func() error { return change(inTurn) })
			}
			return c.reply(command.Ref, reply, err), nil
		}, release
	}
}

// survive calls do, and returns the problem internal if it panics: that fails the command only.
func (c *commands) survive(do func() error) (err error) {
	defer func() {
		if errors.Is(err, errPanicked) {
			err = internal()
		}
	}()
	defer c.app.recovered(&err)
	return do()
}

// reply returns the reply to send, or nil.
func (c *commands) reply(ref *uint64, reply *wire.Reply, err error) *wire.Reply {
	if err != nil {
		reply = &wire.Reply{Problem: c.app.Problem(err)}
		if reply.Problem == nil {
			return nil // the client has left
		}
	} else if ref == nil {
		return nil
	}
	reply.Ref = ref
	return reply
}

// carryOut carries out a command and returns its reply, but for the ref. It leaves a
// change of subscriptions to the caller, who makes it, once, when nothing can be written
// before the reply. held may be the slot of the change.
func (c *commands) carryOut(ctx context.Context, s *session.Session, command *wire.Command, held *slot) (reply *wire.Reply, change func(inTurn bool) error, err error) {
	defer held.end() // the change may have to wait until the client reads
	reply = &wire.Reply{}
	switch {
	case command.Publish != nil:
		var published wire.Published
		p, m, err := c.app.beginItem(ctx, c.caller, command.Publish)
		if err == nil {
			published, err = p.Await(m)
		}
		return c.published(published, err), nil, err
	case command.Ping || command.Ack != nil:
		// Each counts as a poll. The session permits both, whatever became of the
		// connection's token.
		if err = c.app.cfg.Limiter.Admit(limit.Polls, 1, c.caller.Who); err == nil && !command.Ping {
			err = s.Ack(*command.Ack)
		}
	case command.Auth != "":
		reply.ExpiresMS, err = c.authenticate(ctx, s, command.Auth)
	default:
		r := wire.ChangeRequest{Add: command.Subscribe, Remove: command.Unsubscribe}
		if err = c.app.admit(ctx, &c.caller, limit.Requests); err == nil {
			err = mayChange(&c.caller, s)
		}
		if err == nil {
			err = c.app.maySubscribe(ctx, &c.caller, held, hook.Subscribing{Topics: r.Add})
		}
		change = func(inTurn bool) (err error) {
			reply.Positions, err = c.app.change(ctx, &c.caller, s, r, inTurn)
			reply.Unfollowed = s.Unfollowed()
			return err
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return reply, change, nil
}

// waits reports whether a command, other than a publish, may wait: for its turn, for the
// application, for the check of a token, or for a slot, which it otherwise takes.
func (c *commands) waits(command *wire.Command, held *slot) bool {
	switch {
	case command.Ping || command.Ack != nil:
		return false
	case command.Auth != "" || takesLong(command.Subscribe, command.Unsubscribe) || c.app.cfg.Authorize.Selects(command.Subscribe):
		return true
	}
	held.call, held.held, held.err = c.app.cfg.Limiter.TryBegin(c.caller.Who, true)
	return !held.held && held.err == nil
}

// authenticate gives the connection and its session a new token of the same principal. It
// returns the time until the session's token expires, in milliseconds; 0: it does not.
func (c *commands) authenticate(ctx context.Context, s *session.Session, token string) (expiresMS int64, err error) {
	fresh := Caller{Credentials: auth.Credentials{Token: token}, Who: c.caller.Who, paid: c.caller.paid}
	if err := c.app.admit(ctx, &fresh, limit.Requests); err != nil {
		return 0, err
	}
	if err := mayChange(&fresh, s); err != nil {
		return 0, err
	}
	if err := c.app.renew(ctx, &fresh, s); err != nil {
		return 0, err
	}
	if c.caller.grant == auth.Ticket || fresh.grant.Renews(c.caller.grant) || c.app.checkGrant(c.caller.grant) != nil {
		c.caller = fresh
	}
	return s.Grant().ExpiresMS(time.Now()), nil
}
