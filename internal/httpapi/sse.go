package httpapi

import (
	"net/http"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const ssePath = "/v1/sse"

// sse answers an EventSource: a stream to which its client reconnects with the id of the
// last event that it has.
func (a *API) sse(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	s, req, err := a.App.OpenEvents(r.Context(), c, eventStreamOf(r))
	if session.ClosedByClient(err) {
		// The one status beside errors that an EventSource takes for the end (HTML,
		// section "Processing model").
		a.patience(w)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if err != nil {
		return err
	}
	return a.serveOpened(w, r, s, req)
}

func eventStreamOf(r *http.Request) app.EventStream {
	return app.EventStream{Query: r.URL.RawQuery, LastEventID: r.Header["Last-Event-Id"]}
}

// mayComeBack reports whether a client that was refused may be served later, as it
// asks. An EventSource comes back only after an answer of status 200.
func mayComeBack(r *http.Request, p *wire.Problem) bool {
	if r.Method != http.MethodGet || r.URL.Path != ssePath {
		return false
	}
	switch p.Status {
	case http.StatusConflict, http.StatusGone: // its session was another's, or went, this very moment
		return true
	case http.StatusTooManyRequests:
		return true
	}
	return p.Status >= http.StatusInternalServerError
}

// endEventStream tells an EventSource when to come back. It is given its own id again:
// a client that keeps to the standard forgets what it had with any event that has none.
func (a *API) endEventStream(w http.ResponseWriter, r *http.Request, p *wire.Problem) {
	e := frame.Event{RetryMS: frame.EventRetry(p), ID: eventStreamOf(r).LastEvent().Append(nil)}
	w.Header().Set("Content-Type", frame.EventStream.ContentType())
	a.writeWhole(w, http.StatusOK, e.AppendEnd(nil, p))
}
