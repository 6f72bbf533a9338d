package soak

import (
	"context"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// judgePattern finds fault with topics of the pattern of which nothing ever came. It
// is for the end, when every trail that there is has everything.
func (h *handworker) judgePattern(ctx context.Context) {
	if h.told == "" || ctx.Err() == nil || !h.settled.Load() {
		return
	}
	now, epoch := h.ledger.since(time.Now()), h.ledger.epoch(h.reign.epoch)
	for topic, name := range h.ledger.names {
		if h.trails[name] == nil && h.ledger.has(topic, epoch, now-joinMS) {
			h.fault(Loss, h.who, name, "nothing arrived of a topic that matches the pattern %s", h.pattern)
		}
	}
}

// joinMS is how long a topic may take at the end to reach who follows its pattern:
// the others are known to have everything, this one not to be there at all.
const joinMS = 5000

// adoptAllLocked takes over the positions of a new session: the pattern's, if there
// is one, those asked for, and those of other topics that the pattern matches.
func (h *handworker) adoptAllLocked(starts []wire.Start, positions []wire.Position, asked time.Time) {
	if h.pattern == "" {
		h.adoptLocked(starts, positions, asked)
		return
	}
	if len(positions) < 1+len(starts) || positions[0].Topic != h.pattern {
		h.fault(Protocol, h.who, h.pattern, "asked for the pattern and %d topics, but got the positions %v", len(starts), positions)
		return
	}
	clear(h.anew)
	first := h.told == ""
	h.told = positions[0].String()
	rest := positions[1+len(starts):]
	h.adoptLocked(starts, positions[1:1+len(starts)], asked)
	for _, p := range rest {
		start := wire.StartAfter(p)
		if first {
			start = wire.Start{Topic: p.Topic}
		}
		h.adoptLocked([]wire.Start{start}, []wire.Position{p}, asked)
	}
}

// joinedLocked begins the trail of a topic that the pattern matches and that was made
// later: with its first message, so from the beginning of its epoch.
func (h *handworker) joinedLocked(s *stay, f frame) *trail {
	if h.pattern == "" || !strings.HasPrefix(f.position.Topic, strings.TrimSuffix(h.pattern, "*")) {
		return nil
	}
	begin := wire.Position{Topic: f.position.Topic, Epoch: f.position.Epoch}
	if h.evicted {
		begin.Offset = f.position.Offset - 1 // what went before went with its topic, and was told of
	}
	if f.gap != "" {
		begin.Epoch = f.after.Epoch
	}
	h.trails[begin.Topic] = h.follow(h.who, wire.StartAfter(begin), begin, h.own, s.asked)
	return h.trails[begin.Topic]
}

// beginsAnewLocked reports whether the daemon answers that a topic of the pattern is
// not there any more: whatever comes of it is new. If it was of another epoch, the
// pattern's gap is to say so.
func (h *handworker) beginsAnewLocked(t *trail, p wire.Position) bool {
	if h.pattern == "" || p.Offset != 0 {
		return false
	}
	if p.Epoch != t.position().Epoch {
		h.anew[t] = p
	}
	return true
}

// patternGapLocked takes a gap of the pattern itself.
func (h *handworker) patternGapLocked(a arrival, c wire.Content) {
	if a != isNew {
		h.staged.repeats.Add(1)
		return
	}
	now := time.Now()
	fault := func(kind Kind, format string, args ...any) { h.fault(kind, h.who, h.pattern, format, args...) }
	switch g := c.Gap; {
	case g == nil:
		fault(Protocol, "a message has the pattern as its topic: %v", c.Message.Position)
		return
	case g.After.String() != h.told:
		fault(GapRange, "the gap %s (%v, %v] does not begin where the subscriber is, at %s", g.Reason, g.After, g.Position, h.told)
	case g.Reason == wire.GapRestarted && g.After.Epoch == g.Position.Epoch:
		fault(RestartedMore, "the gap (%v, %v] says restarted within one epoch", g.After, g.Position)
	case g.Reason == wire.GapEvicted && g.After.Epoch == g.Position.Epoch && g.After.Offset < g.Position.Offset:
		h.evicted = true
	case g.Reason != wire.GapRestarted:
		fault(GapReason, "a pattern cannot have the gap %s (%v, %v]", g.Reason, g.After, g.Position)
	}
	h.told = c.Gap.Position.String()
	for t, p := range h.anew {
		if at := t.position(); at.Epoch != p.Epoch {
			t.gap(&wire.Gap{Topic: p.Topic, Reason: c.Gap.Reason, After: at, Position: p}, h.ledger.since(now))
		}
	}
	clear(h.anew)
}
