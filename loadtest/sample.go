package loadtest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A sample is what the server had used at one moment.
type sample struct {
	asked    time.Duration // when it was begun,
	answered time.Duration // and when it was there; its figures are of some time between
	cpu      time.Duration
	source   string // of cpu; see Server
	resident int64
	in, out  int64
	build    map[string]string
}

// A sampler takes samples beside the event loop, which must not wait for them.
type sampler struct {
	pid    int                  // 0: not known, or elsewhere
	admin  string               // base URL; empty: none
	now    func() time.Duration // the event loop's clock
	client *http.Client

	pending sync.WaitGroup // samples being taken
	mu      sync.Mutex     // guards the fields below
	taken   map[moment]sample
	failure error // the first
}

// A moment is when a sample is taken.
type moment uint8

const (
	beforeClients moment = iota
	allConnected
	windowNears  // soon: scraping must be over when it begins
	windowBegins // the kernel's account alone
	windowEnds   // linger after the last delivery
)

// sampleTimeout is generous: the server may be at its limit.
const sampleTimeout = 10 * time.Second

func newSampler(pid int, admin string, now func() time.Duration) *sampler {
	return &sampler{
		pid:    pid,
		admin:  strings.TrimSuffix(WithScheme(admin), "/"),
		now:    now,
		client: &http.Client{Timeout: sampleTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
		taken:  map[moment]sample{},
	}
}

// begin takes a sample at the given moment, in the background, in place of one
// taken before.
func (s *sampler) begin(ctx context.Context, at moment) {
	s.mu.Lock()
	delete(s.taken, at)
	s.mu.Unlock()
	s.pending.Add(1)
	go func() {
		defer s.pending.Done()
		s.take(ctx, at)
	}()
}

// take takes a sample. Scraping costs the server CPU time, too; it is kept out of
// the window.
func (s *sampler) take(ctx context.Context, at moment) {
	taken := sample{asked: s.now()}
	taken.readCPU(s.pid)
	if s.admin == "" {
		taken.resident = processesResident(s.pid)
	}
	var err error
	if at != windowBegins {
		err = s.scrape(ctx, &taken)
	}
	taken.answered = s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[at] = taken
	if s.failure == nil {
		s.failure = err
	}
}

// has reports whether the sample of that moment was taken.
func (s *sampler) has(at moment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.taken[at]
	return ok
}

func (t *sample) readCPU(pid int) {
	if cpu, ok := processesCPU(pid); ok {
		t.cpu, t.source = cpu, "kernel"
	}
}

func (s *sampler) scrape(ctx context.Context, into *sample) error {
	if s.admin == "" {
		return nil
	}
	m, err := scrapeMetrics(ctx, s.client, s.admin+"/metrics")
	if err != nil {
		return fmt.Errorf("read the server's metrics: %w", err)
	}
	if seconds, ok := m.value("process_cpu_seconds_total", ""); ok && into.source == "" {
		into.cpu, into.source = time.Duration(seconds*float64(time.Second)), "metrics"
	}
	into.resident = m.integer("process_resident_memory_bytes", "")
	into.in = m.integer("pubsubd_network_bytes_total", `direction="in"`)
	into.out = m.integer("pubsubd_network_bytes_total", `direction="out"`)
	into.build = m.labels("pubsubd_build_info")
	return nil
}

// server returns what the samples say of a window, or nil if nothing could be read.
func (s *sampler) server(clients int, window Generator, began time.Duration) *Server {
	before, connected := s.taken[beforeClients], s.taken[allConnected]
	begin, end := s.taken[windowNears], s.taken[windowEnds]
	if end.source == "" && end.resident == 0 {
		return nil
	}
	r := &Server{
		CPUSource:              end.source,
		ResidentBeforeBytes:    before.resident,
		ResidentConnectedBytes: connected.resident,
		ResidentEndBytes:       end.resident,
		ResidentPerClientBytes: float64(connected.resident-before.resident) / float64(clients),
		BytesIn:                end.in - begin.in,
		BytesOut:               end.out - begin.out,
		Build:                  end.build,
	}
	if exact := s.taken[windowBegins]; exact.source != "" {
		begin.cpu, begin.source = exact.cpu, exact.source
	}
	r.CPUNote = metricsFault(begin, end, window, began)
	if r.CPUNote != "" || begin.source != end.source {
		r.CPUSource = ""
		return r
	}
	r.CPUS = (end.cpu - begin.cpu).Seconds()
	if window.Deliveries > 0 {
		r.CPUPerDeliveryUS = r.CPUS * 1e6 / float64(window.Deliveries)
	}
	return r
}

// imprecision is the share of the window by which the ends of what the metrics
// account for may be off.
const imprecision = 0.1

// metricsFault says why the CPU time of two scrapes is not that of the window;
// empty if it is.
func metricsFault(begin, end sample, window Generator, began time.Duration) string {
	if begin.source != "metrics" || end.source != "metrics" {
		return ""
	}
	off := max(began-begin.asked, begin.answered-began, end.answered-end.asked)
	if off.Seconds() <= imprecision*window.WindowS {
		return ""
	}
	return fmt.Sprintf("the metrics were read up to %.1f s too early or too late for a window of %.1f s", off.Seconds(), window.WindowS)
}
