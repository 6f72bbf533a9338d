// Package httpapi serves every HTTP path of the daemon: publishing, topics, sessions and
// polls on the public listener, health and metrics on the admin listener. It turns
// requests into calls of the app, and results and errors into answers.
package httpapi

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/gorilla/mux"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/pubsubjs"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Config is what an API is made of. All fields but the last are required.
type Config struct {
	App     *app.App
	Limiter *limit.Limiter
	Polls   *transport.Server
	Metrics *metrics.Metrics

	// Way is how polls wait on the lane.
	Way lane.Way

	// Origins are the other origins whose pages may use the API; see cors.New.
	Origins []string

	// Hosts are the names under which clients may address the public listener.
	Hosts *cors.Hosts

	// Log gets the origins whose pages are refused.
	Log *zap.Logger

	// AccessLog may be nil: then there is none.
	AccessLog *observe.AccessLog
}

// An API is the handler of the public listener. All methods may be called concurrently.
type API struct {
	Config
	router  *mux.Router
	serving sync.RWMutex // each request holds it for reading; Wait locks it and never unlocks
	origins *cors.Policy // without it, any web page could publish from its reader's browser

	// Lane takes connections over from net/http. It needs Tick, Drain and Close.
	Lane *lane.Lane
}

// New returns an API made of cfg.
func New(cfg Config) *API {
	a := &API{Config: cfg, router: mux.NewRouter().SkipClean(true), origins: cors.New(cfg.Origins, cfg.Log)}
	r := a.router
	v1 := r.PathPrefix("/v1").Subrouter()
	a.route(v1, "/topics", methods{"GET": a.listTopics})
	a.route(v1, "/topics/{topic}", methods{"GET": a.topic(a.App.Topic), "DELETE": a.topic(a.App.DeleteTopic)})
	a.route(v1, "/topics/{topic}/messages", methods{"POST": a.publish, "GET": a.readTopic})
	a.route(v1, "/topics/{topic}/presence", methods{"GET": a.ofAllowedPage(a.showPresence)})
	a.route(v1, "/messages", methods{"POST": a.publishMany})
	a.route(v1, "/subjects", methods{"POST": a.changeSubject})
	a.route(v1, "/sessions", methods{"POST": a.openSession})
	a.route(v1, "/sessions/{id}", methods{"GET": a.showSession, "PATCH": a.changeSession, "DELETE": a.closeSession})
	a.route(v1, "/sessions/{id}/close", methods{"POST": a.closeSession})
	a.route(v1, "/sessions/{id}/poll", methods{"GET": a.poll})
	a.route(v1, "/poll", methods{"GET": a.ofAllowedPage(a.pollTopics), "POST": a.pollTopics})
	a.route(v1, "/sse", methods{"GET": a.ofAllowedPage(a.sse)})
	a.route(v1, "/ws", methods{"GET": a.openSocket})
	a.route(v1, "/openapi.yaml", methods{"GET": a.describe})
	for _, name := range []string{"client.js", "live.js", "share.js", "outbox.js", "react.js"} {
		a.route(v1, "/"+name, methods{"GET": a.module(pubsubjs.Load(name))})
	}
	r.NotFoundHandler = a.handle(func(_ http.ResponseWriter, r *http.Request, c app.Caller) error {
		return a.App.Reject(c, errNotServed(r))
	})
	a.Lane = lane.New(lane.Config{
		App: a.App, Polls: a.Polls, Limiter: a.Limiter, Metrics: a.Metrics, Origins: a.origins, Hosts: a.Hosts, Way: a.Way,
		AccessLog: a.AccessLog,
	})
	return a
}

// ServeHTTP implements http.Handler. It aborts requests that begin after Wait.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !a.serving.TryRLock() { // Wait was called
		panic(http.ErrAbortHandler) // the server has closed its connection
	}
	defer a.serving.RUnlock()
	closeIfFramedTwice(w, r)
	if isEscaped(r) {
		// A copy, as mux makes: expectBody replaces its body, and net/http finds by its own that a client waits for 100.
		a.router.NotFoundHandler.ServeHTTP(w, r.WithContext(r.Context()))
		return
	}
	a.router.ServeHTTP(w, r)
}

// isEscaped reports whether the path has an escape, of whatever character, or needs one. No valid
// path does, so nothing is served there. A proxy would have to know every spelling of a path (RFC
// 3986, section 2.2): otherwise requests pass its rules by, and its log has the ids of sessions.
func isEscaped(r *http.Request) bool { return strings.Contains(r.URL.EscapedPath(), "%") }

func errEscaped() *wire.Problem {
	return problem.New(wire.CodeNotFound, "write the path without escapes: names of topics and ids of sessions need none", "the path has an escape, or a character that needs one")
}

// Wait prevents further requests, and returns when the last has ended: http.Server.Close
// closes connections, but does not wait for their handlers. Call it once, after the
// http.Server was shut down or closed.
func (a *API) Wait() { a.serving.Lock() }

// A handler turns a request into a call of the app, and the result into the answer. The
// client gets an error as a problem.
type handler func(w http.ResponseWriter, r *http.Request, c app.Caller) error

// methods are the handlers of a path.
type methods map[string]handler

