package transport

import (
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// batch waits until there is a frame and answers with all that is there, within
// limit, and its length. An answer so grows by itself with the load.
func (t *Server) batch(w *writer, hello *wire.Hello, limit broker.Limit) (string, error) {
	frames, err := w.take(limit, t.patience(hello))
	if err != nil {
		return "", err
	}
	n, err := w.answer.Whole(w.lead(hello), frames)
	if err != nil {
		return "", err
	}
	if len(frames) == 0 {
		return outcomeEmpty, nil
	}
	w.wrote(frames, n)
	return outcomeFrames, nil
}

// multiple leaves at once with what is there and stays open while more keeps
// coming: until nothing came for MaxOutputDelay, or the bounds are reached.
func (t *Server) multiple(w *writer, hello *wire.Hello, limit broker.Limit) (string, error) {
	frames, err := w.take(limit, t.patience(hello))
	if err != nil {
		return "", err
	}
	if len(frames) == 0 && hello == nil {
		_, err := w.answer.Whole(nil, nil)
		return outcomeEmpty, err
	}
	begun := time.Now()
	first := w.lead(hello)
	for {
		n, err := w.answer.Send(first, frames)
		if err != nil {
			return outcomeGone, nil
		}
		w.wrote(frames, n)
		first = nil
		limit.Bytes -= n
		wait := min(t.config().MaxOutputDelay, t.config().MultipleTime-time.Since(begun))
		if limit.Bytes <= 0 || wait <= 0 {
			return outcomeFrames, nil
		}
		if frames, err = w.take(limit, wait); err != nil {
			return w.end(err), nil
		}
		if len(frames) == 0 {
			return outcomeFrames, nil
		}
	}
}

// patience is how long a poll parks: not at all if it has something to say.
func (t *Server) patience(hello *wire.Hello) time.Duration {
	if hello != nil {
		return 0
	}
	return t.config().PollTimeout
}

func (w *writer) lead(hello *wire.Hello) []byte {
	if hello == nil {
		return nil
	}
	return w.events.hello(w.format, hello)
}
