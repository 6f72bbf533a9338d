package lane

import (
	"context"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A pending is a command that may have to wait for long. It is carried out in a
// goroutine of its own, without the connection's lock: frames go on, and the
// connection may end, which it is told, and then nobody wants its reply. No other
// command is carried out, nor are more read than came with it, before its reply is
// written.
type pending struct {
	giveUp context.CancelFunc // immutable

	over  bool // guarded by the connection's mu, as is reply
	reply *wire.Reply
}

// carryOutLater has a command carried out while the connection goes on.
func (c *conn) carryOutLater(command transport.Later) {
	ctx, giveUp := context.WithCancel(c.lane.life)
	w := &pending{giveUp: giveUp}
	c.duplex.pending = w
	c.lane.running.Go(func() {
		defer giveUp()
		reply := command(ctx)
		c.mu.Lock()
		defer c.unlock()
		w.over, w.reply = true, reply
		c.proceed()
	})
}

// reply ends the wait for a command that was carried out.
func (c *conn) reply() {
	reply := c.duplex.pending.reply
	c.duplex.pending = nil
	c.takeBack()
	if reply != nil && !c.duplex.over && !c.failed {
		_ = c.write(c.format.AppendReply(nil, reply)) // goOn looks whether it failed
	}
}

// giveUp tells the command that waits, if there is one, that nobody does for it.
func (d *duplex) giveUp() {
	if d.pending != nil {
		d.pending.giveUp()
	}
}
