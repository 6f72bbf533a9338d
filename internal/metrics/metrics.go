// Package metrics holds every Prometheus collector of the daemon in one place.
//
// There are no globals: two daemons in one process have a Metrics each. What is
// counted as it happens is a field here; what can be asked for is a Gauges value
// that the daemon gathers when it is scraped.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the daemon's counters and histograms. Everything may be used
// concurrently.
type Metrics struct {
	Registry *prometheus.Registry

	Published      prometheus.Counter
	PublishedBytes prometheus.Counter
	Refused        *prometheus.CounterVec // by code: problems answered

	Limited          *prometheus.CounterVec   // by limit: what was refused because of it
	WaitSeconds      *prometheus.HistogramVec // by limit: how long was waited for a place
	ConnectionsEnded *prometheus.CounterVec   // by reason: connections that the daemon ended because of what their clients did

	Evicted         *prometheus.CounterVec // by reason: messages that left a history
	TopicsForgotten prometheus.Counter
	FellBehind      prometheus.Counter
	Gaps            *prometheus.CounterVec // by reason: gaps handed to subscribers
	Resent          prometheus.Counter
	SessionsOpened  prometheus.Counter
	SessionsEnded   *prometheus.CounterVec // by reason
	SessionsTrimmed prometheus.Counter
	QueueDepth      prometheus.Histogram

	// What became of idempotency keys: a result repeated, another message refused, a
	// result forgotten before its window had passed.
	IdempotencyRepeated, IdempotencyMismatched, IdempotencyEvicted prometheus.Counter

	BytesIn  prometheus.Counter
	BytesOut prometheus.Counter

	// Polls and publishes, by the way they were served: the lane's or net/http's,
	// where alone many are published with one request, or commands'.
	LanePolls, LanePublishes prometheus.Counter
	HTTPPolls, HTTPPublishes prometheus.Counter
	HTTPPublishesOfMany      prometheus.Counter
	CommandPublishes         prometheus.Counter // on connections that go both ways

	LaneConnections prometheus.Gauge   // taken over by the lane
	LaneReturned    prometheus.Counter // given back to net/http

	compressedBefore, compressedAfter prometheus.Counter

	delivered, deliveredBytes *prometheus.CounterVec
	polls                     *prometheus.CounterVec
	framesPerAnswer           *prometheus.HistogramVec
	publishToWrite            *prometheus.HistogramVec

	hookCalls   *prometheus.CounterVec
	hookSeconds *prometheus.HistogramVec
}

