// Package presence knows who is on the topics that have presence, and tells every change.
package presence

import (
	"bytes"
	"cmp"
	"container/heap"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Members knows who is on the topics that have presence, and tells every change on their
// presence topics. All methods may be called concurrently.
//
// Sessions note changes under their locks. A change is told later, without those locks:
// to tell it is to offer a message to other sessions.
type Members struct {
	broker  *broker.Broker
	metrics *metrics.Metrics
	hasNews atomic.Bool // changed is not empty

	mu        sync.Mutex // guards the fields below and those of audiences; taken last
	audiences map[string]*audience
	changed   []*audience        // those with changes to tell at once; in use
	due       map[*audience]bool // those that the next sweep visits
	members   int
}

// New returns Members without any.
func New(b *broker.Broker, m *metrics.Metrics) *Members {
	return &Members{broker: b, metrics: m, audiences: make(map[string]*audience), due: make(map[*audience]bool)}
}

// An audience has the members of one topic.
//
// Of a small audience, each join, each leave and each change of a member's claims is told. Of a
// large one only the count is told, once a second. When the messages do not tell all that has
// happened, they are retracted: everyone who watches gets a gap, and reads the list again.
type audience struct {
	topic string // immutable

	// telling is held while messages are published, and while the list is read with its
	// position. It is taken before all other locks, and never under a session's.
	telling sync.Mutex

	// Guarded by Members.mu.
	members   map[identity]*member
	away      awayHeap // the members without a session
	anonymous int      // sessions without an identity
	changes   []news
	crowded   bool // only counts are told
	retracts  bool // the next that is told is that the list must be read again
	told      counts
	toldAt    int64 // Unix seconds; of told
	users     int   // calls that use the audience
}

// news is what is told in one message; without an event: nothing.
type news struct {
	key string
	wire.PresenceEvent
}

// counts are what a digest tells.
type counts struct{ members, anonymous int }

// An identity tells members apart: a principal, and a name that the client chose. A session
// with neither is no member.
type identity struct{ subject, client string }

// A member is on a topic from its first session on until it has had none for the grace.
type member struct {
	identity
	wire.ListedMember
	sessions int       // 0: it is in audience.away
	left     time.Time // newest time at which one of its sessions left
	away     int       // index in audience.away
	issued   int64     // when the token with the claims was issued, in Unix milliseconds
}

// An awayHeap has members without a session, the longest away first. Members come in no order,
// because a session without a poll is noticed late.
type awayHeap []*member

func (h awayHeap) Len() int { return len(h) }

func (h awayHeap) Less(i, j int) bool {
	return cmp.Or(h[i].left.Compare(h[j].left), cmp.Compare(h[i].Key, h[j].Key)) < 0
}

func (h awayHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].away, h[j].away = i, j
}

// Push implements heap.Interface.
func (h *awayHeap) Push(m any) {
	m.(*member).away = len(*h)
	*h = append(*h, m.(*member))
}

// Pop implements heap.Interface.
func (h *awayHeap) Pop() any {
	last := len(*h) - 1
	m := (*h)[last]
	(*h)[last] = nil
	if *h = (*h)[:last]; last == 0 {
		*h = nil
	}
	return m
}

// An audience of more than crowd members is crowded. It is no longer when it has shrunk to
// calm members, so that one that stays about as large does not change often.
const (
	crowd = 500
	calm  = 400
)

// Joined implements session.Presence.
func (p *Members) Joined(topic string, of wire.Member, issued time.Time) {
	who := identity{of.Subject, of.Client}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.audienceLocked(topic)
	p.due[a] = true
	if who == (identity{}) {
		a.anonymous++
		return
	}
	m := a.members[who]
	switch {
	case m == nil:
		m = &member{identity: who, issued: issued.UnixMilli()}
		m.Key = who.subject + "/" + who.client // at most 193 bytes; a client's name has no slash
		m.Member = of
		m.Since = time.Now().UnixMilli()
		a.members[who] = m
		p.countLocked(1, m)
		p.changedLocked(a, news{m.Key, wire.PresenceEvent{Event: wire.PresenceJoin, Member: m.Member}})
	case m.sessions == 0:
		heap.Remove(&a.away, m.away)
		fallthrough
	default:
		p.renewLocked(a, m, of.Claims, issued)
	}
	m.sessions++
}

