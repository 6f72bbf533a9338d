package broker

import (
	"sync"
	"time"
)

// A note says that a topic got its first subscriber, or has lost the last one.
type note struct {
	topic    string
	occupied bool
	at       time.Time
}

// occupancy notes which topics with the rule Watched get their first subscriber or lose the
// last one, until Occupancies takes the notes. Topics without the rule cost nothing. It is
// bounded: a topic has one note at a time, and what exceeds the bounds is counted as lost.
type occupancy struct {
	mu     sync.Mutex           // guards the fields below; taken after a topic's lock, last
	vacant map[string]time.Time // topics that were told as occupied, and since when they have no subscriber
	notes  []note               // not yet taken
	lost   int                  // notes beyond the bounds, not yet taken
}

// maxNotes bounds vacant and the notes.
const maxNotes = 100_000

// add notes that a topic got its first subscriber, or lost the last one. A topic that is
// occupied again before it was told as vacant is not told at all.
func (o *occupancy) add(topic string, occupied bool, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, vacant := o.vacant[topic]
	switch {
	case occupied && vacant:
		delete(o.vacant, topic)
	case !occupied && len(o.vacant) < maxNotes:
		if o.vacant == nil {
			o.vacant = make(map[string]time.Time)
		}
		o.vacant[topic] = now
	default:
		o.tellLocked(note{topic, occupied, now})
	}
}

func (o *occupancy) tellLocked(told note) {
	if len(o.notes) < maxNotes {
		o.notes = append(o.notes, told)
	} else {
		o.lost++
	}
}

// Occupancies calls changed for what has changed since the last call, and returns how many
// changes were lost because there were too many. A topic counts as vacant after it has had
// no subscriber for grace. Call it regularly while any topic is Watched.
func (b *Broker) Occupancies(now time.Time, grace time.Duration, changed func(topic string, occupied bool, at time.Time)) (lost int) {
	o := &b.occupancy
	o.mu.Lock()
	for topic, since := range o.vacant {
		if now.Sub(since) >= grace {
			delete(o.vacant, topic)
			o.tellLocked(note{topic, false, since})
		}
	}
	notes, lost := o.notes, o.lost
	o.notes, o.lost = nil, 0
	o.mu.Unlock()
	for _, n := range notes {
		changed(n.topic, n.occupied, n.at)
	}
	return lost
}

// noteOccupancyLocked notes that the topic got its first subscriber, or lost the last one,
// if its rule says so.
func (t *topic) noteOccupancyLocked(occupied bool) {
	if t.rule.Load().Watched {
		t.broker.occupancy.add(t.name, occupied, time.Now())
	}
}
