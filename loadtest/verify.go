package loadtest

import "github.com/pubsubd/pubsubd/pkg/wire"

// A verifier accounts for every message of every client, by position and by
// payload: positions must rise, each published message must come to each client
// of its topic exactly once, and a message has one position: what the publish's
// answer says and what every client sees. So rising offsets do not hide another
// order of payloads.
//
// Of a server without positions the payload is all there is. What two publishers
// send at the same time has no order there; but a message that was published when
// another had been answered comes after that one.
type verifier struct {
	shape     shape
	positions bool // messages have them
	foretold  bool // another process publishes: a message may come before publish is told of it
	clients   []progressOfClient
	published []bitset    // by topic: the sequences that were handed to the server
	refused   []bitset    // by topic: of those, the ones that it did not take
	numbers   []numbering // by topic; if there are positions
	times     []times     // by topic; if there are not
	clock     int64       // counts publishes and answers

	expected   int64
	delivered  int64 // first deliveries, late ones included
	surplus    int64 // deliveries of what was refused
	late       int64
	duplicates int64
	disordered int64
	epochs     int64 // changes of epoch that no gap announced
	gaps       map[wire.GapReason]int64
}

// A numbering is which offset each message of a topic has, within the epoch that
// was seen first: after another begins, rising offsets are all that is checked.
type numbering struct {
	epoch   string
	offsets []uint64 // by sequence; 0: not seen
}

// times are when each message of a topic was sent and answered, by the verifier's
// clock, by sequence; 0: not yet.
type times struct{ sent, answered []int64 }

// progressOfClient is where one client is in its topic.
type progressOfClient struct {
	begun  bool
	epoch  string
	last   uint64 // the highest offset had
	recent uint64 // bit i: offset last-i was had, or is before the subscription
	had    bitset // by sequence
	latest int64  // without positions: when the latest of those had was sent
}

func newVerifier(s shape, positions bool) *verifier {
	v := &verifier{
		shape:     s,
		positions: positions,
		clients:   make([]progressOfClient, s.clients()),
		published: make([]bitset, s.topics),
		refused:   make([]bitset, s.topics),
		numbers:   make([]numbering, s.topics),
		times:     make([]times, s.topics),
		gaps:      map[wire.GapReason]int64{},
	}
	for i := range v.clients {
		v.clients[i].had = newBitset(s.messages)
	}
	for i := range v.published {
		v.published[i] = newBitset(s.messages)
		v.refused[i] = newBitset(s.messages)
		if positions {
			v.numbers[i].offsets = make([]uint64, s.messages)
		} else {
			v.times[i] = times{sent: make([]int64, s.messages), answered: make([]int64, s.messages)}
		}
	}
	return v
}

// begin says that delivery to a client begins after p.
func (v *verifier) begin(client int, p wire.Position) {
	c := &v.clients[client]
	c.begun = true
	c.epoch, c.last, c.recent = p.Epoch, p.Offset, ^uint64(0)
}

// publish says that a message is on its way to every client of its topic.
func (v *verifier) publish(topic, sequence int) {
	v.published[topic].set(sequence)
	if !v.positions {
		v.clock++
		v.times[topic].sent[sequence] = v.clock
	}
	v.expected += int64(v.shape.perTopic)
}

// refuse takes publish back: the server did not take the message. If it is
// delivered nevertheless that is surplus, which must not make up for a loss.
func (v *verifier) refuse(topic, sequence int) {
	v.refused[topic].set(sequence)
	v.expected -= int64(v.shape.perTopic)
	for c := topic; c < len(v.clients); c += v.shape.topics {
		if v.clients[c].had.has(sequence) {
			v.delivered--
			v.surplus++
		}
	}
}

// answer says that the server took a message.
func (v *verifier) answer(topic, sequence int, p wire.Position) {
	if v.positions {
		v.number(topic, sequence, p)
		return
	}
	v.clock++
	v.times[topic].answered[sequence] = v.clock
}

// number takes a message's position, from a delivery or the publish's answer, and
// counts disorder if it was another before.
func (v *verifier) number(topic, sequence int, p wire.Position) {
	n := &v.numbers[topic]
	if n.epoch == "" {
		n.epoch = p.Epoch
	}
	switch known := &n.offsets[sequence]; {
	case p.Epoch != n.epoch || *known == p.Offset:
	case *known == 0:
		*known = p.Offset
	default:
		v.disordered++
	}
}

