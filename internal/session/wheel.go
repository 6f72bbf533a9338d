package session

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A wheel holds the sessions by id and visits each when it is due. It has parts so
// that two cores rarely need the same lock. A part is a ring of slots, one for each grain
// of time: a session is in the slot of its next visit. With a timer for each session
// every timer would wake a thread, and visits to all sessions every second cost a quarter
// of what 15,000 idle sessions cost. All methods may be called concurrently.
type wheel struct {
	seed   maphash.Seed  // immutable
	begun  time.Time     // when slot 0 began; immutable
	grain  time.Duration // length of a slot; immutable
	at     atomic.Int64  // newest slot that visitDue has come to
	visits sync.Mutex    // held by visitDue
	first  int           // part that visitDue begins with next; guarded by visits
	parts  [64]part
}

type part struct {
	mu    sync.RWMutex // guards the fields below and Session.link; after a session's lock
	byID  map[string]*Session
	slots [wheelSlots]link // heads of rings
}

// maxAhead is how many slots ahead a visit can be; later ones come early.
const maxAhead = 64

// wheelSlots has one more for the slot that visitDue has come to, and one because a
// visit can be due within a slot.
const wheelSlots = maxAhead + 2

// A link puts a session into the ring of its slot.
type link struct {
	prev, next *link
	session    *Session
}

// newWheel returns an empty wheel that visits each session at least once in every.
func newWheel(every time.Duration, now time.Time) *wheel {
	w := &wheel{seed: maphash.MakeSeed(), begun: now, grain: max(1, every/maxAhead)}
	for i := range w.parts {
		p := &w.parts[i]
		p.byID = make(map[string]*Session)
		for j := range p.slots {
			p.slots[j].prev, p.slots[j].next = &p.slots[j], &p.slots[j]
		}
	}
	return w
}

// get returns the session of that id, or nil. It allocates nothing.
func (w *wheel) get(id []byte) *Session {
	p := &w.parts[maphash.Bytes(w.seed, id)%uint64(len(w.parts))]
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byID[string(id)]
}

func (w *wheel) part(id string) *part {
	return &w.parts[maphash.String(w.seed, id)%uint64(len(w.parts))]
}

// put adds a session, which visitDue visits next.
func (w *wheel) put(s *Session) {
	p := w.part(s.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byID[s.id] = s
	s.link.session = s
	w.scheduleLocked(p, s, w.begun)
}

func (w *wheel) remove(s *Session) {
	p := w.part(s.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, s.id)
	s.link.unlink()
}

func (w *wheel) slotOf(t time.Time) int64 { return int64(t.Sub(w.begun) / w.grain) }

// visitBy moves the visit of a session forward to the given time, if it is later.
func (w *wheel) visitBy(s *Session, when time.Time) {
	// Fast path: the visit comes soon enough.
	if w.slotOf(when) >= s.slot.Load() {
		return
	}
	p := w.part(s.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID[s.id] == s {
		w.scheduleLocked(p, s, when)
	}
}

// scheduleLocked moves a session to the slot of a time, or to the farthest before it.
func (w *wheel) scheduleLocked(p *part, s *Session, when time.Time) {
	at := w.at.Load()
	slot := min(max(w.slotOf(when), at), at+maxAhead)
	s.slot.Store(slot)
	head := &p.slots[slot%wheelSlots]
	s.link.unlink()
	s.link.prev, s.link.next = head.prev, head
	head.prev.next, head.prev = &s.link, &s.link
}

func (l *link) unlink() {
	if l.prev != nil {
		l.prev.next, l.next.prev = l.next, l.prev
		l.prev, l.next = nil, nil
	}
}

// visitDue calls visit for every session that is due, without holding a lock. visit
// returns when the next visit is due, unless visitBy has set an earlier time meanwhile.
// Each call begins with the next part: visits may share what is not enough for all.
func (w *wheel) visitDue(now time.Time, visit func(*Session) (next time.Time)) {
	w.visits.Lock()
	defer w.visits.Unlock()
	from := w.at.Load()
	to := max(from, w.slotOf(now))
	w.at.Store(to) // before the visits: what is scheduled from now on waits for the next call
	from = max(from, to-wheelSlots+1)
	var due []*Session
	w.first = (w.first + 1) % len(w.parts)
	for i := range w.parts {
		p := &w.parts[(w.first+i)%len(w.parts)]
		due = due[:0]
		p.mu.Lock()
		for slot := from; slot <= to; slot++ {
			for head := &p.slots[slot%wheelSlots]; head.next != head; {
				s := head.next.session
				s.link.unlink()
				s.slot.Store(math.MaxInt64) // so that visitBy schedules it before visit returns
				due = append(due, s)
			}
		}
		p.mu.Unlock()
		for _, s := range due {
			next := visit(s)
			p.mu.Lock()
			if p.byID[s.id] == s && w.slotOf(next) < s.slot.Load() { // visitBy may have been called meanwhile
				w.scheduleLocked(p, s, next)
			}
			p.mu.Unlock()
		}
	}
}

// each calls f for every session, without holding a lock.
func (w *wheel) each(f func(*Session)) {
	var some []*Session
	for i := range w.parts {
		p := &w.parts[i]
		some = some[:0]
		p.mu.RLock()
		for _, s := range p.byID {
			some = append(some, s)
		}
		p.mu.RUnlock()
		for _, s := range some {
			f(s)
		}
		clear(some)
	}
}