// Renewed implements session.Presence.
func (p *Members) Renewed(topic string, of wire.Member, issued time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.audiences[topic]
	if m := a.members[identity{of.Subject, of.Client}]; m != nil { // nil: it is anonymous
		p.renewLocked(a, m, of.Claims, issued)
	}
}

// renewLocked gives a member the claims of a token, unless it has those of one that was issued
// later. Other claims are told as another join.
func (p *Members) renewLocked(a *audience, m *member, claims json.RawMessage, issued time.Time) {
	if issued.UnixMilli() < m.issued {
		return
	}
	m.issued = issued.UnixMilli()
	if bytes.Equal(claims, m.Claims) {
		return
	}
	p.countLocked(-1, m)
	m.Claims = claims
	p.countLocked(1, m)
	p.changedLocked(a, news{m.Key, wire.PresenceEvent{Event: wire.PresenceJoin, Member: m.Member}})
}

// Left implements session.Presence.
func (p *Members) Left(topic string, of wire.Member, at time.Time) {
	who := identity{of.Subject, of.Client}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.audiences[topic]
	p.due[a] = true
	if who == (identity{}) {
		a.anonymous--
		return
	}
	m := a.members[who]
	if at.After(m.left) {
		m.left = at
	}
	if m.sessions--; m.sessions == 0 {
		heap.Push(&a.away, m)
	}
}

// audienceLocked returns the audience of a topic, which it makes if necessary.
func (p *Members) audienceLocked(topic string) *audience {
	a := p.audiences[topic]
	if a == nil {
		a = &audience{topic: strings.Clone(topic), members: make(map[identity]*member)} // the original may keep a request
		p.audiences[a.topic] = a
		p.broker.Memory().Add(memory.Topics, audienceBytes)
	}
	return a
}

// The memory of an audience, and of a member without its names and claims. Measured with
// 100,000 of each: 650 and 240 bytes, with names of 11 bytes.
const (
	audienceBytes = 640
	memberBytes   = 208
)

// Count returns the number of members of all topics.
func (p *Members) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members
}

// countLocked counts members and their memory.
func (p *Members) countLocked(n int, m *member) {
	p.members += n
	p.broker.Memory().Add(memory.Topics, int64(n*(memberBytes+2*(len(m.subject)+len(m.client))+len(m.Claims))))
}

// changedLocked notes a join or a leave.
func (p *Members) changedLocked(a *audience, n news) {
	if !a.crowded && !a.retracts {
		a.changes = append(a.changes, n)
	}
	if len(a.changes) > crowd { // the daemon cannot tell them
		a.changes, a.retracts = nil, true
	}
	a.users++
	p.changed = append(p.changed, a)
	p.hasNews.Store(true)
}

// Flush implements session.Presence.
func (p *Members) Flush() {
	// Fast path: no topic has presence, or nobody came.
	if !p.hasNews.Load() {
		return
	}
	p.mu.Lock()
	changed := p.changed
	p.changed = nil
	p.hasNews.Store(false)
	p.mu.Unlock()
	p.tell(changed, time.Now())
}

// Sweep implements session.Presence. It tells who has been away for the grace, and the counts of large
// audiences.
func (p *Members) Sweep(now time.Time) {
	p.mu.Lock()
	due := slices.Collect(maps.Keys(p.due))
	for _, a := range due {
		a.users++
	}
	p.mu.Unlock()
	for _, a := range due { // one at a time: there may be many, and sessions need the lock
		p.expire(a, now.Add(-p.broker.Route(a.topic).Rule.PresenceGrace))
	}
	p.tell(due, now)
	p.Flush()
}

// expire removes the members that left at a time or before.
func (p *Members) expire(a *audience, by time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a.away.Len() > 0 && !a.away[0].left.After(by) {
		m := heap.Pop(&a.away).(*member)
		delete(a.members, m.identity)
		p.countLocked(-1, m)
		p.changedLocked(a, news{m.Key, wire.PresenceEvent{Event: wire.PresenceLeave, Member: wire.Member{Subject: m.subject, Client: m.client}}})
	}
}

