package httpapi

import (
	"net/http"
	"net/http/pprof"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewAdmin returns the handler of the admin listener: metrics, health and
// profiles. ready returns why the daemon is not ready, or "".
func NewAdmin(metrics *prometheus.Registry, ready func() string) http.Handler {
	r := mux.NewRouter()
	r.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})).Methods("GET")
	r.Handle("/livez", health(func() string { return "" })).Methods("GET")
	r.Handle("/readyz", health(ready)).Methods("GET")
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
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		status, text := http.StatusOK, "ok"
		if reason := why(); reason != "" {
			status, text = http.StatusServiceUnavailable, reason
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text + "\n"))
	})
}
