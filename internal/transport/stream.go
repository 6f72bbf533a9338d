package transport

import (
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// streamTo says hello and then writes what comes, at once, for as long as the
// client and the session live. A quiet stream beats.
func (t *Server) streamTo(w *writer, s *session.Session, r Request) (string, error) {
	hello := r.Hello
	if hello == nil {
		hello = &wire.Hello{Positions: w.poll.Hello(), Session: s.ID(), Limits: &t.config().limits}
	}
	if _, err := w.answer.Send(w.lead(hello), nil); err != nil {
		return outcomeGone, nil
	}
	limit := t.config().limitOf(r)
	for {
		frames, err := w.take(limit, t.config().Heartbeat)
		if err != nil {
			return w.end(err), nil
		}
		if len(frames) == 0 {
			_, err = w.answer.Send(w.format.Heartbeat(), nil)
		} else {
			var n int
			n, err = w.events.send(w.answer, nil, frames)
			w.wrote(frames, n)
		}
		if err != nil {
			return outcomeGone, nil
		}
	}
}
