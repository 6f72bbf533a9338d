package session

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// readers are the polls of a session, guarded by Session.mu.
type readers struct {
	newest *Reader       // until it ends
	parked *Reader       // newest, while its outlet takes frames: then queue and behind are empty, or its window is full
	due    time.Duration // after Session.opened; when parked times out
}

// A Reader is one request's hold on its session. One goroutine at a time may use it, and
// must call Done at the end. Then it may Begin again, on any session.
type Reader struct {
	// Owned by the goroutine that uses the poll.
	session *Session
	fresh   bool           // see Fresh
	timeout *time.Timer    // of park; made when it is first needed
	frames  []*frame.Frame // what Take returned; reused

	patterns []wire.Position // see Patterns; owned like frames

	stop chan struct{} // closed under session.mu when the poll must end; nil until it waits
	acks chan struct{} // gets a token when acks make room; nil unless AcksDuring

	// Guarded by session.mu.
	arrived time.Duration // of its request, since session.opened
	client  Client        // see Arrival
	acking  Acking        // changes only in Begin
	lasts   bool          // its answer is a stream, which gets moved positions while it lasts; likewise
	why     *wire.Problem // why the poll must end; set before stop is closed
	resent  int           // how many of session.window.unacked this poll has taken

	// While and after the poll is parked on its connection; guarded by session.mu.
	outlet     Outlet
	limit      frame.Limit   // of one HandOver
	wait       time.Duration // until HandOver without frames
	handedOver bool          // the whole answer
}

// Acking is how the client of a poll acks what the poll takes. It decides what a full
// window of unacked frames means.
type Acking uint8

// The ways to ack. If the session does not ack, its polls are Trusted.
const (
	AcksNext   Acking = iota // by the next poll: a full window ends the answer
	AcksDuring               // by Session.Ack: with a full window Take waits for it
	AcksLater                // by the next poll, after any number of frames: the oldest frames of a full window count as acked
	Trusted                  // not at all: what is taken counts as acked, and the window stays empty
)

// An Arrival says when a poll's request arrived, and from which client.
type Arrival struct {
	At     time.Time // when the bytes of the request were read; zero: when the poll begins
	Client Client    // nil: not known
}

// A Client is the connection that a poll's answer goes to. Left reports whether the
// client has closed it. Left is called under the session's lock: it must not block and
// must not call back.
type Client interface{ Left() bool }

// Begin begins a poll whose client has the first ack frames of the session. p is new or
// Done.
//
// A poll that begins replaces the session's poll, if any. Of two polls, the one whose
// request arrived later wins, unless its client has left: a client may abandon a poll and
// send another on a new connection, and the daemon may read the two in either order. A poll that loses to the present
// one gets the problem poll_replaced, or context.Canceled if its client has left. Other
// errors are stale_ack, ack_beyond_sent and token_expired, which change nothing, and the
// problem with which the session ended.
func (p *Reader) Begin(s *Session, ack uint64, acking Acking, a Arrival, now time.Time) error {
	returns, err := p.begin(s, ack, acking, a, now)
	if returns {
		s.registry.presence.Flush()
	}
	return err
}

// begin is Begin without the publication that the client is a member again; returns says that it is.
func (p *Reader) begin(s *Session, ack uint64, acking Acking, a Arrival, now time.Time) (returns bool, err error) {
	if a.At.IsZero() {
		a.At = now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch present := s.readers.newest; {
	case s.ended != nil:
		return false, s.ended
	case s.grant.Load().HasExpired(now):
		return false, expiredProblem
	case present == nil:
	case hasLeft(a.Client):
		return false, context.Canceled
	case present.arrived > a.At.Sub(s.opened) && !hasLeft(present.client):
		return false, replacedProblem
	}
	if s.acks {
		if err := s.ackLocked(ack); err != nil {
			return false, err
		}
	}
	if s.readers.newest != nil {
		s.readers.newest.stopLocked(replacedProblem)
	}
	if p.why != nil {
		p.stop = nil // closed
	}
	p.lasts = acking != AcksNext
	if !s.acks {
		acking = Trusted
	}
	p.patterns = p.patterns[:0]
	p.session, p.acking, p.why, p.resent, p.fresh, p.handedOver = s, acking, nil, 0, false, false
	p.arrived, p.client, p.acks = a.At.Sub(s.opened), a.Client, nil
	if acking == AcksDuring {
		p.acks = make(chan struct{}, 1)
	}
	s.readers.newest, s.active = p, now.Sub(s.opened)
	if returns = s.away; returns {
		s.reappearLocked()
	}
	return returns, nil
}

func hasLeft(c Client) bool { return c != nil && c.Left() }

var replacedProblem = problem.New(wire.CodePollReplaced, "do not poll again: the newer poll gets the messages",
	"a newer poll of this session replaced this one")

// stopLocked ends the poll, once, with the given problem.
func (p *Reader) stopLocked(why *wire.Problem) {
	if p.why != nil {
		return
	}
	p.why = why
	if p.stop != nil {
		close(p.stop)
	}
	if p.session.readers.parked == p {
		p.session.wakeParkedLocked()
	}
}

// Done ends the poll.
func (p *Reader) Done(now time.Time) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers.newest == p {
		s.endReaderLocked(now)
	}
	p.releaseFrames()
}

// endReaderLocked notes that the newest poll has ended.
func (s *Session) endReaderLocked(now time.Time) {
	s.readers.newest, s.active = nil, now.Sub(s.opened)
	s.visitAfterGraceLocked()
}

// Forget drops references to the session, after Done.
func (p *Reader) Forget() {
	p.session, p.client, p.outlet, p.why, p.patterns = nil, nil, nil, nil, nil
	p.stop = nil // closed if why was set
}

// releaseFrames drops references to the frames that were taken, so that evicted messages
// can be freed.
func (p *Reader) releaseFrames() {
	if cap(p.frames) > keptFrames {
		p.frames = nil
	}
	clear(p.frames[:cap(p.frames)])
}

// keptFrames is the longest list of frames that a poll keeps for the next Take.
const keptFrames = 16

// Taken returns what the last Take or TakeOrPark returned.
func (p *Reader) Taken() []*frame.Frame { return p.frames }

// Patterns returns the positions of the session's patterns that hold for a client with the
// frames of the last Take or HandOver. Only a poll that AcksLater has them.
func (p *Reader) Patterns() []wire.Position { return p.patterns }

func (p *Reader) notePatternsLocked() {
	p.patterns = p.patterns[:0]
	for _, pattern := range p.session.patterns {
		p.patterns = append(p.patterns, pattern.positionLocked())
	}
}

// Hello returns the position from which each topic continues: frames that are not acked
// come again. If the session has ended, they are the positions of its problem.
func (p *Reader) Hello() []wire.Position {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return append([]wire.Position{}, s.ended.Positions...) // not nil: it would be null in JSON
	}
	return s.ackedPositionsLocked()
}