// route serves a path. A path with GET also has HEAD, unless the answer to GET waits for messages:
// net/http omits the body (RFC 9110, section 9.3.2).
func (a *API) route(r *mux.Router, path string, served methods) {
	waits := slices.Contains(waitingPaths, path)
	if get := served[http.MethodGet]; get != nil && !waits {
		served[http.MethodHead] = get
	}
	allow := allowOf(served)
	r.Handle(path, a.handle(func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		serve, ok := served[r.Method]
		switch {
		case !ok:
			w.Header().Set("Allow", allow)
			return a.App.Reject(c, errMethod(r, allow))
		case !(r.Method == http.MethodGet && waits) && queryHasToken(r.URL.RawQuery):
			return a.App.Reject(c, problem.New(wire.CodeInvalidRequest, "send the token as Authorization: Bearer …",
				"only a GET of a poll, an event stream or a WebSocket can have a token in the query"))
		case isRead(r) && hasBody(r):
			// net/http would not notice the client leave while the body is unread.
			return a.App.Reject(c, problem.New(wire.CodeInvalidRequest, "omit the body", "a %s must not have a body", r.Method))
		}
		return serve(w, r, c)
	}))
}

// waitingPaths are those whose GET waits for messages. It may have a token in the query, because
// an EventSource and a WebSocket of a browser cannot send headers. Elsewhere a token in a URL
// would only be logged by proxies.
var waitingPaths = []string{"/poll", "/sessions/{id}/poll", "/sse", "/ws"}

// isRead reports whether r changes nothing, wherever it is served.
func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// isOfServer reports whether r asks what the whole server can do (RFC 9110, section 9.3.7).
func isOfServer(r *http.Request) bool { return r.Method == http.MethodOptions && r.URL.Path == "*" }

// allowAll lists the methods of all paths.
const allowAll = "DELETE, GET, HEAD, OPTIONS, PATCH, POST"

// errMethod refuses a method that a path does not have.
func errMethod(r *http.Request, allow string) *wire.Problem {
	return problem.New(wire.CodeMethodNotAllowed, "use "+allow, "this path does not support the method %.16s", r.Method)
}

// queryHasToken reports whether a query has the parameter token, or might have it if it
// could be read.
func queryHasToken(raw string) bool {
	if raw == "" {
		return false
	}
	values, err := url.ParseQuery(raw)
	return values.Has("token") || err != nil && strings.Contains(raw, "token")
}

// allowOf lists the methods of a path for the Allow header.
func allowOf[H any](served map[string]H) string {
	return strings.Join(slices.Sorted(maps.Keys(served)), ", ")
}

// handle wraps serve with the parts that all requests share: the headers of the answer, the
// caller, and the problem. serve gets a *response.
func (a *API) handle(serve handler) http.Handler {
	return http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		w := a.response(to, r)
		defer w.endTurn()
		h := w.Header()
		h.Set("Cache-Control", "no-store, no-transform")
		h.Set("X-Accel-Buffering", "no")
		h.Set("X-Content-Type-Options", "nosniff")
		a.origins.Announce(h, r.Header.Get("Origin"))
		if id := observe.RequestID(r.Header["X-Request-Id"]...); id != "" {
			h.Set("X-Request-Id", id)
		}
		if parent := r.Header["Traceparent"]; len(parent) == 1 {
			r = r.WithContext(observe.Continue(r.Context(), parent[0], r.Header.Get("Tracestate")))
		}
		a.beginEntry(w, r)
		defer w.endEntry()
		defer a.expectBody(w, r)()
		err := a.serve(w, r, serve)
		if refusal, ok := errors.AsType[*limit.Refusal](err); ok && !a.Limiter.Hold(r.Context(), refusal) {
			panic(http.ErrAbortHandler) // the client has left, or too many refusals are delayed
		}
		if err != nil {
			a.fail(w, r, err)
		}
	})
}

// serve answers preflight requests, and refuses requests for another host and changes by
// pages of other origins. All of these count as requests.
func (a *API) serve(w *response, r *http.Request, serve handler) error {
	given := auth.Credentials{Authorization: r.Header.Get("Authorization"), Certificate: listen.Shown(listen.FromContext(r.Context()), r.TLS)}
	c := app.Caller{Credentials: given, Who: w.Who, Agent: r.UserAgent()}
	switch {
	case !a.Hosts.Allow(r.Host):
		return a.App.Reject(c, wrongHost(r))
	case len(r.Header["Authorization"]) > 1:
		return a.App.Reject(c, problem.New(wire.CodeInvalidRequest, "send one", "a request must have at most one Authorization header; got %d", len(r.Header["Authorization"])))
	case isEscaped(r):
		return a.App.Reject(c, errEscaped())
	case isPreflight(r):
		if err := a.App.Reject(c, nil); err != nil {
			return err
		}
		return a.answerPreflight(w, r)
	case isOfServer(r):
		if err := a.App.Reject(c, nil); err != nil {
			return err
		}
		w.Header().Set("Allow", allowAll)
		return a.writeNothing(w)
	case a.origins.Check(r) != nil:
		return a.App.Reject(c, a.errOrigin(r, "change anything"))
	case isRead(r) && r.Header["Origin"] != nil && a.origins.CheckPage(r) != nil:
		a.origins.LogRefused(r.Header.Get("Origin")) // its browser hides the answer
	}
	return serve(w, r, c)
}
