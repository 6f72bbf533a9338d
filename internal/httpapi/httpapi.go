// Package httpapi is every HTTP path of the daemon: publishing, topics, sessions
// and polls on the public listener, health and metrics on the admin one. It turns
// requests into calls and errors into problem+json, each in one place.
package httpapi

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An Authority says who a request comes from and what that principal may do. Its
// errors are *wire.Problems: unauthorized, forbidden. Where it is asked for a
// pattern, it allows all that the pattern stands for, or refuses.
type Authority interface {
	Identify(c auth.Credentials) (auth.Principal, error)
	Allow(p auth.Principal, a auth.Action, topic string) error
}

// Config is what an API stands on. All fields are required.
type Config struct {
	Broker    *broker.Broker
	Sessions  *session.Registry
	Polls     *transport.Server
	Authority Authority
	Limiter   *limit.Limiter
	Hook      Hook
	Metrics   *metrics.Metrics
	Log       *zap.Logger
	Limits    wire.Limits // told to clients; MessageBytes and Subscriptions are held here; until a Reload

	// WriteTimeout is how long one write to a client may take, until a Reload.
	WriteTimeout time.Duration

	// Lane says how polls wait on the lane; LaneOff is without it.
	Lane LaneWay

	// Origins are those whose pages may use the API besides its own; see cors.New.
	Origins []string
}

// An API is the handler of the public listener.
type API struct {
	Config
	router  *mux.Router
	serving serving
	origins *cors.Policy // a page elsewhere could publish in its reader's name
	lane    *lane.Lane   // nil: off
	repeats atomic.Int64 // see awaitFirst

	limits       atomic.Pointer[wire.Limits]
	writeTimeout atomic.Int64 // a time.Duration
}

// New returns an API that stands on cfg. It needs Tick about each second.
func New(cfg Config) *API {
	a := &API{Config: cfg, router: mux.NewRouter().SkipClean(true), origins: cors.New(cfg.Origins)}
	a.setLimits(cfg.Limits)
	a.writeTimeout.Store(int64(cfg.WriteTimeout))
	r := a.router
	v1 := r.PathPrefix("/v1").Subrouter()
	a.route(v1, "/topics", methods{"GET": {limit.Requests, a.listTopics, inCall}})
	a.route(v1, "/topics/{topic}", methods{"GET": {limit.Requests, a.showTopic, inCall}, "DELETE": {limit.Requests, a.deleteTopic, inCall}})
	a.route(v1, "/topics/{topic}/messages", methods{"POST": {limit.Publishes, a.publish, itself}, "GET": {limit.Requests, a.readTopic, inCall}})
	a.route(v1, "/messages", methods{"POST": {limit.Requests, a.publishMany, itself}})
	a.route(v1, "/sessions", methods{"POST": {limit.Sessions, a.openSession, itself}})
	a.route(v1, "/sessions/{id}", methods{"GET": {limit.Requests, a.showSession, inCall}, "PATCH": {limit.Requests, a.changeSession, itself}, "DELETE": {limit.Requests, a.closeSession, inCall}})
	a.route(v1, "/sessions/{id}/close", methods{"POST": {limit.Requests, a.closeSession, inCall}})
	a.route(v1, "/sessions/{id}/poll", methods{"GET": {limit.Polls, a.poll, itself}})
	a.route(v1, "/poll", methods{"GET": {limit.Polls, a.pollByQuery, itself}, "POST": {limit.Polls, a.pollByBody, itself}})
	a.route(v1, "/sse", methods{"GET": {limit.Polls, a.sse, itself}})
	a.route(v1, "/ws", methods{"GET": {limit.Sessions, a.openSocket, itself}})
	a.route(v1, "/openapi.yaml", methods{"GET": {limit.Requests, a.describe, inCall}})
	r.NotFoundHandler = a.handle(func(_ http.ResponseWriter, _ *http.Request, p asker) error {
		if err := a.Limiter.Admit(limit.Requests, p.Who); err != nil {
			return err
		}
		return wire.NewProblem(wire.CodeNotFound, "see PROTOCOL.md for the paths", "nothing is served here")
	})
	a.openLane()
	return a
}

// Reload puts other limits and another write timeout in force. Answers under way
// end as they began.
func (a *API) Reload(limits wire.Limits, writeTimeout time.Duration) {
	a.setLimits(limits)
	a.writeTimeout.Store(int64(writeTimeout))
	if a.lane != nil {
		a.lane.Reload(writeTimeout)
	}
}

