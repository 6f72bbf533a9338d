package httpapi

import (
	"net/http"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/internal/observe"
)

// observed echoes the id of a request in the head of its answer, and returns the request with
// the trace of its client, if it has one.
func observed(h http.Header, r *http.Request) *http.Request {
	if id := observe.RequestID(r.Header["X-Request-Id"]...); id != "" {
		h.Set("X-Request-Id", id)
	}
	if parent := r.Header["Traceparent"]; len(parent) == 1 {
		r = r.WithContext(observe.Continue(r.Context(), parent[0], r.Header.Get("Tracestate")))
	}
	return r
}

// beginEntry begins the entry of a request in the access log, if the log selects it.
func (a *API) beginEntry(w *response, r *http.Request) {
	e := a.AccessLog.Begin()
	if e == nil {
		return
	}
	e.Method, e.Topic, e.Way = r.Method, mux.Vars(r)["topic"], "net/http"
	if route := mux.CurrentRoute(r); route != nil { // nil: nothing is served there, and the path may have a secret
		e.Route, _ = route.GetPathTemplate()
	}
	e.Client, e.Agent, e.RequestID = w.Who.Address(), r.UserAgent(), w.Header().Get("X-Request-Id")
	e.TraceID = observe.TraceID(r.Header.Get("Traceparent"))
	w.entry = e
}

// endEntry ends the request's entry in the access log.
func (w *response) endEntry() {
	w.entry.End()
	w.entry = nil
}
