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

// endEventStream answers an EventSource whose same request may succeed later, and returns false for
// any other request. An EventSource reconnects only after status 200, so the refusal is sent with it.
// It learns when to reconnect, and its last id again: a client that follows the standard forgets its
// id after an event without one.
func (a *API) endEventStream(w http.ResponseWriter, r *http.Request, p *wire.Problem) bool {
	if r.Method != http.MethodGet || r.URL.Path != ssePath || isEscaped(r) {
		return false
	}
	asked := request.EventsOf(r.URL.RawQuery, r.Header["Last-Event-Id"], &auth.Credentials{}) // once more
	switch {
	case p.Status == http.StatusTooManyRequests, p.Status >= http.StatusInternalServerError:
	case (p.Status == http.StatusConflict || p.Status == http.StatusGone) && asked.Session == "":
		// Its session was replaced or ended just now, and the client can start another one.
	default:
		return false
	}
	e := frame.Event{RetryMS: frame.EventRetry(p), ID: asked.Had.Append(nil)}
	w.Header().Set("Content-Type", frame.EventStream.ContentType())
	a.writeWhole(w, http.StatusOK, e.Append(nil, wire.Content{End: p}))
	return true
}
