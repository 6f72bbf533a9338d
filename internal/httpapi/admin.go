package httpapi

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// AdminConfig is what the handler of the admin listener is made of. All fields are required.
type AdminConfig struct {
	App      *app.App
	Metrics  *prometheus.Registry
	Sessions *session.Registry
	Ready    func() string // why the daemon is not ready, or ""
	LogLevel http.Handler  // answers GET with the level and lets PUT set it, as a zap.AtomicLevel does
	Hosts    *cors.Hosts   // the names under which operators may address it

	// Key returns the key of operators, or nil if there is none.
	Key func() ([]byte, error)
}

// NewAdmin returns the handler of the admin listener: a page of links, metrics, health, the list of sessions,
// profiles, the log's level and revocations.
//
// Requests that change something need the key of operators, or come over a Unix socket. So do
// profiles: they slow the daemon down, and the command line may be secret. The list of
// sessions and each profile are served at a bounded rate. Requests of web pages are refused.
func NewAdmin(cfg AdminConfig) http.Handler {
	router := adminRouter(cfg)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		closeIfFramedTwice(w, r)
		switch {
		case !cfg.Hosts.Allow(r.Host):
			writeProblem(w, wrongHost(r))
		case r.Header["Origin"] != nil:
			writeProblem(w, problem.New(wire.CodeForbidden, "use a client that is not a browser, such as curl", "web pages may not use the admin listener"))
		case isEscaped(r):
			writeProblem(w, errEscaped())
		case isOfServer(r):
			w.Header().Set("Allow", allowAdmin)
			w.WriteHeader(http.StatusNoContent)
		default:
			router.ServeHTTP(w, r)
		}
	})
}

func adminRouter(cfg AdminConfig) *mux.Router {
	r := mux.NewRouter()
	gets := func(get http.Handler) http.Handler { return byMethod(map[string]http.Handler{"GET": get}) }
	r.Handle("/", gets(http.HandlerFunc(showIndex)))
	r.Handle("/openapi.yaml", gets(http.HandlerFunc(describeAdmin)))
	r.Handle("/metrics", gets(promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{})))
	r.Handle("/livez", gets(health(func() string { return "" })))
	r.Handle("/readyz", gets(health(cfg.Ready)))
	r.Handle("/sessions", gets(rarely(cfg.answer(cfg.listSessions))))
	r.Handle("/loglevel", byMethod(map[string]http.Handler{"GET": asJSON(cfg.LogLevel), "PUT": cfg.operatorsOnly(asJSON(cfg.LogLevel))}))
	r.Handle("/revocations", byMethod(map[string]http.Handler{
		"GET":  cfg.operatorsOnly(cfg.answer(cfg.listRevocations)), // names of users
		"POST": cfg.operatorsOnly(cfg.answer(cfg.revoke)),
	}))
	profiles := func(serve http.HandlerFunc) http.Handler { return gets(cfg.operatorsOnly(rarely(bounded(serve)))) }
	r.Handle("/debug/pprof/cmdline", profiles(pprof.Cmdline))
	r.Handle("/debug/pprof/profile", profiles(pprof.Profile))
	r.Handle("/debug/pprof/trace", profiles(pprof.Trace))
	r.PathPrefix("/debug/pprof/").Handler(profiles(pprof.Index))
	r.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem.New(wire.CodeNotFound, "for the paths, see GET / or pubsubd help operating", "nothing is served here"))
	})
	return r
}

// allowAdmin lists the methods of all paths.
const allowAdmin = "GET, HEAD, OPTIONS, POST, PUT"

// byMethod serves a path with a handler for each method. HEAD is served as GET is: net/http omits
// the body. Other methods are refused.
func byMethod(served map[string]http.Handler) http.Handler {
	if get := served[http.MethodGet]; get != nil {
		served[http.MethodHead] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asGet := *r // some handlers know no HEAD
			asGet.Method = http.MethodGet
			get.ServeHTTP(w, &asGet)
		})
	}
	allow := allowOf(served)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve := served[r.Method]
		if serve == nil {
			w.Header().Set("Allow", allow) // RFC 9110, section 15.5.6
			writeProblem(w, errMethod(r, allow))
			return
		}
		serve.ServeHTTP(w, r)
	})
}

//go:embed admin.html
var index []byte

// showIndex answers with a page of links.
func showIndex(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeAdmin(w, http.StatusOK, "text/html; charset=utf-8", bytes.TrimSpace(index))
}

