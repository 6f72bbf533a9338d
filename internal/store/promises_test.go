//go:build !race

// The simulator runs one goroutine at a time: the race detector finds nothing, and takes ten
// times as long.

package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// promises are what publishers and subscribers know: what was acknowledged, what was ever
// seen, and where. They outlast crashes. A broken promise panics with a violation.
type promises struct {
	config broker.Config // completed
	tight  bool          // memory or disk is so short that any message may be evicted

	life    int // number of the process
	outages int // times that an unknown number of records may have been lost

	attempts  []*attempt // by number
	imported  uint64     // highest offset of the state that the first daemon began with; each topic has its own up to there
	byNumber  map[uint64]*message
	byTopic   map[string][]*message // in the order of offsets
	deletions map[string][]*deletion
	unknown   map[string]int // by topic: publishes without an answer
	newest    uint64         // highest offset of a message that anybody knows
	reached   uint64         // highest offset that the log has used for an answer
}

// A violation says which promise was broken.
type violation string

func broken(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// An attempt is one message that a publisher tries to publish: once, or again and again
// with an idempotency key.
type attempt struct {
	message *wire.Message // with its topic only
	ttl     time.Duration
	above   uint64 // the newest known offset before the first try
	tries   []*try
	found   []*message // its positions
}

// A try is one call of an attempt. A call that a crash has cut off has no answer.
type try struct {
	attempt   *attempt
	life      int
	answered  bool
	published wire.Published
	err       error
}

// A message is an attempt that is known to have a position.
type message struct {
	*attempt
	offset  uint64
	time    int64
	durable bool // a crash cannot lose it
	exposed bool // a loss of power may have lost it
}

// A deletion is one call.
type deletion struct {
	life   int
	offset uint64 // of an acknowledged one
	acked  bool
	failed bool // the answer was an error
	at     time.Time
}

func newPromises(cfg broker.Config) *promises {
	return &promises{
		config: cfg.WithDefaults(), byNumber: make(map[uint64]*message), byTopic: make(map[string][]*message),
		deletions: make(map[string][]*deletion), unknown: make(map[string]int),
	}
}

func (m *message) String() string {
	return fmt.Sprintf("%s:%d %.12s", m.message.Position.Topic, m.offset, m.message.Data)
}

func (a *attempt) topic() string { return a.message.Position.Topic }

// answer notes the answer to a try.
func (p *promises) answer(t *try) {
	if t.err != nil {
		return
	}
	m := p.see(t.attempt, t.published.Position.Offset, t.published.Time)
	if topic := t.published.Position.Topic; topic != t.attempt.topic() {
		broken("a publish to %s was answered with a position of %s", t.attempt.topic(), topic)
	}
	_ = m
}

// see notes that an attempt has a position. A position never has two messages, and an attempt
// gets a second position only if its key has expired, or if the first was lost.
func (p *promises) see(a *attempt, offset uint64, at int64) *message {
	if m := p.at(a.topic(), offset); m != nil {
		switch {
		case m.attempt != a:
			broken("offset %d has two messages: %s, and now %s %.12s", offset, m, a.topic(), a.message.Data)
		case m.time != at:
			broken("%s had the time %d, and now %d", m, m.time, at)
		}
		if m.exposed { // it was not lost
			m.exposed, m.durable = false, true
		}
		return m
	}
	refused := func(t *try) bool { return t.answered && errors.Is(t.err, &wire.Problem{Code: wire.CodeOverloaded}) }
	switch {
	case !slices.ContainsFunc(a.tries, func(t *try) bool { return !refused(t) }):
		broken("%s %.12s was refused, and has the offset %d", a.topic(), a.message.Data, offset)
	case offset == 0:
		broken("a message has no offset: %s %.12s", a.topic(), a.message.Data)
	case offset <= a.above && offset > p.imported:
		broken("%s %.12s got the number %d, but its publish began after %d was in use", a.topic(), a.message.Data, offset, a.above)
	case !a.mayBeVisible(p.life):
		broken("%s:%d %.12s is visible, but its publish has failed", a.topic(), offset, a.message.Data)
	}
	m := &message{attempt: a, offset: offset, time: at}
	for _, other := range a.found {
		apart := time.Duration(max(at-other.time, other.time-at)) * time.Millisecond
		if a.message.ID == "" || !other.exposed && apart < p.config.IdempotencyWindow {
			broken("%s was published again as %d", other, offset)
		}
	}
	a.found = append(a.found, m)
	p.byNumber[offset] = m
	all := p.byTopic[a.topic()]
	i := sort.Search(len(all), func(i int) bool { return all[i].offset > offset })
	p.byTopic[a.topic()] = slices.Insert(all, i, m)
	p.newest = max(p.newest, offset)
	return m
}

// at returns the message with that offset. Above the imported ones, no other topic has it.
func (p *promises) at(topic string, offset uint64) *message {
	if offset > p.imported {
		return p.byNumber[offset]
	}
	for _, m := range p.between(topic, offset-1, offset+1) {
		return m
	}
	return nil
}

// mayBeVisible reports whether one of the tries may have succeeded. In the life of a process
// that answered it with an error, it has not.
func (a *attempt) mayBeVisible(life int) bool {
	return slices.ContainsFunc(a.tries, func(t *try) bool { return !t.answered || t.err == nil || t.life < life })
}

// read notes that a subscriber has received a message.
func (p *promises) read(m *wire.Message, ttl time.Duration) *message {
	text, _, _ := strings.Cut(string(m.Data), " ")
	number, err := strconv.Atoi(strings.Trim(text, `"`))
	if err != nil || number < 0 || number >= len(p.attempts) {
		broken("nobody published what %s has: %.40q", m.Position, m.Data)
	}
	a := p.attempts[number]
	want := *a.message
	want.Position, want.Time = m.Position, m.Time
	if m.Position.Topic != a.topic() || !equalMessages(&want, m) || ttl != a.ttl {
		broken("%s was published as %s, ttl %v, and is %s, ttl %v", m.Position, describe(&want), a.ttl, describe(m), ttl)
	}
	return p.see(a, m.Position.Offset, m.Time)
}

func describe(m *wire.Message) string {
	return fmt.Sprintf("%.40q, type %q, id %q, key %q, client %q, by %q, claims %q", m.Data, m.Type, m.ID, m.Key, m.Client, m.By, m.Claims)
}

func equalMessages(a, b *wire.Message) bool {
	return a.Type == b.Type && bytes.Equal(a.Data, b.Data) && a.CBOR == b.CBOR && a.ID == b.ID &&
		a.Key == b.Key && a.Client == b.Client && a.By == b.By && bytes.Equal(a.Claims, b.Claims)
}

// between returns the known messages of a topic above an offset and below another.
func (p *promises) between(topic string, above, below uint64) []*message {
	all := p.byTopic[topic]
	from := sort.Search(len(all), func(i int) bool { return all[i].offset > above })
	to := sort.Search(len(all), func(i int) bool { return all[i].offset >= below })
	return all[from:max(from, to)]
}

// mayBeMissing reports whether a subscriber may get a gap instead of the message.
func (p *promises) mayBeMissing(m *message, now time.Time) bool {
	return m.exposed || p.tight || p.hasExpired(m, now) || p.isDeleted(m) || p.isReplaced(m)
}

func (p *promises) hasExpired(m *message, now time.Time) bool {
	age := now.Sub(time.UnixMilli(m.time))
	return age >= p.config.HistoryAge || m.ttl > 0 && age >= m.ttl
}

// isDeleted reports whether a deletion may have had the message.
func (p *promises) isDeleted(m *message) bool {
	return slices.ContainsFunc(p.deletions[m.topic()], func(d *deletion) bool {
		return d.acked && d.offset > m.offset || !d.acked && !d.failed || d.failed && d.life < p.life
	})
}

// isReplaced reports whether newer messages of the topic may have replaced the message.
func (p *promises) isReplaced(m *message) bool {
	newer := p.between(m.topic(), m.offset, wire.MaxOffset)
	size := m.message.Size()
	for _, n := range newer {
		size += n.message.Size()
	}
	unknown := p.unknown[m.topic()]
	return len(newer)+unknown >= p.config.HistoryMessages || len(newer)+unknown > 0 && size+unknown*maxSize > p.config.HistoryBytes
}

// isGone reports whether a session that begins at a time must not get the message.
func (p *promises) isGone(m *message, begun time.Time) bool {
	if m.ttl > 0 && begun.Sub(time.UnixMilli(m.time)) > m.ttl+2*time.Millisecond {
		return true
	}
	return slices.ContainsFunc(p.deletions[m.topic()], func(d *deletion) bool { return d.acked && d.offset > m.offset && d.at.Before(begun) })
}

// secure notes that messages are durable.
func secure(all []*message) {
	for _, m := range all {
		m.durable = true
	}
}

// fragile returns the messages that are not known to be durable.
func (p *promises) fragile() (all []*message) {
	for _, m := range p.byNumber {
		if !m.durable {
			all = append(all, m)
		}
	}
	return all
}

// losePower notes that everything that is not durable may be lost.
func (p *promises) losePower() {
	for _, m := range p.fragile() {
		m.exposed = true
	}
}

// loseAfter notes that entries after an offset may be lost, durable or not.
func (p *promises) loseAfter(offset uint64) {
	for _, m := range p.byNumber {
		if m.offset > offset {
			m.durable, m.exposed = false, true
		}
	}
	for _, all := range p.deletions {
		for _, d := range all {
			d.acked = d.acked && d.offset <= offset
		}
	}
}

// A reader follows topics, or a pattern, and remembers where it is. It outlasts its sessions.
type follower struct {
	*promises
	name    string
	topics  []string // or one pattern
	at      map[string]wire.Position
	checked map[string]uint64 // by topic: up to where nothing is missing
	base    uint64            // of topics that checked does not have
	excused uint64            // a gap of the pattern may cover messages up to this offset
	outages int               // when it began
	lost    map[string]int    // gaps, lost, by topic
}

func newFollower(p *promises, name string, topics ...string) *follower {
	return &follower{
		promises: p, name: name, topics: topics, at: make(map[string]wire.Position), checked: make(map[string]uint64),
		base: p.newest, outages: p.outages, lost: make(map[string]int),
	}
}

// clone returns a copy, to which a client returns that lost the answers since.
func (f *follower) clone() *follower {
	c := *f
	c.at, c.checked, c.lost = maps.Clone(f.at), maps.Clone(f.checked), maps.Clone(f.lost)
	return &c
}

func (f *follower) hasPattern() bool { return wire.IsPattern(f.topics[0]) }

func (f *follower) follows(topic string) bool {
	return slices.ContainsFunc(f.topics, func(t string) bool { return t == topic || wire.IsPattern(t) && wire.Matches(t, topic) })
}

func (f *follower) upTo(topic string) uint64 {
	if at, ok := f.checked[topic]; ok {
		return at
	}
	return f.base
}

// starts returns where the client resumes.
func (f *follower) starts() (starts []wire.Start) {
	for _, name := range f.topics {
		if _, ok := f.at[name]; !ok {
			starts = append(starts, wire.Start{Topic: name})
		}
	}
	for _, name := range sortedKeys(f.at) {
		starts = append(starts, wire.StartAfter(f.at[name]))
	}
	return starts
}

// open notes the positions with which a session begins.
func (f *follower) open(positions []wire.Position) {
	for _, at := range positions {
		_, met := f.at[at.Topic]
		switch {
		case met && at.Offset == 0 && f.hasPattern() && !wire.IsPattern(at.Topic):
			delete(f.at, at.Topic) // it was forgotten; the pattern announces a loss
		case !met:
			f.at[at.Topic] = at
			if !wire.IsPattern(at.Topic) && f.checked[at.Topic] == 0 && !f.hasPattern() {
				f.checked[at.Topic] = at.Offset
			}
		}
	}
}

// begin notes the positions of a client that has begun now.
func (f *follower) begin(positions []wire.Position) {
	for _, at := range positions {
		f.at[at.Topic] = at
		if !wire.IsPattern(at.Topic) {
			f.checked[at.Topic] = at.Offset
		}
	}
}

// takeMessage checks a message that the client has received. fresh says that the session
// began after everything that the promises know.
func (f *follower) takeMessage(m *message, epoch string, now, opened time.Time) {
	topic := m.topic()
	upTo := f.upTo(topic)
	switch {
	case !f.follows(topic):
		broken("%s gets %s, which it does not follow", f.name, m)
	case m.offset <= upTo:
		broken("%s gets %s again, after %d", f.name, m, upTo)
	}
	f.pass(topic, m.offset, now)
	f.checked[topic] = m.offset
	f.at[topic] = wire.Position{Topic: topic, Epoch: epoch, Offset: m.offset}
	if f.isGone(m, opened) {
		broken("%s gets %s, which was deleted or had expired before its session began", f.name, m)
	}
}

// pass checks that nothing is missing below an offset.
func (f *follower) pass(topic string, below uint64, now time.Time) {
	for _, m := range f.between(topic, f.upTo(topic), below) {
		if m.offset > f.excused || !f.mayBeMissing(m, now) {
			broken("%s does not get %s, and no gap covers it: it has %d, and next %d", f.name, m, f.upTo(topic), below)
		}
	}
}

// manyOutages is how many losses a broker remembers one by one. Each message among older ones
// follows a gap.
const manyOutages = 16

// takeGap checks a gap that the client has received.
func (f *follower) takeGap(g *wire.Gap, now time.Time) {
	had, met := f.at[g.Topic]
	if g.Reason == wire.GapLost {
		outages := f.promises.outages - f.outages
		if f.lost[g.Topic]++; f.lost[g.Topic] > outages && outages < manyOutages {
			broken("%s gets the gap %+v, but power was lost %d times since it began", f.name, *g, outages)
		}
	}
	switch {
	case !f.follows(g.Topic) && g.Topic != f.topics[0]:
		broken("%s gets the gap %+v, but does not follow the topic", f.name, *g)
	case g.Position.Offset < g.After.Offset || g.Position.Epoch != g.After.Epoch:
		broken("%s gets the gap %+v, which ends before it begins", f.name, *g)
	case wire.IsPattern(g.Topic):
		f.takeNotice(g)
		return
	case met && had != g.After && (!f.hasPattern() || had.Offset > g.After.Offset):
		broken("%s gets the gap %+v, but is at %s", f.name, *g, had)
	}
	f.pass(g.Topic, g.After.Offset+1, now)
	for _, m := range f.between(g.Topic, max(f.upTo(g.Topic), g.After.Offset), g.Position.Offset+1) {
		if !f.mayBeMissing(m, now) {
			broken("%s gets the gap %+v instead of %s", f.name, *g, m)
		}
	}
	f.checkReason(g)
	f.checked[g.Topic] = max(f.upTo(g.Topic), g.Position.Offset)
	f.at[g.Topic] = g.Position
}

// takeNotice checks a gap of the pattern: topics were forgotten, and the client may not have
// had all of their messages.
func (f *follower) takeNotice(g *wire.Gap) {
	if g.Reason != wire.GapEvicted && g.Reason != wire.GapLost {
		broken("%s gets the gap %+v", f.name, *g)
	}
	f.excused = f.newest
	f.at[g.Topic] = g.Position
}

// checkReason checks that something can have happened as the reason says.
func (f *follower) checkReason(g *wire.Gap) {
	switch g.Reason {
	case wire.GapLost, wire.GapEvicted, wire.GapSlow, wire.GapExpired:
	case wire.GapDeleted:
		if !slices.ContainsFunc(f.deletions[g.Topic], func(d *deletion) bool { return !d.failed || d.life < f.life }) {
			broken("%s gets the gap %+v, but nobody has deleted anything", f.name, *g)
		}
	default:
		broken("%s gets the gap %+v", f.name, *g)
	}
}

// settle checks that a client that has read everything misses nothing.
func (f *follower) settle(now time.Time) {
	for _, topic := range sortedKeys(f.byTopic) {
		if f.follows(topic) {
			f.pass(topic, wire.MaxOffset, now)
		}
	}
}
