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
			h.fault(Loss, h.who, name, "nothing came of a topic that the pattern %s matches", h.pattern)
		}
	}
}

// joinMS is how long a topic may take at the end to reach who follows its pattern:
// the others are known to have everything, this one not to be there at all.
const joinMS = 5000

// adoptAllLocked takes over the positions of a new session: the pattern's, if there
// is one, those asked for, and those of other topics that the pattern matches.
func (h *handworker) adoptAllLocked(starts []wire.Start, positions []wire.Position) {
	if h.pattern == "" {
		h.adoptLocked(starts, positions)
		return
	}
	if len(positions) < 1+len(starts) || positions[0].Topic != h.pattern {
		h.fault(Protocol, h.who, h.pattern, "asked for the pattern and %d topics, and was told %v", len(starts), positions)
		return
	}
	first := h.told == ""
	h.told = positions[0].String()
	rest := positions[1+len(starts):]
	h.adoptLocked(starts, positions[1:1+len(starts)])
	for _, p := range rest {
		start := wire.StartAfter(p)
		if first {
			start = wire.Start{Topic: p.Topic}
		}
		h.adoptLocked([]wire.Start{start}, []wire.Position{p})
	}
}

// joinedLocked begins the trail of a topic that the pattern matches and that was made
// later: with its first message, so from the beginning of its epoch.
func (h *handworker) joinedLocked(f frame) *trail {
	if h.pattern == "" || !strings.HasPrefix(f.position.Topic, strings.TrimSuffix(h.pattern, "*")) {
		return nil
	}
	begin := wire.Position{Topic: f.position.Topic, Epoch: f.position.Epoch}
	if f.gap != "" {
		begin.Epoch = f.after.Epoch
	}
	h.trails[begin.Topic] = h.follow(h.who, wire.StartAfter(begin), begin, h.own)
	return h.trails[begin.Topic]
}
