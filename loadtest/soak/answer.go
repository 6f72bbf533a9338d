package soak

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// refused reads a problem. One that was asked for is none.
func (h *handworker) refused(resp *http.Response, s *stay, k uint64, impossible bool) error {
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	err = problemOf(resp, content)
	problem, _ := errors.AsType[*wire.Problem](err)
	switch {
	case impossible && problem != nil && (problem.Code == wire.CodeStaleAck && k < s.window.acked || problem.Code == wire.CodeAckBeyondSent && k > s.window.had()):
		return nil
	case problem != nil && (problem.Code == wire.CodeSessionEnded || problem.Code == wire.CodeSessionUnknown) && s.number == h.reign.number.Load():
		h.fault(Protocol, h.who, "", "the session was lost without a restart: %v", problem)
	}
	return err
}

// readAnswer reads an answer's frames to its end. Those that came whole count.
func (h *handworker) readAnswer(resp *http.Response, takeLocked func(wire.Content)) error {
	frames := wire.NewDecoder(resp.Body)
	leave := time.Now().Add(time.Duration(2+h.rng.IntN(20)) * time.Second)
	for {
		c, err := frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return h.properEnd()
		case err != nil:
			h.staged.cutAnswers.Add(1)
			return h.cut(err)
		case c.End != nil:
			return c.End
		}
		h.locked(func() { takeLocked(c) })
		if h.isCalm() || h.way.mode != pubsub.Stream && h.way.mode != pubsub.Multiple {
			continue
		}
		if h.rng.IntN(100) == 0 {
			h.pause() // in the middle of an answer
		}
		if h.way.mode == pubsub.Stream && (time.Now().After(leave) || h.mayLeave()) {
			h.hangUp() // or the body's Close would read on to its end
			return h.cut(errLeft)
		}
	}
}

// locked calls do with the lock, which even a panic gives back: or it would not be
// seen.
func (h *handworker) locked(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
}

// errLeft is a stream that we closed.
var errLeft = errors.New("the stream was left")

// properEnd judges an answer that ended as answers do: a stream does not, by itself.
func (h *handworker) properEnd() error {
	if h.way.mode == pubsub.Stream {
		h.staged.cutAnswers.Add(1)
		return h.cut(io.ErrUnexpectedEOF)
	}
	return nil
}

// cut gives a session's stream up, whose frames count as acked when they are written,
// and a session that makes no sense.
func (h *handworker) cut(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.way.mode == pubsub.Stream || errors.Is(err, errNotOurs) {
		h.session = nil
	}
	return err
}

// takeLocked takes frame number n of a session.
func (h *handworker) takeLocked(s *stay, n uint64, c wire.Content) {
	f := frameOf(c)
	arrival, err := s.window.take(n, f)
	if err != nil {
		h.fault(Repeat, h.who, f.position.Topic, "%v", err)
		return
	}
	if h.pattern != "" && f.position.Topic == h.pattern {
		h.patternGapLocked(arrival, c)
		return
	}
	t := h.trails[f.position.Topic]
	if t == nil {
		t = h.joinedLocked(s, f)
	}
	switch {
	case arrival != isNew:
		h.repeatedLocked(t, arrival, c)
	case t != nil:
		t.frame(c, time.Now())
	case s.isAdding(f.position.Topic):
		s.pending = append(s.pending, arrived{c, time.Now()})
	case !s.left[f.position.Topic]:
		h.fault(Protocol, h.who, f.position.Topic, "%v arrived for a topic without a subscription", f)
	}
}

func (h *handworker) repeatedLocked(t *trail, a arrival, c wire.Content) {
	h.staged.repeats.Add(1)
	switch {
	case c.Message != nil:
		h.ledger.delivered(h.who, c.Message)
	case a == gone:
		h.staged.became.Add(1)
		if t != nil {
			t.became(c.Gap, time.Now())
		}
	}
}
