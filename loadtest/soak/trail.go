package soak

import (
	"fmt"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A trail is what one subscriber sees of one topic, from where it began until it
// leaves, over every connection, session and way of asking. What can be judged at
// once is; the rest needs the ledger, and comes at the end.
//
// Messages in a row make one step, so that a quiet trail costs the same whatever
// its length. It is safe for concurrent use.
type trail struct {
	who    string     // immutable
	topic  int        // immutable
	name   string     // immutable: the topic's
	start  wire.Start // immutable: what was asked for
	from   place      // immutable: what was answered
	asked  int32      // immutable: when
	told   int32      // immutable: when it was answered
	ledger *ledger    // immutable
	own    int        // the publisher whose messages do not come; noOwn for none

	mu      sync.Mutex // guards the fields below
	epochs  epochCache
	at      wire.Position // of the last frame, or beyond it past messages of its own that were left out
	last    wire.Position // of the last frame, or where it began
	steps   []step
	again   []step // messages that were had, and came again as gaps
	live    bool   // it is to have everything at the end
	counted counts
}

// A step is a run of messages without a number left out, or a gap.
type step struct {
	gap      wire.GapReason // empty for a run
	from, to place          // the first and last of a run; a gap's after and position
	when     int32          // a gap's arrival
}

// counts are what trails have seen.
type counts struct {
	messages int64
	gaps     map[wire.GapReason]int64
}

// An epochCache spares the ledger's lock.
type epochCache struct {
	name  string
	index epochIndex
}

// noOwn is for a subscriber that gets everyone's messages.
const noOwn = -1

// newTrail begins at the position that the daemon was asked for at asked, and answered at told.
func newTrail(l *ledger, who string, start wire.Start, answered wire.Position, asked, told time.Time) *trail {
	t := &trail{
		who: who, topic: l.index[answered.Topic], name: answered.Topic, start: start, own: noOwn, asked: l.since(asked), told: l.since(told), ledger: l,
		at: answered, last: answered, live: true, counted: counts{gaps: map[wire.GapReason]int64{}},
	}
	t.from = t.place(answered)
	if start.From == wire.FromPosition && start.Position() != answered {
		t.fault(Protocol, t.told, "asked to resume after %v, but got position %v", start, answered)
	}
	return t
}

func (t *trail) place(p wire.Position) place {
	if t.epochs.name != p.Epoch {
		t.epochs.name, t.epochs.index = p.Epoch, t.ledger.epoch(p.Epoch)
	}
	return newPlace(t.epochs.index, p.Offset)
}

func (t *trail) fault(kind Kind, at int32, format string, args ...any) {
	t.ledger.faults.add(Fault{Kind: kind, Who: t.who, Topic: t.name, AtMS: int64(at), Detail: fmt.Sprintf(format, args...)})
}

// frame notes a message or gap that the subscriber counts as new.
func (t *trail) frame(c wire.Content, now time.Time) {
	if c.Gap != nil {
		t.gap(c.Gap, t.ledger.since(now))
		return
	}
	if id, ok := t.ledger.delivered(t.who, c.Message); ok {
		if id.publisher() == t.own {
			t.fault(Echo, t.ledger.since(now), "%v is its own message, but arrived at %v", id, c.Message.Position)
		}
		t.message(c.Message.Position, t.ledger.since(now))
	}
}

func (t *trail) message(p wire.Position, now int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counted.messages++
	switch {
	case p.Epoch != t.at.Epoch:
		t.fault(NotRestarted, now, "%v follows %v without a gap", p, t.at)
	case p.Offset > t.at.Offset:
	case t.hadLocked(p):
		t.fault(Double, now, "%v arrived again, after %v", p, t.at)
		return
	default:
		t.fault(Disorder, now, "%v arrived after %v", p, t.at)
		return
	}
	t.at, t.last = p, p
	here := t.place(p)
	if n := len(t.steps); n > 0 && t.steps[n-1].gap == "" && t.steps[n-1].to+1 == here {
		t.steps[n-1].to = here
		return
	}
	t.steps = append(t.steps, step{from: here, to: here, when: now})
}

// hadLocked reports whether the message came before.
func (t *trail) hadLocked(p wire.Position) bool {
	here := t.place(p)
	for i := len(t.steps) - 1; i >= 0; i-- {
		if s := &t.steps[i]; s.gap == "" && s.from <= here && here <= s.to {
			return true
		}
	}
	return false
}

func (t *trail) gap(g *wire.Gap, now int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counted.gaps[g.Reason]++
	was := t.at
	switch {
	case g.Reason == wire.GapRestarted && g.After.Epoch != was.Epoch && g.Position.Epoch == was.Epoch:
		t.fault(RestartedMore, now, "the gap (%v, %v] arrived again, at %v", g.After, g.Position, was)
		return
	case g.Reason == wire.GapRestarted && g.Position.Epoch == was.Epoch:
		t.fault(RestartedMore, now, "the gap (%v, %v] says restarted within one epoch", g.After, g.Position)
	case g.After != was && !t.mayBeginLocked(g.After):
		t.fault(GapRange, now, "the gap %s (%v, %v] does not begin where the subscriber is, at %v", g.Reason, g.After, g.Position, was)
	case g.Position.Epoch != was.Epoch && g.Reason != wire.GapRestarted:
		t.fault(NotRestarted, now, "the gap %s (%v, %v] leads to another epoch", g.Reason, g.After, g.Position)
	case g.Position.Epoch != was.Epoch && !olderEpoch(was.Epoch, g.Position.Epoch):
		t.fault(Epoch, now, "the gap (%v, %v] leads back to an older epoch", g.After, g.Position)
	case g.Position.Epoch == was.Epoch && g.Position.Offset <= was.Offset:
		t.fault(GapRange, now, "the gap %s (%v, %v] covers nothing, or goes back", g.Reason, g.After, g.Position)
	}
	t.steps = append(t.steps, step{gap: g.Reason, from: t.place(t.last), to: t.place(g.Position), when: now})
	t.at, t.last = g.Position, g.Position
}

// mayBeginLocked reports whether a gap may begin at a position where the subscriber is not: past
// messages of its own that were left out, of which it was told in a frame that did not arrive.
func (t *trail) mayBeginLocked(after wire.Position) bool {
	return t.own != noOwn && after.Epoch == t.last.Epoch && after.Offset >= t.last.Offset
}

// moved moves the position past messages of its own that were left out. What lies between is judged
// as what lies between two messages.
func (t *trail) moved(to wire.Position, now int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own == noOwn {
		t.fault(Protocol, now, "moved to %v, but no message of its own is left out", to)
	}
	if to.Epoch == t.at.Epoch && to.Offset > t.at.Offset {
		t.at = to
	}
}

// became notes that a message, which was had and not acked, came again as a gap.
func (t *trail) became(g *wire.Gap, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.ledger.since(now)
	if g.After.Epoch != g.Position.Epoch || g.After.Offset >= g.Position.Offset {
		t.fault(GapRange, at, "the gap %s (%v, %v] covers nothing, or goes back", g.Reason, g.After, g.Position)
	}
	t.again = append(t.again, step{gap: g.Reason, from: t.place(g.After), to: t.place(g.Position), when: at})
}

// position returns where the subscriber is.
func (t *trail) position() wire.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// leave ends the trail: what comes later is nothing that it misses.
func (t *trail) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live = false
}

func (t *trail) isLive() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// addTo adds the trail's gaps to all, and returns its messages.
func (t *trail) addTo(all map[wire.GapReason]int64) (messages int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, n := range t.counted.gaps {
		all[reason] += n
	}
	return t.counted.messages
}

// complete reports whether the trail has all of its topic that the ledger knows.
func (t *trail) complete(epoch string) bool {
	at := t.position()
	return at.Epoch == epoch && at.Offset >= t.ledger.head(t.topic, t.ledger.epoch(epoch))
}
