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

// wrongHost refuses a request whose Host names another server. It repeats the Host, because a
// proxy may have changed it.
func wrongHost(r *http.Request) *wire.Problem {
	return problem.New(wire.CodeWrongHost, "use an IP address or a name in the daemon's setting hosts, or add this name to hosts",
		"the daemon does not serve the name in Host; the request arrived with Host %s", wire.Quote(r.Host))
}

// errNotServed refuses a request for a path that does not exist. It repeats the path, because a
// proxy may have left a prefix on it, but no session's id.
func errNotServed(r *http.Request) *wire.Problem {
	path, remedy := r.URL.Path, "for the paths, see pubsubd help protocol or GET /v1/openapi.yaml"
	if prefix, _, _ := strings.Cut(path, "/v1/"); prefix != "" && prefix != path {
		remedy = "let the proxy remove the prefix " + wire.Quote(prefix) + " from the path (nginx: a proxy_pass that ends in /), or correct the base URL"
	}
	if before, _, found := strings.Cut(path, "/sessions/"); found {
		path = before + "/sessions/…"
	}
	return problem.New(wire.CodeNotFound, remedy, "nothing is served at %s", wire.Quote(path))
}

// errOrigin refuses an action to a page of another origin, and logs the origin. It repeats the
// Host, with which the daemon compares the origin, because a proxy may have changed it.
func (a *API) errOrigin(r *http.Request, what string) error {
	a.origins.LogRefused(r.Header.Get("Origin"))
	return problem.New(wire.CodeForbidden,
		"add the page's origin to the daemon's setting cors.origins, or serve the page from the daemon's own origin through a proxy that forwards Host",
		"a page of another origin cannot %s; the request arrived with Origin %s and Host %s", what, wire.Quote(r.Header.Get("Origin")), wire.Quote(r.Host))
}
