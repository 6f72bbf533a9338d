package soak

import (
	"fmt"
	"math"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A judge decides over one topic's trails when all is over.
//
// Of every trail it asks: is each message that the ledger has between its beginning
// and its end either received or within a gap; and is each gap one that had to be:
// over messages that the history can have let go of by then, for a reason that
// there was. A trail that is live must reach the newest message.
type judge struct {
	ledger *ledger
	topic  int
	books  map[epochIndex]*book
	past   past
	newest epochIndex // the epoch that live trails must be in
}

// judgeTopic finds the faults of the topic's trails. epoch is the daemon's last.
func judgeTopic(l *ledger, r *retentions, topic int, epoch epochIndex, trails []*trail) {
	j := &judge{ledger: l, topic: topic, books: l.close(topic), newest: epoch}
	j.past = past{retentions: r, deletions: l.topics[topic].deletions}
	j.past.unseen, j.past.mortal = l.unseen(topic)
	for _, t := range trails {
		j.trail(t)
	}
}

// unseen returns the bytes of the messages that nobody knows of whether they were
// taken, and whether one of them has a life of its own.
func (l *ledger) unseen(topic int) (bytes int64, mortal bool) {
	t := &l.topics[topic]
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.unknown {
		f := l.payloads.formOf(id)
		bytes += int64(f.held())
		mortal = mortal || f.ttl > 0
	}
	return bytes, mortal
}

func (j *judge) trail(t *trail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j.beginning(t)
	j.undeleted(t)
	at := t.from
	for _, s := range t.steps {
		if s.gap != "" {
			j.gap(t, s)
		} else {
			j.hole(t, at, s)
		}
		at = s.to
	}
	for _, s := range t.again {
		j.gap(t, s)
	}
	if t.live {
		j.ending(t, at)
	}
}

// beginning judges the position at which the trail was told to begin. Now must not
// be ahead of what was published before the answer, nor oldest hide what was held.
func (j *judge) beginning(t *trail) {
	if t.start.From == wire.FromPosition {
		return
	}
	b := j.books[t.from.epoch()]
	first, end := b.between(0, t.from.offset())
	for k := first; k < end; k++ {
		switch {
		case b.times[k] > t.told+slackMS:
			t.fault(Loss, t.told, "began after %v, but missed %v, which was published later", t.start, b.ids[k])
			return
		case t.start.From == wire.FromOldest && j.past.lost(b, k, t.told) == 0:
			t.fault(Loss, t.told, "asked for the oldest message and began after offset %d, but history still had offset %d", t.from.offset(), b.offsets[k])
			return
		}
	}
}

// undeleted judges that deletions last: a subscriber that asks after one gets no message from
// before it.
func (j *judge) undeleted(t *trail) {
	for _, d := range j.past.deletions {
		if !d.done || d.to+slackMS > t.asked {
			continue
		}
		for _, s := range t.steps {
			b := j.books[s.to.epoch()]
			if first, end := b.between(s.from.offset()-1, s.to.offset()); s.gap == "" && first < end && b.times[first] < d.from-slackMS {
				t.fault(Undeleted, s.when, "%v, accepted at %d ms, arrived though the topic was deleted at %d ms and asked for at %d ms", b.ids[first], b.times[first], d.to, t.asked)
				return
			}
		}
	}
}

// hole judges what lies between a trail's place and the run that follows.
func (j *judge) hole(t *trail, at place, run step) {
	if at.epoch() != run.from.epoch() {
		return // was told at once
	}
	b := j.books[at.epoch()]
	if first, n := b.missing(at.offset(), run.from.offset()-1, t.own); n > 0 {
		t.fault(Loss, run.when, "%d messages between offsets %d and %d never arrived; the first is %v, accepted at %d ms",
			n, at.offset(), run.from.offset(), b.ids[first], b.times[first])
	}
}

// ending judges what lies after a live trail's place.
func (j *judge) ending(t *trail, at place) {
	b := j.books[j.newest]
	if at.epoch() != j.newest {
		if b != nil {
			t.fault(NotRestarted, b.times[0], "is still at %v, and got no gap frame for epoch %s", t.at, j.ledger.epochName(j.newest))
		}
		return
	}
	if first, n := b.missing(at.offset(), math.MaxUint64, t.own); n > 0 {
		t.fault(Loss, b.times[first], "the last %d messages never arrived; the subscriber is at %v", n, t.at)
	}
}

// gap judges what a gap covers, and why. It begins at the last frame, so it covers
// the subscriber's own messages that were passed over since, too.
func (j *judge) gap(t *trail, s step) {
	after := s.from.offset()
	if s.from.epoch() != s.to.epoch() {
		after = 0
	}
	b := j.books[s.to.epoch()]
	first, end := b.between(after, s.to.offset())
	var why cause
	for k := first; k < end; k++ {
		lost := j.past.lost(b, k, s.when)
		if lost == 0 && s.gap != wire.GapConflated && b.ids[k].publisher() != t.own {
			t.fault(NeedlessGap, s.when, "the gap %s covers offset %d, accepted at %d ms, which the history still had", j.describe(s), b.offsets[k], b.times[k])
			return
		}
		why |= lost
	}
	if s.gap == wire.GapRestarted {
		return
	}
	if first < end || s.gap == wire.GapDeleted {
		j.reason(t, s, b, first, why)
	} else if !j.mayBeEmpty(s, b, first) {
		t.fault(NeedlessGap, s.when, "the gap %s covers no message", j.describe(s))
	}
}

func (j *judge) describe(s step) string {
	return fmt.Sprintf("%s (%d, %d]", s.gap, s.from.offset(), s.to.offset())
}

// mayBeEmpty reports whether a gap may cover nothing that the ledger knows of: it
// may cover a message whose publisher got no answer, or be of a topic that was
// forgotten and made again, when there was a time with nothing held. next is the index of the first message after the gap.
func (j *judge) mayBeEmpty(s step, b *book, next int) bool {
	if j.past.unseen > 0 {
		return true
	}
	if s.gap != wire.GapEvicted {
		return false
	}
	return b == nil || next == 0 || j.past.lost(b, next-1, s.when)&(byAge|byDeletion) != 0
}

// reason judges whether a gap's reason can be the true one. Where a range was lost
// for more than one reason, one is told.
func (j *judge) reason(t *trail, s step, b *book, first int, why cause) {
	switch s.gap {
	case wire.GapExpired, wire.GapEvicted:
		want := byAge
		if s.gap == wire.GapEvicted {
			want = byOthers
		}
		// What was sent and not acked is announced with the reason of what the history
		// let go of last.
		for k := first; why&want == 0 && k < len(b.offsets); k++ {
			lost := j.past.lost(b, k, s.when)
			if lost == 0 {
				break
			}
			why |= lost
		}
		if why&want == 0 && !(j.past.mortal && s.gap == wire.GapExpired) {
			t.fault(GapReason, s.when, "the gap %s cannot be for that reason", j.describe(s))
		}
	case wire.GapDeleted:
		if !j.deletedBefore(s.when) {
			t.fault(GapReason, s.when, "the gap %s, but the topic was not deleted", j.describe(s))
		}
	case wire.GapSlow: // whoever reads late is slow
	default:
		t.fault(GapReason, s.when, "the gap %s has a reason that the soak did not cause", j.describe(s))
	}
}

func (j *judge) deletedBefore(then int32) bool {
	for _, d := range j.past.deletions {
		if d.from <= then+slackMS {
			return true
		}
	}
	return false
}
