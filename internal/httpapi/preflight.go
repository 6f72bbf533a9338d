package httpapi

import (
	"net/http"
	"strings"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// isPreflight reports whether a browser asks, before a request, whether a page of another
// origin may send it.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && strings.HasPrefix(r.URL.Path, "/v1/") &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflightSeconds is how long a browser may cache the answer. Chromium caches at most
// these two hours; other browsers have caps of their own.
const preflightSeconds = "7200"

// answerPreflight lists what pages may send. It does not authenticate: browsers send no
// Authorization here.
func (a *API) answerPreflight(w http.ResponseWriter, r *http.Request) error {
	if !a.origins.Allows(r.Header.Get("Origin")) {
		return a.errOrigin(r, "send this request")
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id, traceparent, tracestate")
	h.Set("Access-Control-Max-Age", preflightSeconds)
	return a.writeNothing(w)
}

// ofAllowedPage refuses requests of pages that may not use the API. It is for those that
// make sessions and topics by GET, which any page can send with an <img>.
func (a *API) ofAllowedPage(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		if a.origins.CheckPage(r) != nil {
			return a.App.Reject(c, a.errOrigin(r, "subscribe"))
		}
		return serve(w, r, c)
	}
}

// wrongHost refuses a request whose Host names another server.
func wrongHost() *wire.Problem {
	return problem.New(wire.CodeWrongHost, "use an IP address or a name in the daemon's setting hosts, or add this name to hosts",
		"the daemon does not serve the name in Host")
}

// errOrigin refuses an action to a page of another origin, and logs the origin.
func (a *API) errOrigin(r *http.Request, what string) error {
	a.origins.LogRefused(r.Header.Get("Origin"))
	return problem.New(wire.CodeForbidden,
		"add the page's origin to the daemon's setting cors.origins, or serve the page from the daemon's own origin through a proxy that forwards Host",
		"a page of another origin cannot %s", what)
}
