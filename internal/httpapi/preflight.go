package httpapi

import (
	"net/http"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// isPreflight reports whether r is a browser's question whether a page of another
// origin may send a request.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && strings.HasPrefix(r.URL.Path, "/v1/") &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflightSeconds is how long a browser may go by the answer. Chromium takes no
// more than these two hours, and others cap it for themselves.
const preflightSeconds = "7200"

// answerPreflight tells what pages may send. It asks nobody who it is: browsers send
// no Authorization here.
func (a *API) answerPreflight(w http.ResponseWriter, r *http.Request) error {
	if !a.origins.Allows(r.Header.Get("Origin")) {
		return errOrigin("send this request")
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, Last-Event-ID")
	h.Set("Access-Control-Max-Age", preflightSeconds)
	a.patience(w)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// errOrigin tells a page of another origin, or who looks into why, what it may not
// do.
func errOrigin(what string) error {
	return wire.NewProblem(wire.CodeForbidden,
		"serve the page from the daemon's own origin, through a proxy that passes Host on, or allow its origin in the daemon's setting cors.origins",
		"a page of another origin may not %s here", what)
}