func (a *API) setLimits(limits wire.Limits) {
	a.limits.Store(&limits)
	a.Broker.Memory().SetLargestBody(max(limits.MessageBytes, maxRequestBytes))
}

// Limits returns the limits in force. It hides the field of Config, which only has
// what they began as.
func (a *API) Limits() *wire.Limits { return a.limits.Load() }

// ServeHTTP implements http.Handler. After Wait it serves nothing any more.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !a.serving.begin() {
		panic(http.ErrAbortHandler) // its connection has been cut off already
	}
	defer a.serving.end()
	listen.Of(listen.FromContext(r.Context())).Serving()
	closeIfFramedTwice(w, r)
	a.router.ServeHTTP(w, r)
}

// Wait returns when no request is being served any more, and none will be. It is
// called once, after the http.Server was shut down or closed.
func (a *API) Wait() { a.serving.wait() }

// A handler serves one method of one path; the error it returns is told to the
// client.
type handler func(w http.ResponseWriter, r *http.Request, p asker) error

// methods is what a path serves.
type methods map[string]method

// A method is one of a path: by which rate it is limited, who serves it, and who begins
// the call.
type method struct {
	kind  limit.Kind
	serve handler
	calls begins
}

// A begins says who begins the call that a request is: a request must not wait for a
// second place while it has one.
type begins bool

const (
	inCall begins = false // it is served in one, whatever comes with it
	itself begins = true  // whoever serves it, once the body is there; or it is none
)

func (a *API) route(r *mux.Router, path string, served methods) {
	r.Handle(path, a.handle(func(w http.ResponseWriter, r *http.Request, p asker) error {
		m, ok := served[r.Method]
		if !ok {
			m.kind = limit.Requests
		}
		if err := a.Limiter.Admit(m.kind, p.Who); err != nil {
			return err
		}
		if !ok {
			w.Header().Set("Allow", served.allow())
			return wire.NewProblem(wire.CodeMethodNotAllowed, "use "+served.allow(), "%s is not served here", r.Method)
		}
		if r.Method == http.MethodGet && hasBody(r) {
			// net/http would not notice the client leave while the body is unread.
			return wire.NewProblem(wire.CodeInvalidRequest, "send none", "a GET has no body here")
		}
		if m.calls == itself {
			return m.serve(w, r, p)
		}
		return a.serveInCall(w, r, p, m.serve)
	}))
}

// serveInCall serves a request once there is a place for the call.
func (a *API) serveInCall(w http.ResponseWriter, r *http.Request, p asker, serve handler) error {
	call, err := a.Limiter.Begin(r.Context(), p.Who)
	if err != nil {
		return err
	}
	end := sync.OnceFunc(call.End)
	defer end()
	return serve(&callAnswer{w, end}, r, p)
}

// A callAnswer is the answer to a call, which is over when that is about to be written:
// a client that reads slowly holds no place.
type callAnswer struct {
	http.ResponseWriter
	end func()
}

// WriteHeader implements http.ResponseWriter.
func (c *callAnswer) WriteHeader(status int) {
	c.end()
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *callAnswer) Write(b []byte) (int, error) {
	c.end()
	return c.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (c *callAnswer) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// handle is what every request passes: the headers all answers have, who it is,
// and the problem told if there is one.
func (a *API) handle(serve handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store, no-transform")
		h.Set("X-Accel-Buffering", "no")
		h.Set("X-Content-Type-Options", "nosniff")
		a.origins.Announce(h, r.Header.Get("Origin"))
		defer a.expectBody(w, r)()
		err := a.serveWhoever(w, r, serve)
		if refusal, ok := errors.AsType[*limit.Refusal](err); ok && !a.Limiter.Hold(r.Context(), refusal) {
			panic(http.ErrAbortHandler) // it is gone, or it is one of too many
		}
		if err != nil {
			a.fail(w, r, err)
		}
	})
}

// serveWhoever serves a request, once it is known whose it is. What a page asks that may
// not, or asks whether it may, is a request, too.
func (a *API) serveWhoever(w http.ResponseWriter, r *http.Request, serve handler) error {
	asks, strange := isPreflight(r), a.origins.Check(r) != nil
	if asks || strange {
		if err := a.Limiter.Admit(limit.Requests, a.whoOf(r, "")); err != nil {
			return err
		}
	}
	switch {
	case asks:
		a.answerPreflight(w, r)
		return nil
	case strange:
		return errOrigin("change anything")
	}
	p, err := a.askerOf(r)
	if err != nil {
		return err
	}
	return serve(w, r, p)
}
