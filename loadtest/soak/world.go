package soak

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A world is what publishers and subscribers share. It is safe for concurrent use.
type world struct {
	seed       uint64
	payloads   *payloads
	ledger     *ledger
	ports      *ports
	reign      *reign
	retentions *retentions
	hook       *application
	calm       chan struct{} // closed when nothing is to go wrong any more
	published  published
	staged     staged
	features   features
	publishers int
	settled    atomic.Bool // every subscriber had everything at the end

	mu     sync.Mutex // guards trails
	trails [][]*trail // by topic
}

// staged counts what subscribers did, and what befell them.
type staged struct {
	subscribers   [subscriberForms]atomic.Int64
	left          atomic.Int64 // subscribers that went before the end
	resumed       atomic.Int64 // subscribers that went on in another way
	pauses        atomic.Int64 // readers that stopped reading
	changes       atomic.Int64 // of topics, made
	uncertain     atomic.Int64 // changes whose answer was lost
	reconnects    atomic.Int64 // of the Go client's: waits for another attempt
	cutAnswers    atomic.Int64 // answers to raw polls that did not arrive whole
	sessions      atomic.Int64 // sessions of raw subscribers
	polls         atomic.Int64 // answers to raw polls
	earlierAcks   atomic.Int64 // raw polls with fewer frames acked than had
	impossibleAck atomic.Int64 // raw polls with an ack that must be refused
	repeats       atomic.Int64 // frames that came again by their ack
	became        atomic.Int64 // of these, messages that had become a gap
	halfRequests  atomic.Int64 // requests cut in half, whose end arrived, that were answered 400
	deletions     atomic.Int64 // of topics, answered
	patterns      atomic.Int64 // subscribers to all topics by a pattern
	strangers     atomic.Int64 // subscriptions without the messages of a publisher of their own
	replaced      atomic.Int64 // polls that a newer one took the place of
}

// lot returns the random choices of one actor: the same for the same seed.
func (w *world) lot(kind rune, number int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(kind)<<32|uint64(number)))
}

func (w *world) isCalm() bool {
	select {
	case <-w.calm:
		return true
	default:
		return false
	}
}

// rest waits for d, or until all is calm.
func (w *world) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.calm:
	}
}

// follow makes the trail of a subscription that has just begun, and was asked for at asked.
// Messages of the publisher own are not to come.
func (w *world) follow(who string, start wire.Start, answered wire.Position, own int, asked time.Time) *trail {
	t := newTrail(w.ledger, who, start, answered, asked, time.Now())
	t.own = own
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trails[t.topic] = append(w.trails[t.topic], t)
	return t
}

// seen returns how many messages and gaps have reached subscribers.
func (w *world) seen() (messages int64, gaps map[wire.GapReason]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gaps = map[wire.GapReason]int64{}
	for _, trails := range w.trails {
		for _, t := range trails {
			messages += t.addTo(gaps)
		}
	}
	return messages, gaps
}

func (w *world) fault(kind Kind, who, topic, format string, args ...any) {
	w.ledger.faults.add(Fault{
		Kind: kind, Who: who, Topic: topic, AtMS: int64(w.ledger.since(time.Now())), Detail: fmt.Sprintf(format, args...),
	})
}

// drawStarts draws n topics that without does not hold, each from now or from the
// oldest message.
func (w *world) drawStarts(rng *rand.Rand, n int, without func(topic string) bool) []wire.Start {
	var starts []wire.Start
	for _, i := range rng.Perm(len(w.ledger.names)) {
		name := w.ledger.names[i]
		if len(starts) == n {
			break
		}
		if without(name) {
			continue
		}
		start := wire.Start{Topic: name}
		if rng.IntN(5) < 2 {
			start.From = wire.FromOldest
		}
		starts = append(starts, start)
	}
	return starts
}