// knows reports whether such a message was published.
func (v *verifier) knows(topic, sequence int) bool {
	return sequence >= 0 && sequence < v.shape.messages && (v.foretold || v.published[topic].has(sequence))
}

// message takes one that came, and reports whether it is the client's first of
// this sequence.
func (v *verifier) message(client, sequence int, p wire.Position) bool {
	c := &v.clients[client]
	topic := client % v.shape.topics
	ordered := v.disordered
	again := v.positions && v.position(c, p)
	if again || c.had.has(sequence) {
		v.duplicates++
		return false
	}
	c.had.set(sequence)
	switch {
	case !v.positions:
		v.inOrder(c, topic, sequence)
	case v.disordered == ordered: // one fault is counted once
		v.number(topic, sequence, p)
	}
	if v.refused[topic].has(sequence) {
		v.surplus++
		return false
	}
	v.delivered++
	return true
}

// inOrder checks that nothing was had that was sent after this one's answer.
func (v *verifier) inOrder(c *progressOfClient, topic, sequence int) {
	t := v.times[topic]
	if answered := t.answered[sequence]; answered != 0 && answered < c.latest {
		v.disordered++
	}
	c.latest = max(c.latest, t.sent[sequence])
}

// position checks that offsets rise, and reports whether this one was had before.
func (v *verifier) position(c *progressOfClient, p wire.Position) (again bool) {
	switch {
	case p.Epoch != c.epoch:
		v.epochs++
		c.epoch, c.last, c.recent = p.Epoch, p.Offset, 1
		return false
	case p.Offset > c.last:
		c.advance(p.Offset)
		return false
	}
	behind := c.last - p.Offset
	if behind < 64 && c.recent&(1<<behind) != 0 {
		return true
	}
	// Lower than the last and not had, or so far back that nobody knows: either way
	// it is out of order.
	v.disordered++
	if behind < 64 {
		c.recent |= 1 << behind
	}
	return false
}

func (c *progressOfClient) advance(offset uint64) {
	c.recent = c.recent<<(offset-c.last) | 1 // a shift by 64 or more leaves nothing
	c.last = offset
}

// gap takes an announced loss: what it covers stays expected, and so counts as
// lost. Only a gap may change the epoch.
func (v *verifier) gap(client int, g *wire.Gap) {
	v.gaps[g.Reason]++
	c := &v.clients[client]
	switch p := g.Position; {
	case p.Epoch != c.epoch:
		c.epoch, c.last, c.recent = p.Epoch, p.Offset, 0
	case p.Offset > c.last:
		c.advance(p.Offset)
		c.recent &^= 1 // the message at the gap's end was not had
	case p.Offset < c.last:
		v.disordered++
	}
}

// absorb adds the account of another process' clients. What was expected of them
// was expected here.
func (v *verifier) absorb(d Deliveries) {
	v.delivered += d.Delivered
	v.surplus += d.Surplus
	v.duplicates += d.Duplicates
	v.disordered += d.Disordered
	v.epochs += d.EpochChanges
	for reason, n := range d.Gaps {
		v.gaps[wire.GapReason(reason)] += n
	}
}

// missing returns how many deliveries have not come; negative while messages that
// were foretold come before publish is told of them.
func (v *verifier) missing() int64 { return v.expected - v.delivered }

// result returns the account. What came too late counts as lost.
func (v *verifier) result() Deliveries {
	gaps := map[string]int64{}
	for reason, n := range v.gaps {
		gaps[string(reason)] = n
	}
	return Deliveries{
		Expected:     v.expected,
		Delivered:    v.delivered - v.late,
		Lost:         v.missing() + v.late,
		Late:         v.late,
		Surplus:      v.surplus,
		Duplicates:   v.duplicates,
		Disordered:   v.disordered,
		EpochChanges: v.epochs,
		Gaps:         gaps,
	}
}

// A bitset is a set of small numbers.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i int) { b[i/64] |= 1 << (i % 64) }

func (b bitset) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }
