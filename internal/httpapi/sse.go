package httpapi

import (
	"net/http"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const ssePath = "/v1/sse"

// sse answers an EventSource: a stream to which its client reconnects with the id of the
// last event that it has.
func (a *API) sse(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	e := request.EventsOf(r.URL.RawQuery, r.Header["Last-Event-Id"], &c.Credentials)
	o, err := a.App.BeginOpen(r.Context(), c, limit.Polls, app.OnTopics(e.Session))
	if err != nil {
		return err
	}
	s, req, err := o.Events(e)
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

// eventsOf reads r again, for an answer to a refusal.
func eventsOf(r *http.Request) request.Events {
	return request.EventsOf(r.URL.RawQuery, r.Header["Last-Event-Id"], &auth.Credentials{})
}

// mayReconnect reports whether the same request of an EventSource may succeed later. An
// EventSource reconnects only after status 200, so such a refusal is sent with it.
func mayReconnect(r *http.Request, p *wire.Problem) bool {
	switch {
	case r.Method != http.MethodGet, r.URL.Path != ssePath, isEscaped(r):
		return false
	case p.Status == http.StatusConflict, p.Status == http.StatusGone: // its session was replaced or ended just now
		return eventsOf(r).Session == "" // otherwise the client cannot start another one
	}
	return p.Status == http.StatusTooManyRequests || p.Status >= http.StatusInternalServerError
}

// endEventStream tells an EventSource when to reconnect. It repeats the client's last id: a
// client that follows the standard forgets its id after an event without one.
func (a *API) endEventStream(w http.ResponseWriter, r *http.Request, p *wire.Problem) {
	e := frame.Event{RetryMS: frame.EventRetry(p), ID: eventsOf(r).Had.Append(nil)}
	w.Header().Set("Content-Type", frame.EventStream.ContentType())
	a.writeWhole(w, http.StatusOK, e.Append(nil, wire.Content{End: p}))
}
