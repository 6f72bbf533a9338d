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
		// An EventSource does not reconnect after this status (HTML, section "Processing
		// model").
		return a.writeNothing(w)
	}
	if err != nil {
		return err
	}
	return a.servePoll(w, r, s, req)
}

func eventStreamOf(r *http.Request) app.EventStream {
	return app.EventStream{Query: r.URL.RawQuery, LastEventID: r.Header["Last-Event-Id"]}
}

// mayReconnect reports whether the same request of an EventSource may succeed later. An
// EventSource reconnects only after status 200, so such a refusal is sent with it.
func mayReconnect(r *http.Request, p *wire.Problem) bool {
	switch {
	case r.Method != http.MethodGet, r.URL.Path != ssePath, isEscaped(r):
		return false
	case p.Status == http.StatusConflict, p.Status == http.StatusGone: // its session was replaced or ended just now
		return !eventStreamOf(r).NamesSession()
	}
	return p.Status == http.StatusTooManyRequests || p.Status >= http.StatusInternalServerError
}

// endEventStream tells an EventSource when to reconnect. It repeats the client's last id: a
// client that follows the standard forgets its id after an event without one.
func (a *API) endEventStream(w http.ResponseWriter, r *http.Request, p *wire.Problem) {
	e := frame.Event{RetryMS: frame.EventRetry(p), ID: eventStreamOf(r).LastEvent().Append(nil)}
	w.Header().Set("Content-Type", frame.EventStream.ContentType())
	a.writeWhole(w, http.StatusOK, e.Append(nil, wire.Content{End: p}))
}
