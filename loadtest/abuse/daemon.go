package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/child"
)

// limits are the settings of the daemon that is attacked.
//
//go:embed limits.yaml
var limits []byte

// keys verify tokens. Nobody has their private halves.
//
//go:embed keys.json
var keys []byte

// A daemon is the server that is attacked.
type daemon struct {
	*child.Child
	folder string // holds its settings; removed with it
}

// everything is what clients without a token may do.
const everything = `[{"topics":[">"],"allow":["subscribe","publish","history"]}]`

// startDaemon starts it with settings from a file, and with what Go's runtime is to
// keep its memory under. Whoever starts one must stop it.
func startDaemon(ctx context.Context, o options) (*daemon, error) {
	folder, err := os.MkdirTemp("", "pubsubd-abuse-")
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &daemon{folder: folder}
	file, keyFile := filepath.Join(folder, "limits.yaml"), filepath.Join(folder, "keys.json")
	if err := errors.Join(os.WriteFile(file, o.settings, 0o600), os.WriteFile(keyFile, keys, 0o600)); err != nil {
		d.forget()
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	command := append([]string{o.pubsubd, "serve", "--log-level=warn", "--config", file, "--auth-keys", keyFile, "--auth-anonymous", everything}, o.serve...)
	if d.Child, err = child.Server(ctx, command, "GOMEMLIMIT="+strconv.FormatInt(o.memoryLimit, 10)); err != nil {
		d.forget()
		return nil, err
	}
	return d, nil
}

func (d *daemon) forget() { _ = os.RemoveAll(d.folder) }

// stop ends it, in order if it can.
func (d *daemon) stop() error {
	defer d.forget()
	if alarm := d.Alarm(); alarm != "" {
		_ = d.Stop()
		return fmt.Errorf("the daemon said: %s", alarm)
	}
	return d.Stop()
}

// A Server is what the daemon said of itself while an attack lasted.
type Server struct {
	CPUSeconds     float64 `json:"cpu_s"`
	ResidentBytes  int64   `json:"resident_bytes"`  // at most
	AccountedBytes int64   `json:"accounted_bytes"` // what counts against the budget, at most
	SocketBytes    int64   `json:"socket_bytes"`    // of the whole machine's connections, in the kernel, at most
	Pressure       int     `json:"memory_pressure"` // at most

	Refused map[string]int64 `json:"refused,omitempty"` // problems answered, by code
	Limited map[string]int64 `json:"limited,omitempty"` // refusals, by limit
	Ended   map[string]int64 `json:"ended,omitempty"`   // connections that the daemon ended, by reason
}

// A watch looks at the daemon's metrics while an attack lasts.
type watch struct {
	admin  string
	before loadtest.Metrics
	mu     sync.Mutex
	server Server
	fault  error
}

// looks is how often.
const looks = time.Second

func newWatch(ctx context.Context, admin string) (*watch, error) {
	w := &watch{admin: "http://" + admin}
	var err error
	w.before, err = w.look(ctx)
	return w, err
}

// run looks until ctx is done.
func (w *watch) run(ctx context.Context) {
	for rest(ctx, looks) {
		if _, err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.fails(err)
		}
	}
}

func (w *watch) fails(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = err
}

// look takes what is highest now.
func (w *watch) look(ctx context.Context) (loadtest.Metrics, error) {
	m, err := loadtest.Scrape(ctx, w.admin)
	if err != nil {
		return nil, fmt.Errorf("look at the daemon's metrics: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.server
	s.ResidentBytes = max(s.ResidentBytes, int64(m["process_resident_memory_bytes"]))
	s.AccountedBytes = max(s.AccountedBytes, int64(sum(m, "pubsubd_memory_bytes")))
	s.SocketBytes = max(s.SocketBytes, socketBytes())
	s.Pressure = max(s.Pressure, int(m["pubsubd_memory_pressure"]))
	return m, nil
}

// result is what was found since the watch began.
func (w *watch) result(ctx context.Context) (Server, error) {
	after, err := w.look(ctx)
	if err != nil {
		return Server{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.server
	s.CPUSeconds = after["process_cpu_seconds_total"] - w.before["process_cpu_seconds_total"]
	s.Refused = rises(w.before, after, "pubsubd_requests_refused_total")
	s.Limited = rises(w.before, after, "pubsubd_limited_total")
	s.Ended = rises(w.before, after, "pubsubd_connections_ended_total")
	return s, w.fault
}

// sum adds up all of a metric, whatever its labels.
func sum(m loadtest.Metrics, name string) float64 {
	var total float64
	for key, value := range m {
		if strings.HasPrefix(key, name+"{") {
			total += value
		}
	}
	return total
}

// rises returns by how much a counter with one label has risen, by its label, where
// it has.
func rises(before, after loadtest.Metrics, name string) map[string]int64 {
	by := map[string]int64{}
	for key, value := range after {
		if rise := int64(value - before[key]); rise > 0 && strings.HasPrefix(key, name+"{") {
			by[label(key)] = rise
		}
	}
	return by
}

// label returns the value of the one label of a key: `name{label="value"}`.
func label(key string) string {
	_, value, _ := strings.Cut(key, `"`)
	return strings.TrimSuffix(value, `"}`)
}