// rarely serves a burst of 5 requests, and then one a second. Each may take a processor for
// half a second.
func rarely(h http.Handler) http.Handler {
	times := rate.NewLimiter(1, 5)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !times.Allow() {
			writeProblem(w, problem.New(wire.CodeLimited, "retry after retry_after_ms", "this answer takes much CPU, so it is made once a second").Retry(time.Second))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// mostProfileSeconds bounds how long a profile is collected, and so what it holds.
const mostProfileSeconds = 60

// bounded serves profiles, unless they are collected for too long. It drops the body, because
// pprof would read a form in it, with other seconds and of any size.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.NoBody
		if query := r.URL.Query(); query.Has("seconds") {
			seconds := query.Get("seconds")
			if n, err := strconv.ParseFloat(seconds, 64); err != nil || !(n > 0 && n <= mostProfileSeconds) {
				writeProblem(w, problem.New(wire.CodeInvalidRequest, fmt.Sprintf("send seconds=N, with N above 0 and at most %d", mostProfileSeconds), "seconds is not valid"))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// operatorsOnly serves requests that have the key of operators (RFC 6750, section 2.1), or
// that came over a Unix socket, to which only the daemon's user can connect.
func (cfg *AdminConfig) operatorsOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if problem := cfg.checkOperator(r); problem != nil {
			if problem.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			writeProblem(w, problem)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (cfg *AdminConfig) checkOperator(r *http.Request) *wire.Problem {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" {
		return nil
	}
	key, err := cfg.Key()
	switch {
	case err != nil:
		return problem.New(wire.CodeInternal, "correct the file that admin.key_file names", "%v", err)
	case key == nil:
		return problem.New(wire.CodeForbidden, "set admin.key_file, or set listen.admin to a Unix socket (unix:/run/pubsubd/admin.sock)",
			"the admin listener is read-only, because it has no key")
	}
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given, want := sha256.Sum256([]byte(strings.TrimSpace(secret))), sha256.Sum256(key)
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(given[:], want[:]) != 1 {
		return problem.New(wire.CodeUnauthorized, "send Authorization: Bearer KEY, with the key in the file that admin.key_file names",
			"the request does not have the operators' key")
	}
	return nil
}

// health answers 200 "ok", or 503 with the reason.
func health(why func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status, text := http.StatusOK, "ok"
		if reason := why(); reason != "" {
			status, text = http.StatusServiceUnavailable, reason
		}
		writeAdmin(w, status, "text/plain; charset=utf-8", []byte(text))
	})
}

// answer answers in JSON with what ask returns.
func (cfg *AdminConfig) answer(ask func(w http.ResponseWriter, r *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := ask(w, r)
		if err != nil {
			writeProblem(w, cfg.App.Problem(err))
			return
		}
		writeAdmin(w, http.StatusOK, typeJSON, request.InJSON(answer))
	})
}

// listSessions returns the open sessions that lag or idle most. It does not show their ids, which
// are capabilities.
func (cfg *AdminConfig) listSessions(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, by, err := request.SessionListOf(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	return cfg.Sessions.List(n, by, time.Now()), nil
}

// maxRevokeBytes bounds the body of a revocation.
const maxRevokeBytes = 8 << 10

// revoke refuses tokens, or ends a session.
func (cfg *AdminConfig) revoke(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := readAtMost(w, r, maxRevokeBytes)
	if err != nil {
		return nil, err
	}
	asked, err := request.RevokeOf(body)
	if err != nil {
		return nil, err
	}
	return cfg.App.Revoke(asked, time.Now())
}

// listRevocations returns the newest revocations.
func (cfg *AdminConfig) listRevocations(_ http.ResponseWriter, r *http.Request) (any, error) {
	page := request.PageOf(r.URL.RawQuery)
	if page.Fault != nil {
		return nil, page.Fault
	}
	return cfg.App.Revocations(page.Limit, time.Now()), nil
}

// asJSON adds the content type that h leaves out.
func asJSON(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeJSON)
		w.Header().Set("Cache-Control", "no-store")
		h.ServeHTTP(w, r)
	})
}

func writeProblem(w http.ResponseWriter, p *wire.Problem) {
	if after := limit.RetryAfter(p); after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
	}
	writeAdmin(w, p.Status, wire.ProblemType, request.InJSON(p))
}

func writeAdmin(w http.ResponseWriter, status int, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // that the client has left is no error
}
