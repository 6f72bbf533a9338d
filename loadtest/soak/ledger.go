package soak

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A ledger is what the daemon has taken: which message has which position. It is
// told by the answers to publishes and by every delivery, whichever comes first,
// and all must agree. So a publish whose answer was lost is settled by whoever
// sees the message later.
//
// It is safe for concurrent use. A message costs about 60 bytes.
type ledger struct {
	payloads *payloads
	faults   *faults
	began    time.Time
	names    []string       // immutable: the topics
	index    map[string]int // immutable: of names
	topics   []topicLedger

	mu     sync.Mutex // guards epochs
	epochs []string   // in the order in which they were first seen
}

// A topicLedger is one topic's part.
type topicLedger struct {
	mu         sync.Mutex // guards the fields below
	numberings map[epochIndex]*numbering
	placed     map[identity]place    // where each message is
	unknown    map[identity]struct{} // published, and the answer was lost
	refused    map[identity]struct{} // the daemon said that it did not take them
	deletions  []deletion
}

// A numbering is the messages of one topic in one epoch.
type numbering struct {
	chunks map[uint64]*[chunkEntries]entry // by offset / chunkEntries
	head   uint64                          // the highest offset seen
	count  int
}

// An entry is one message that was taken.
type entry struct {
	id   identity
	time int32 // milliseconds since the beginning, by the daemon's clock
	set  bool
}

const chunkEntries = 256

// epochIndex is an epoch's place in ledger.epochs.
type epochIndex uint16

// A place packs an epoch and an offset.
type place uint64

const offsetBits = 48

func newPlace(e epochIndex, offset uint64) place { return place(uint64(e)<<offsetBits | offset) }

func (p place) epoch() epochIndex { return epochIndex(p >> offsetBits) }
func (p place) offset() uint64    { return uint64(p) & (1<<offsetBits - 1) }

// A deletion is a DELETE of a topic that was asked for.
type deletion struct {
	from, to int32 // when it was asked for and answered; to is the end of time if its answer was lost
	done     bool  // the daemon said that it was done
}

func newLedger(names []string, p *payloads, f *faults, began time.Time) *ledger {
	l := &ledger{payloads: p, faults: f, began: began, names: names, index: map[string]int{}, topics: make([]topicLedger, len(names))}
	for i, name := range names {
		l.index[name] = i
		l.topics[i] = topicLedger{
			numberings: map[epochIndex]*numbering{}, placed: map[identity]place{},
			unknown: map[identity]struct{}{}, refused: map[identity]struct{}{},
		}
	}
	return l
}

// since returns t in the ledger's time.
func (l *ledger) since(t time.Time) int32 { return int32(t.Sub(l.began).Milliseconds()) }

// hooked returns the topics about whose messages the application is asked.
func (l *ledger) hooked() (topics []int) {
	for topic := range l.names {
		if hooked(topic) {
			topics = append(topics, topic)
		}
	}
	return topics
}

func (l *ledger) epoch(name string) epochIndex {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.epochs, name)
	if i < 0 {
		i = len(l.epochs)
		l.epochs = append(l.epochs, name)
	}
	return epochIndex(i)
}

func (l *ledger) epochName(e epochIndex) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epochs[e]
}

// olderEpoch reports whether epoch a began before b: they sort by time in base 36.
func olderEpoch(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }

// accepted notes that the daemon answered a publish.
func (l *ledger) accepted(id identity, p wire.Published) {
	l.claim("the publisher", id, p.Position, p.Time)
}

// refusedBy notes that the daemon said that it did not take the message.
func (l *ledger) refusedBy(id identity) {
	t := &l.topics[id.topic()]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused[id] = struct{}{}
	if at, seen := t.placed[id]; seen {
		l.faults.add(Fault{Kind: Protocol, Who: "the publisher", Topic: l.names[id.topic()], Detail: fmt.Sprintf("%v was refused, but has offset %d", id, at.offset())})
	}
}

// lostAnswer notes that nobody knows whether the message was taken, unless it cannot
// have been, since the application refuses it.
func (l *ledger) lostAnswer(id identity) {
	if o, _ := l.payloads.opinionOf(id); o == refuses {
		l.refusedBy(id)
		return
	}
	t := &l.topics[id.topic()]
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, seen := t.placed[id]; !seen {
		t.unknown[id] = struct{}{}
	}
}