// tell tells what is to be told of audiences that are in use, and ends the use.
func (p *Members) tell(audiences []*audience, now time.Time) {
	for _, a := range audiences {
		a.telling.Lock()
		_ = p.tellAll(a, now, func() {}) // after an error the next sweep tries again
		a.telling.Unlock()
		p.release(a)
	}
}

// release ends a use of an audience. It forgets one that has nobody and nothing to tell.
func (p *Members) release(a *audience) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.users--
	isQuiet := len(a.changes) == 0 && !a.retracts && !a.crowded && a.told.anonymous == a.anonymous
	if isQuiet && a.away.Len() == 0 {
		delete(p.due, a)
	}
	if isQuiet && a.users == 0 && len(a.members) == 0 && a.anonymous == 0 {
		delete(p.audiences, a.topic)
		p.broker.Memory().Add(memory.Topics, -audienceBytes)
	}
}

// tellAll tells what is to be told of an audience. When nothing is left, it calls then
// under the lock. The caller holds a.telling. The error is a *wire.Problem: overloaded.
func (p *Members) tellAll(a *audience, now time.Time, then func()) error {
	topic := wire.PresenceTopic(a.topic)
	for {
		p.mu.Lock()
		n := a.nextLocked(now)
		if n.Event == "" {
			then()
			p.mu.Unlock()
			return nil
		}
		p.mu.Unlock()
		var err error
		if n.Event == retracted {
			err = p.broker.Retract(topic)
		} else {
			text, wrong := json.Marshal(&n.PresenceEvent)
			if wrong != nil {
				panic("BUG: an event does not marshal: " + wrong.Error()) // auth has checked the claims
			}
			err = p.broker.Tell(topic, n.key, text, now)
		}
		if err != nil {
			p.mu.Lock()
			a.changes, a.retracts = nil, true
			p.due[a] = true
			p.mu.Unlock()
			return err
		}
		p.metrics.Presence.WithLabelValues(n.Event).Inc()
	}
}

// retracted is the event that the list must be read again. Clients get a gap for it.
const retracted = "retract"

// nextLocked returns what must be told next.
func (a *audience) nextLocked(now time.Time) (n news) {
	is := counts{len(a.members), a.anonymous}
	switch {
	case !a.crowded && is.members > crowd:
		a.crowded, a.retracts, a.changes = true, false, nil
		a.told.members = -1
	case a.crowded && is.members <= calm:
		a.crowded, a.retracts = false, true
	}
	switch {
	case a.retracts:
		a.retracts, a.changes = false, nil
		n.Event = retracted
	case len(a.changes) > 0:
		n, a.changes = a.changes[0], a.changes[1:]
	case a.toldAt != now.Unix() && (is.anonymous != a.told.anonymous || a.crowded && is.members != a.told.members):
		a.told, a.toldAt = is, now.Unix()
		n.key, n.Event = wire.PresenceCount, wire.PresenceCount
		n.PresenceCounts = &wire.PresenceCounts{Count: is.members, Anonymous: is.anonymous, Exact: !a.crowded}
	}
	return n
}

// List returns the members of a topic, and a position of its presence topic, after which
// each later change follows. If the list is not exact, it has at most 500 members. The
// error is a *wire.Problem: overloaded.
func (p *Members) List(topic string, now time.Time) (found wire.PresenceList, err error) {
	p.mu.Lock()
	a := p.audienceLocked(topic)
	a.users++
	p.mu.Unlock()
	defer p.release(a)
	a.telling.Lock()
	defer a.telling.Unlock()
	found.Topic = topic
	err = p.tellAll(a, now, func() {
		found.PresenceCounts = wire.PresenceCounts{Count: len(a.members), Anonymous: a.anonymous, Exact: !a.crowded}
		found.Members = make([]wire.ListedMember, 0, min(len(a.members), crowd))
		for _, m := range a.members {
			if len(found.Members) == crowd {
				break
			}
			found.Members = append(found.Members, m.ListedMember)
		}
	})
	if err != nil {
		return found, err
	}
	found.Position, err = p.broker.Watch(wire.PresenceTopic(topic), now)
	slices.SortFunc(found.Members, func(x, y wire.ListedMember) int {
		return cmp.Or(cmp.Compare(x.Since, y.Since), cmp.Compare(x.Key, y.Key))
	})
	return found, err
}
