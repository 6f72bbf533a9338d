package httpapi

import (
	"context"
	"iter"
	"net/http"
	"strconv"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/request"
)

// A longAnswer is an answer with status 200 that is produced while its client reads. It is
// sent in chunks of about app.PieceBytes. An answer that fits one chunk is sent whole, with
// its Content-Length. The write timeout is for all chunks together.
type longAnswer struct {
	api   *API
	w     *response
	piece []byte
	sent  bool  // a piece was
	err   error // app.ErrClientGone: nothing more is sent
}

func (a *API) long(w http.ResponseWriter, contentType string) *longAnswer {
	w.Header().Set("Content-Type", contentType)
	return &longAnswer{api: a, w: w.(*response)}
}

// longList is long for lists. It begins a turn, and leaves the slot of the call.
func (a *API) longList(w http.ResponseWriter, r *http.Request, leave func()) *longAnswer {
	l := a.long(w, typeJSON)
	l.err = l.w.takeTurn(r.Context(), a.Limiter)
	leave()
	return l
}

// append returns an error once the client has left.
func (l *longAnswer) append(b []byte) error {
	if len(l.piece) > 0 && len(l.piece)+len(b) > app.PieceBytes {
		l.send()
	}
	l.piece = append(l.piece, b...)
	return l.err
}

func (l *longAnswer) text(s string) { _ = l.append([]byte(s)) }

// list appends values in JSON with commas between them, until the client leaves. It does so in
// turns.
func list[V any](ctx context.Context, l *longAnswer, values iter.Seq[V]) {
	comma := ""
	for v := range values {
		if l.err == nil {
			l.err = l.w.takeTurn(ctx, l.api.Limiter)
		}
		if l.append(append([]byte(comma), request.InJSON(v)...)) != nil {
			return
		}
		comma = ","
	}
}

func (l *longAnswer) send() {
	if !l.sent {
		l.api.allowWriting(l.w)
		l.sent = true
	}
	if l.err == nil {
		_, l.err = l.w.Write(l.piece)
	}
	l.piece = l.piece[:0]
}

// end sends what is left, and a last text.
func (l *longAnswer) end(last string) error {
	l.text(last)
	if !l.sent {
		l.w.Header().Set("Content-Length", strconv.Itoa(len(l.piece)))
	}
	l.send()
	return l.err
}