// taken returns the topic's messages that the daemon is known to have taken.
func (l *ledger) taken(topic int) []identity {
	t := &l.topics[topic]
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.placed))
}

// asked notes a DELETE: asked for at from, done by to. The returned function says
// when it was answered, which is to, and whether it was done.
func (l *ledger) asked(topic int, from, to int32) (answered func(at int32, done bool)) {
	t := &l.topics[topic]
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.deletions)
	t.deletions = append(t.deletions, deletion{from: from, to: to})
	return func(at int32, done bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.deletions[n].to, t.deletions[n].done = at, done
	}
}

// delivered notes what a subscriber got, and returns which message it is; false if it
// is none that was published.
func (l *ledger) delivered(who string, m *wire.Message) (identity, bool) {
	id, err := l.payloads.read(m)
	if err == nil && l.names[id.topic()%len(l.names)] != m.Position.Topic {
		err = fmt.Errorf("%v arrived on another topic", id)
	}
	if err != nil {
		l.faults.add(Fault{Kind: Payload, Who: who, Topic: m.Position.Topic, AtMS: m.Time - l.began.UnixMilli(), Detail: fmt.Sprintf("%v: %v", m.Position, err)})
		return id, false
	}
	l.claim(who, id, m.Position, m.Time)
	return id, true
}

// claim notes that id is at p, taken at unixMS, and finds fault if another claim
// says otherwise.
func (l *ledger) claim(who string, id identity, p wire.Position, unixMS int64) {
	at, epoch := int32(unixMS-l.began.UnixMilli()), l.epoch(p.Epoch)
	fault := func(kind Kind, format string, args ...any) {
		l.faults.add(Fault{Kind: kind, Who: who, Topic: p.Topic, AtMS: int64(at), Detail: fmt.Sprintf(format, args...)})
	}
	t := &l.topics[id.topic()]
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, refused := t.refused[id]; refused {
		fault(Protocol, "%v has position %v, but its publish was refused", id, p)
	}
	e := t.numbering(epoch).at(p.Offset)
	if was, seen := t.placed[id]; seen && was != newPlace(epoch, p.Offset) {
		fault(Double, "%v has position %v, and also %s@%s:%d", id, p, p.Topic, l.epochName(was.epoch()), was.offset())
	}
	switch {
	case e.set && e.id != id:
		fault(Payload, "%v is %v, but was also seen as %v", p, e.id, id)
	case e.set && e.time != at:
		fault(Payload, "%v has the time %d, but was also seen with %d", p, e.time, at)
	case !e.set:
		*e = entry{id: id, time: at, set: true}
		n := t.numbering(epoch)
		n.head, n.count = max(n.head, p.Offset), n.count+1
		t.placed[id] = newPlace(epoch, p.Offset)
		delete(t.unknown, id)
	}
}

func (t *topicLedger) numbering(e epochIndex) *numbering {
	n := t.numberings[e]
	if n == nil {
		n = &numbering{chunks: map[uint64]*[chunkEntries]entry{}}
		t.numberings[e] = n
	}
	return n
}

func (n *numbering) at(offset uint64) *entry {
	chunk := n.chunks[offset/chunkEntries]
	if chunk == nil {
		chunk = new([chunkEntries]entry)
		n.chunks[offset/chunkEntries] = chunk
	}
	return &chunk[offset%chunkEntries]
}

// has reports whether the topic has a message in an epoch that was taken by then.
func (l *ledger) has(topic int, e epochIndex, then int32) bool {
	t := &l.topics[topic]
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.numberings[e]
	if n == nil {
		return false
	}
	for _, chunk := range n.chunks {
		for _, e := range chunk {
			if e.set && e.time <= then {
				return true
			}
		}
	}
	return false
}

// head returns the newest offset of the topic in an epoch; 0 if there is none.
func (l *ledger) head(topic int, e epochIndex) uint64 {
	t := &l.topics[topic]
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.numberings[e]; n != nil {
		return n.head
	}
	return 0
}
