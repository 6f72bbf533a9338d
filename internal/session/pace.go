package session

import "time"

// A pace limits how often a subscription reads its topic (max_rate). Messages that come too
// early stay in the history. When the time has come, a round reads the newest message of
// each key. The session's mu guards it.
type pace struct {
	every time.Duration // immutable
	next  time.Time     // when the next round may begin
	upTo  uint64        // where the present round ends; 0: there is none
	timer *time.Timer   // fires at next; nil until a message came too early
	armed bool          // timer runs
}

// paceBytes is what a pace takes, with its timer.
const paceBytes = 224

// readLocked notes that the round has read up to the subscription's cursor, and reports
// whether it continues. A round that begins ends at the present head.
func (p *pace) readLocked(sub *subscription, head uint64, now time.Time) (more bool) {
	if p.upTo == 0 {
		p.upTo, p.next = head, now.Add(p.every)
	}
	if sub.cursor < p.upTo {
		return true
	}
	p.upTo = 0
	if sub.cursor < head {
		p.armLocked(sub, now)
	}
	return false
}

// armLocked begins the next round when its time has come.
func (p *pace) armLocked(sub *subscription, now time.Time) {
	switch {
	case p.armed:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(p.next.Sub(now), func() {
			sub.session.mu.Lock()
			defer sub.session.mu.Unlock()
			p.armed = false
			sub.catchUpLocked()
		})
	default:
		p.timer.Reset(p.next.Sub(now))
	}
	p.armed = true
}

// waits reports whether messages that came too early are still to be read. A nil pace
// waits for nothing.
func (p *pace) waits() bool { return p != nil && (p.armed || p.upTo > 0) }
