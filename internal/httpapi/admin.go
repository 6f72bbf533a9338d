package httpapi

import (
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/cors"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// NewAdmin returns the handler of the admin listener: metrics, health, the list of
// sessions, profiles and the log's level. ready returns why the daemon is not ready,
// or "". hosts are the names under which operators may address it. logLevel answers GET with the level and lets PUT set it, as a
// zap.AtomicLevel does.
func NewAdmin(metrics *prometheus.Registry, sessions *session.Registry, ready func() string, hosts *cors.Hosts, logLevel http.Handler) http.Handler {
	router := adminRouter(metrics, sessions, ready, logLevel)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		closeIfFramedTwice(w, r)
		if !hosts.Allow(r.Host) {
			problem := wrongHost()
			writeAdmin(w, problem.Status, wire.ProblemType, app.InJSON(problem))
			return
		}
		router.ServeHTTP(w, r)
	})
}

func adminRouter(metrics *prometheus.Registry, sessions *session.Registry, ready func() string, logLevel http.Handler) *mux.Router {
	r := mux.NewRouter()
	r.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})).Methods("GET")
	r.Handle("/livez", health(func() string { return "" })).Methods("GET")
	r.Handle("/readyz", health(ready)).Methods("GET")
	r.Handle("/sessions", listSessions(sessions)).Methods("GET")
	r.Handle("/loglevel", asJSON(logLevel)).Methods("GET", "PUT")
	r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	r.HandleFunc("/debug/pprof/profile", pprof.Profile)
	r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	r.HandleFunc("/debug/pprof/trace", pprof.Trace)
	r.PathPrefix("/debug/pprof/").HandlerFunc(pprof.Index)
	return r
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

// listSessions answers with the open sessions that lag or idle most. It does not show
// their ids, which are capabilities.
func listSessions(sessions *session.Registry) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, by, problem := app.ReadSessionList(r.URL.RawQuery)
		if problem != nil {
			writeAdmin(w, problem.Status, wire.ProblemType, app.InJSON(problem))
			return
		}
		writeAdmin(w, http.StatusOK, typeJSON, app.InJSON(sessions.List(n, by, time.Now())))
	})
}

// asJSON adds the content type that h leaves out.
func asJSON(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeJSON)
		w.Header().Set("Cache-Control", "no-store")
		h.ServeHTTP(w, r)
	})
}

func writeAdmin(w http.ResponseWriter, status int, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // that the client has left is no error
}
