package httpapi

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/observe"
)

// A response is an http.ResponseWriter whose bytes count in the memory account while
// its client does not take them: net/http blocks in Write.
type response struct {
	http.ResponseWriter
	listen.Owner // the address that the request is counted for
	unread       memory.UnreadBytes
	isHead       bool           // the answer has no body: net/http does not write it
	entry        *observe.Entry // in the access log; nil: the request is not logged
	turn         *limit.Gate    // from which takeTurn has a turn; nil: there is none
}

func (a *API) response(w http.ResponseWriter, r *http.Request) *response {
	nc := listen.FromContext(r.Context())
	answer := &response{ResponseWriter: w, Owner: listen.Owner{Conn: listen.Of(nc)}, isHead: r.Method == http.MethodHead}
	if counted := listen.Counted(nc); counted != nil {
		answer.Who = counted.Who(r.Header["X-Forwarded-For"])
	} else {
		at, _ := netip.ParseAddrPort(r.RemoteAddr) // requests without an address share one
		answer.Who = a.Limiter.WhoAt(at.Addr())
	}
	answer.unread.Init(a.Polls.Memory(), answer)
	return answer
}

// takeTurn begins a turn (limit.Limiter.Turns), unless w has one, to prepare a part of a long
// answer: many clients may ask for them at once. write ends it, since the client may not read. The
// error is app.ErrClientGone.
func (w *response) takeTurn(ctx context.Context, l *limit.Limiter) error {
	if w.turn != nil {
		return nil
	}
	if l.Turns().Enter(ctx, w.Client()) != nil {
		return app.ErrClientGone
	}
	w.turn = l.Turns()
	return nil
}

func (w *response) endTurn() {
	if w.turn != nil {
		w.turn.Leave()
		w.turn = nil
	}
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.entry != nil {
		w.entry.Status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) { return len(b), w.write([]frame.Part{{Bytes: b}}) }

// pinFrom is from how many bytes on frames are pinned while they are written, so that
// they count even if no history holds them. Fewer bytes are not worth the price.
const pinFrom = 16 << 10

// write writes parts, outside of a turn. Until it returns, they count as unread; parts of frames
// count with their messages. The error is app.ErrClientGone.
func (w *response) write(parts []frame.Part) error {
	w.endTurn()
	if w.isHead {
		w.entry.Wrote(0)
		return nil
	}
	own, shared := 0, 0
	for _, p := range parts {
		if p.Frame == nil {
			own += len(p.Bytes)
		} else {
			shared += len(p.Bytes)
		}
	}
	w.entry.Wrote(own + shared)
	if own+shared > memory.SmallWrite {
		w.unread.Set(own, shared)
		defer w.unread.Set(0, 0)
	}
	if shared > pinFrom {
		pinned(parts, (*frame.Frame).Pin)
		defer pinned(parts, (*frame.Frame).Unpin)
	}
	for _, p := range parts {
		if _, err := w.ResponseWriter.Write(p.Bytes); err != nil {
			return app.ErrClientGone
		}
	}
	return nil
}

// pinned calls pin for the frame of each part that has one.
func pinned(parts []frame.Part, pin func(*frame.Frame)) {
	for _, p := range parts {
		if p.Frame != nil {
			pin(p.Frame)
		}
	}
}