// New returns the collectors of one daemon on a registry of their own, with the
// Go runtime's and the process's beside them. Counters begin at 0 for all label values
// that are known.
func New(version string) *Metrics {
	m := &Metrics{
		Registry:         prometheus.NewRegistry(),
		Published:        counter("messages_published_total", "Messages taken from publishers."),
		PublishedBytes:   counter("messages_published_bytes_total", "Payload bytes of messages taken."),
		Refused:          counters("requests_refused_total", "Problems answered, by code.", "code"),
		Limited:          counters("limited_total", "What was refused because of a limit: a setting, without limits. before it, or memory, fan_out (it lags behind a topic), stateless_sessions.", "limit"),
		WaitSeconds:      prometheus.NewHistogramVec(histogram("wait_seconds", "How long calls and session openings waited for a place that had to wait, by limit.", prometheus.ExponentialBuckets(1e-3, 4, 8)), []string{"limit"}),
		ConnectionsEnded: counters("connections_ended_total", "Connections that the daemon ended because of what their clients did, by reason: refused, slow_head, slow_body, slow_reader, silent.", "reason"),
		Evicted:          counters("history_evicted_total", "Messages that left a topic's history, by reason: expired, evicted by newer ones of the topic, deleted, or for want of memory.", "reason"),
		TopicsForgotten:  counter("topics_forgotten_total", "Idle topics that were forgotten."),
		FellBehind:       counter("subscriptions_fell_behind_total", "Times that a topic did not fit a session's queue."),
		Gaps:             counters("gaps_total", "Gaps handed to subscribers, by reason.", "reason"),
		Resent:           counter("frames_resent_total", "Frames sent again because they were not acked."),
		SessionsOpened:   counter("sessions_opened_total", "Sessions opened."),
		SessionsEnded:    counters("sessions_ended_total", "Sessions ended, by reason: closed by the client, inactive, draining, slow where the policy is to disconnect, or with more topics than a session may hold.", "reason"),
		SessionsTrimmed:  counter("sessions_trimmed_total", "Times that a session which did not read had to let go of what it had queued, for want of memory: it reads on from history, or ends, as its topics' policies say."),
		QueueDepth:       prometheus.NewHistogram(histogram("session_queue_depth", "Frames found in a session's queue when a poll takes them.", prometheus.ExponentialBuckets(1, 2, 8))),
		delivered:        counters("frames_delivered_total", "Frames written to subscribers, by transport.", "transport"),
		deliveredBytes:   counters("frames_delivered_bytes_total", "Bytes of frames written, by transport.", "transport"),
		polls:            counters("polls_total", "Polls answered, by transport and outcome: with frames, empty, the client gone, or a problem's code.", "transport", "outcome"),
		framesPerAnswer:  prometheus.NewHistogramVec(histogram("answer_frames", "Frames in one write of an answer, by transport.", prometheus.ExponentialBuckets(1, 4, 6)), []string{"transport"}),
		publishToWrite:   prometheus.NewHistogramVec(histogram("publish_to_write_seconds", "From taking a message to writing it to a subscriber, sampled, by transport.", prometheus.ExponentialBuckets(50e-6, 2.5, 14)), []string{"transport"}),
	}
	compressed := counters("compressed_bytes_total", "Bytes of answers that were sent compressed, by stage: before and after.", "stage")
	m.compressedBefore, m.compressedAfter = compressed.WithLabelValues("before"), compressed.WithLabelValues("after")
	network := counters("network_bytes_total", "Bytes on the public listener's connections, by direction.", "direction")
	calls := counters("calls_total", "Polls and publishes, by call and by way: the lane's, net/http's, or a command's on a connection that goes both ways.", "call", "way")
	m.LanePolls, m.LanePublishes = calls.WithLabelValues("poll", "lane"), calls.WithLabelValues("publish", "lane")
	m.HTTPPolls, m.HTTPPublishes = calls.WithLabelValues("poll", "net/http"), calls.WithLabelValues("publish", "net/http")
	m.HTTPPublishesOfMany = calls.WithLabelValues("publish_many", "net/http")
	m.CommandPublishes = calls.WithLabelValues("publish", "command")
	idempotency := counters("idempotency_results_total", "Results remembered by idempotency key, by what became of them: repeated, mismatched with another message, evicted before their window had passed.", "outcome")
	m.IdempotencyRepeated, m.IdempotencyMismatched = idempotency.WithLabelValues("repeated"), idempotency.WithLabelValues("mismatched")
	m.IdempotencyEvicted = idempotency.WithLabelValues("evicted")
	m.LaneConnections = prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "lane_connections", Help: "Connections that the lane has taken over."})
	m.LaneReturned = counter("lane_returned_total", "Connections that the lane gave back to net/http, with a request that is not of its forms or did not come in time.")
	m.announce()
	m.BytesIn, m.BytesOut = network.WithLabelValues("in"), network.WithLabelValues("out")
	m.hookCalls = counters("hook_calls_total", "Messages that the application was to be asked about, by hook and outcome: passed, changed, refused, failed, timeout, or overloaded, where there was no place for the call.", "hook", "outcome")
	m.hookSeconds = prometheus.NewHistogramVec(histogram("hook_seconds", "How long the application took to answer, by hook.", prometheus.ExponentialBuckets(1e-3, 2.5, 12)), []string{"hook"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "Always 1; the version is a label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.Registry.MustRegister(build, network, calls, idempotency, compressed, m.hookCalls, m.hookSeconds, m.LaneConnections, m.LaneReturned,
		m.Published, m.PublishedBytes, m.Refused, m.Limited, m.WaitSeconds, m.ConnectionsEnded, m.Evicted, m.TopicsForgotten, m.FellBehind, m.Gaps, m.Resent,
		m.SessionsOpened, m.SessionsEnded, m.SessionsTrimmed, m.QueueDepth,
		m.delivered, m.deliveredBytes, m.polls, m.framesPerAnswer, m.publishToWrite,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Compressed counts what is sent compressed.
func (m *Metrics) Compressed(before, after int) {
	m.compressedBefore.Add(float64(before))
	m.compressedAfter.Add(float64(after))
}

const prefix = "pubsubd_"

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}
}

// A Transport counts what one transport delivers; its children are looked up
// once, not per answer.
type Transport struct {
	Frames          prometheus.Counter
	Bytes           prometheus.Counter
	FramesPerAnswer prometheus.Observer
	PublishToWrite  prometheus.Observer

	polls  *prometheus.CounterVec
	frames prometheus.Counter // polls answered with frames, the most common outcome
}

// outcomeFrames is the outcome of a poll answered with frames.
const outcomeFrames = "frames"

// Transport returns the counters of the transport of that name.
func (m *Metrics) Transport(name string) *Transport {
	t := &Transport{
		Frames:          m.delivered.WithLabelValues(name),
		Bytes:           m.deliveredBytes.WithLabelValues(name),
		FramesPerAnswer: m.framesPerAnswer.WithLabelValues(name),
		PublishToWrite:  m.publishToWrite.WithLabelValues(name),
		polls:           m.polls.MustCurryWith(prometheus.Labels{"transport": name}),
	}
	announce(t.polls, pollEnds)
	t.frames = t.polls.WithLabelValues(outcomeFrames)
	return t
}

// Polled counts one poll that ended with the given outcome.
func (t *Transport) Polled(outcome string) {
	if outcome == outcomeFrames {
		t.frames.Inc() // without a look-up
		return
	}
	t.polls.WithLabelValues(outcome).Inc()
}

// Wrote counts one write of frames to a subscriber.
func (t *Transport) Wrote(frames, bytes int) {
	t.Frames.Add(float64(frames))
	t.Bytes.Add(float64(bytes))
	t.FramesPerAnswer.Observe(float64(frames))
}

// Waited records how long a message took from its acceptance to its write.
func (t *Transport) Waited(d time.Duration) { t.PublishToWrite.Observe(d.Seconds()) }
