package session

import (
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A session with echo=false leaves out the client's own messages. A client that does not know that
// its position has moved past them resumes before them. If the history has evicted them, it gets a
// gap, although it misses nothing. So it gets moved positions: a frame that acks do not count.
//
// An answer that ends has them last. A stream gets them one to two seconds after the first message
// that was left out since the last moved frame. An idle answer repeats those of every topic that
// had no frame since, because nobody acks a moved frame, and an earlier answer may have been lost.

// tellNow is the value of Session.tellAt if the next Take of a stream, or the end of the next
// answer, has the moved positions.
const tellNow = 1

// maxMoved is how many positions a moved frame has, except that of an idle answer: it may be encoded
// while the session is locked.
const maxMoved = 256

// noteMovedLocked notes that own messages were left out after the last frame of a topic.
func (s *Session) noteMovedLocked(now time.Time) {
	switch p := s.readers.newest; {
	case s.tellAt > 0:
	case p == nil || !p.lasts:
		s.tellAt = tellNow
	default:
		s.tellAt = uint32(now.Sub(s.opened)/time.Second) + 2 // a whole second later at least
		s.registry.sessions.visitBy(s, s.tellTimeLocked())
	}
}

// tellTimeLocked returns when a stream gets its moved positions.
func (s *Session) tellTimeLocked() time.Time {
	return s.opened.Add(time.Duration(s.tellAt) * time.Second)
}

// tellMovedLocked gives a stream its moved positions if it is time. A goroutine that waits on the
// queue is woken to take them.
func (s *Session) tellMovedLocked(now time.Time) {
	if s.tellAt <= tellNow || now.Before(s.tellTimeLocked()) {
		return
	}
	s.tellAt = tellNow
	p := s.readers.newest
	switch {
	case p == nil || !p.lasts: // the next answer has them
	case s.readers.parked == p:
		if f := p.movedLocked(false, now); f != nil {
			s.giveLocked([]*frame.Frame{f}, now)
		}
	default:
		select {
		case s.queue.frames <- queued{}:
		default: // it does not wait
		}
	}
}

// movedLocked returns the frame with the positions that have moved, or nil. idle: of all topics
// that had no frame since, for an answer without another frame; they count as not told.
func (p *Reader) movedLocked(idle bool, now time.Time) *frame.Frame {
	s := p.session
	switch {
	case !s.noEcho || !idle && s.tellAt == 0:
		return nil
	case s.readers.newest != p: // the poll that replaced it may have taken frames before them
		return nil
	case p.resent < len(s.window.unacked): // what was lost comes first
		return nil
	}
	if !idle {
		s.tellAt = 0
	}
	var positions []wire.Position
	for topic, sub := range s.subs.all() {
		switch {
		case sub.behind || sub.cursor <= sub.last || sub.sentTo.Epoch != sub.epoch:
		case sub.last > sub.sentTo.Offset, !idle && len(positions) == maxMoved:
			s.noteMovedLocked(now) // queued frames come first, and the rest of many topics later
		case idle || sub.cursor > sub.sentTo.Offset:
			positions = append(positions, wire.Position{Topic: topic, Epoch: sub.epoch, Offset: sub.cursor})
			if !idle {
				sub.sentTo = positions[len(positions)-1]
			}
		}
	}
	if positions == nil {
		return nil
	}
	slices.SortFunc(positions, func(x, y wire.Position) int { return strings.Compare(x.Topic, y.Topic) })
	return frame.NewMoved(positions)
}

// withMovedLocked returns the frames of an answer that ends, followed by the moved positions, if any.
func (p *Reader) withMovedLocked(frames []*frame.Frame, now time.Time) []*frame.Frame {
	if f := p.movedLocked(len(frames) == 0, now); f != nil {
		return append(slices.Clip(frames), f) // other subscribers may share the memory behind them
	}
	return frames
}

// WithMoved returns the frames of an answer that ends, followed by a frame with the positions that
// have moved past the client's own messages, if there are any.
func (p *Reader) WithMoved(frames []*frame.Frame) []*frame.Frame {
	s := p.session
	if !s.noEcho { // Fast path: most sessions.
		return frames
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.withMovedLocked(frames, time.Now())
}

// reachedLocked returns where a client with all acked frames continues.
func (sub *subscription) reachedLocked() wire.Position {
	at := sub.ackedTo
	if sub.session.noEcho && !sub.behind && at.Epoch == sub.epoch && at.Offset == sub.last {
		at.Offset = max(at.Offset, sub.cursor)
	}
	return at
}
