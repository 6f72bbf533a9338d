package httpapi

import (
	"net/http"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/internal/observe"
)

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
