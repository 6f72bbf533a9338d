package session

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
)

// A pace bounds how often a subscription takes from its topic (max_rate): what
// comes too early is left to the history, from which the newest message of each
// key is read when the time has come. Its session's mu guards it.
type pace struct {
	every time.Duration // immutable
	next  time.Time     // before which nothing is taken
	upTo  uint64        // where the taking that is under way ends; 0: none is
	timer *time.Timer   // fires at next; nil until something came too early
	armed bool          // it will
}

// newPace returns the pace of a subscription, or nil if it has none.
func newPace(every time.Duration) *pace {
	if every <= 0 {
		return nil
	}
	return &pace{every: every}
}

// offeredLocked notes that messages were offered.
func (p *pace) offeredLocked(sub *subscription, now time.Time) {
	if now.Before(p.next) {
		p.armLocked(sub, now)
		return
	}
	sub.markBehindLocked()
	sub.session.wakeLocked()
}

func (p *pace) armLocked(sub *subscription, now time.Time) {
	switch {
	case p.armed:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(p.next.Sub(now), func() { p.due(sub) })
	default:
		p.timer.Reset(p.next.Sub(now))
	}
	p.armed = true
}

// due is when the timer fires.
func (p *pace) due(sub *subscription) {
	s := sub.session
	s.mu.Lock()
	defer s.mu.Unlock()
	p.armed = false
	if !sub.dropped && !sub.behind {
		sub.markBehindLocked()
		s.wakeLocked()
	}
}

// waits reports whether something came too early and is still to be read. A
// subscription without a pace waits for nothing.
func (p *pace) waits() bool { return p != nil && (p.armed || p.upTo > 0) }

func (p *pace) stopLocked() {
	if p != nil && p.timer != nil {
		p.timer.Stop()
	}
}

// readLocked reads on in a taking, or begins one. It ends with what was there when
// it began: what came since is too early.
func (p *pace) readLocked(sub *subscription, limit broker.Limit, now time.Time) []*frame.Frame {
	how := sub.reading(limit)
	how.Conflate, how.UpTo = true, p.upTo
	frames, at, head := sub.joined.Read(nil, how, now)
	if p.upTo == 0 || at.Epoch != sub.epoch {
		p.upTo, p.next = head, now.Add(p.every)
	}
	sub.reachLocked(at)
	if sub.behind = at.Offset < p.upTo; !sub.behind {
		p.upTo = 0
		if at.Offset < head {
			p.armLocked(sub, now)
		}
	}
	return frames
}
