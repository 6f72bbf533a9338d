// Package metrics holds every Prometheus collector of the daemon in one place.
//
// There are no globals: each daemon of a process has its own Metrics. Events are counted
// in its fields. State is a Gauges value, which the daemon gathers for each scrape.
package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Metrics are the daemon's counters and histograms. They may be used concurrently.
type Metrics struct {
	Registry *prometheus.Registry
	Version  string // of the daemon

	Published      prometheus.Counter
	PublishedBytes prometheus.Counter
	Refused        *prometheus.CounterVec // by code: requests answered with a problem

	Limited          *prometheus.CounterVec   // by limit: refusals
	WaitSeconds      *prometheus.HistogramVec // by limit: time until a slot was free
	ConnectionsEnded *prometheus.CounterVec   // by Ending

	Evicted         *prometheus.CounterVec // by reason: messages that left a history
	TopicsForgotten prometheus.Counter
	FellBehind      prometheus.Counter
	Gaps            *prometheus.CounterVec // by reason: gaps delivered to subscribers
	Resent          prometheus.Counter
	SessionsOpened  prometheus.Counter
	SessionsEnded   *prometheus.CounterVec // by reason
	SessionsTrimmed prometheus.Counter
	QueueDepth      prometheus.Histogram
	Presence        *prometheus.CounterVec // by event

	// Results of idempotency keys: repeated, refused because the message differed, and
	// forgotten before the end of their window.
	IdempotencyRepeated, IdempotencyMismatched, IdempotencyEvicted prometheus.Counter

	TokensVerified     prometheus.Counter     // accepted, without those from the cache
	TokenCacheHits     prometheus.Counter     // tokens that were verified before
	CredentialsRefused *prometheus.CounterVec // by reason
	KeyReadsFailed     *prometheus.CounterVec // by source: file, jwks

	BytesIn, BytesOut prometheus.Counter

	CertificateFailures prometheus.Counter

	// Polls and publishes, by the way they were served. Only net/http serves many
	// publishes in one request.
	LanePolls, LanePublishes prometheus.Counter
	HTTPPolls, HTTPPublishes prometheus.Counter
	HTTPPublishesOfMany      prometheus.Counter
	CommandPublishes         prometheus.Counter // on WebSocket and TCP connections

	LaneConnections prometheus.Gauge   // connections that the lane has now
	LaneReturned    prometheus.Counter // connections given back to net/http
	LaneLongestTurn prometheus.Gauge   // seconds

	compressedBefore, compressedAfter prometheus.Counter

	delivered, deliveredBytes *prometheus.CounterVec
	polls                     *prometheus.CounterVec
	framesPerAnswer           *prometheus.HistogramVec
	publishToWrite            *prometheus.HistogramVec

	Store Store

	AccessLogDropped prometheus.Counter
	LogDropped       *prometheus.CounterVec // by level
	Spans            *prometheus.CounterVec // by outcome: SpansSent, …
	HookDropped      *prometheus.CounterVec // events that the application did not get, by reason

	hookCalls   *prometheus.CounterVec
	hookSeconds *prometheus.HistogramVec
}

// An Ending is why the daemon closed a connection because of its client.
type Ending string

// The endings.
const (
	Refused    Ending = "refused"     // one connection too many
	SlowHead   Ending = "slow_head"   // the head of a request, or a handshake, took too long
	SlowBody   Ending = "slow_body"   // the body of a request, or a command, took too long
	SlowReader Ending = "slow_reader" // the client did not read what was written
	Silent     Ending = "silent"      // the client sent nothing, or no pings
)

// What becomes of spans.
const (
	SpansSent    = "sent"
	SpansFailed  = "failed"
	SpansDropped = "dropped"
)

const prefix = "pubsubd_"

// A maker makes collectors and registers them.
type maker struct{ promauto.Factory }

func (f maker) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
}

func (f maker) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

func (f maker) histograms(name, help, label string, buckets []float64) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, []string{label})
}

// fromZero creates the series of these label values at 0. rate() misses the first event
// of a series that did not exist before.
func fromZero(c *prometheus.CounterVec, values ...string) {
	for _, value := range values {
		c.WithLabelValues(value)
	}
}

// New returns the collectors of one daemon on their own registry. Counters begin at 0 for
// all label values that are known.
func New(version string) *Metrics {
	registry := prometheus.NewRegistry()
	f := maker{promauto.With(registry)}
	m := &Metrics{
		Registry:         registry,
		Version:          version,
		Published:        f.counter("messages_published_total", "Messages accepted from publishers."),
		PublishedBytes:   f.counter("messages_published_bytes_total", "Payload bytes of accepted messages."),
		Refused:          f.counters("requests_refused_total", "Refused requests, by the code of the problem.", "code"),
		Limited:          f.counters("limited_total", "Refusals because of a limit, by limit: a setting without the prefix limits., reads (requests that only read), signatures (checks of tokens), memory, open_files, fan_out (delivery of a topic's messages lags behind), or stateless_sessions.", "limit"),
		WaitSeconds:      f.histograms("wait_seconds", "Time that calls and session openings waited for a slot, by limit. Those that did not wait are not counted.", "limit", prometheus.ExponentialBuckets(1e-3, 4, 8)),
		ConnectionsEnded: f.counters("connections_ended_total", "Connections that the daemon closed because of their clients, by reason: refused (too many), slow_head and slow_body (a handshake, a request or a command arrived too slowly), slow_reader (the client did not read), silent (the client sent nothing, or no pings).", "reason"),
		Evicted:          f.counters("history_evicted_total", "Messages that left a topic's history, by reason: expired, evicted (by newer messages of the topic), deleted, lost (in a crash), memory (the budget was full), disk (histories took more than a quarter of store.bytes). Ephemeral topics, which have no history, do not count.", "reason"),
		TopicsForgotten:  f.counter("topics_forgotten_total", "Idle topics that the daemon forgot."),
		FellBehind:       f.counter("subscriptions_fell_behind_total", "How often a subscription fell behind because its session's queue was full."),
		Gaps:             f.counters("gaps_total", "Gaps delivered to subscribers, by reason.", "reason"),
		Resent:           f.counter("frames_resent_total", "Frames sent again because they were not acknowledged."),
		SessionsOpened:   f.counter("sessions_opened_total", "Sessions opened."),
		SessionsEnded:    f.counters("sessions_ended_total", "Ended sessions, by reason: closed (by the client), inactive, draining, slow (it fell behind on a topic with slow: disconnect), topics (a new topic of its pattern exceeded a limit, or too many of its subscriptions ended because they were no longer permitted), revoked (its credentials were revoked, or an operator or an application ended it).", "reason"),
		SessionsTrimmed:  f.counter("sessions_trimmed_total", "How often memory pressure emptied the queue of a session that did not read. The session then continues from history, or ends, as the rules of its topics say (slow)."),
		QueueDepth: f.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "session_queue_depth", Help: "Frames in a session's queue when a poll takes them.", Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		CertificateFailures: f.counter("certificate_failures_total", "Failures to read, get or renew the certificate."),
		LaneConnections:     f.NewGauge(prometheus.GaugeOpts{Name: prefix + "lane_connections", Help: "Connections that the fast path (lane) serves now."}),
		LaneLongestTurn: f.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "lane_longest_turn_seconds", Help: "Longest time that an event loop of the fast path worked without serving its other connections, in this minute and the one before.",
		}),
		LaneReturned:    f.counter("lane_returned_total", "Connections that the fast path returned to net/http, because it does not serve the request, or because the request arrived too slowly."),
		delivered:       f.counters("frames_delivered_total", "Frames written to subscribers, by transport.", "transport"),
		deliveredBytes:  f.counters("frames_delivered_bytes_total", "Bytes of frames written, by transport.", "transport"),
		polls:           f.counters("polls_total", "Polls answered, by transport and outcome: frames, empty, gone (the client left), or a problem's code.", "transport", "outcome"),
		framesPerAnswer: f.histograms("answer_frames", "Frames in one write of an answer, by transport.", "transport", prometheus.ExponentialBuckets(1, 4, 6)),
		publishToWrite:  f.histograms("publish_to_write_seconds", "Time from accepting a message to writing it to a subscriber, sampled, by transport.", "transport", prometheus.ExponentialBuckets(50e-6, 2.5, 14)),
		hookCalls:       f.counters("hook_calls_total", "Requests to the application, by hook and outcome: passed, changed, refused, failed, timeout, overloaded (no slot was free for the request), or cached (the application has recently allowed the same request, so the daemon did not ask). For batches of events: passed, failed or timeout; each attempt counts.", "hook", "outcome"),
		HookDropped:     f.counters("hook_dead_letters_total", "Events that never reached the application, by reason: full (the queue was full), failed (the last attempt failed), stopped (the daemon stopped, or a reload removed the hook).", "reason"),
		hookSeconds:     f.histograms("hook_seconds", "Time that the application took to answer, by hook.", "hook", prometheus.ExponentialBuckets(1e-3, 2.5, 12)),
		Presence:        f.counters("presence_events_total", "Presence events, by event: join, leave, count (a digest of a large or anonymous audience), retract (watchers must read the list again).", "event"),
	}
	m.Store = newStore(f)
	m.AccessLogDropped = f.counter("access_log_dropped_total", "Entries of the access log that were dropped because they arrived faster than they could be encoded.")
	m.LogDropped = f.counters("log_dropped_total", "Lines of the log that were dropped because its reader was too slow or had ended, by level: debug, info, warn, or error.", "level")
	m.Spans = f.counters("spans_total", "Spans of traces, by outcome: sent (to the collector), failed (the collector did not accept them), dropped (too many spans waited). A trace that did not begin, because 100 had begun in that second, counts as one dropped span.", "outcome")
	fromZero(m.Spans, SpansSent, SpansFailed, SpansDropped)
	m.TokensVerified = f.counter("tokens_verified_total", "Tokens that the daemon verified and accepted, without those found in the cache.")
	m.TokenCacheHits = f.counter("token_cache_hits_total", "Tokens found in the cache of verified tokens.")
	m.CredentialsRefused = f.counters("credentials_refused_total", "Refused credentials, by reason: malformed, key (no key has the token's id or algorithm), signature, type, issuer (or audience), claims, not_yet_valid, expired, revoked, api_key (unknown), scheme, several, unavailable (the daemon is fetching the keys of auth.jwks).", "reason")
	m.KeyReadsFailed = f.counters("key_reads_failed_total", "Failed attempts to read keys that verify tokens, by source: file (auth.keys), jwks (auth.jwks).", "source")
	compressed := f.counters("compressed_bytes_total", "Bytes of compressed answers, by stage: before and after compression.", "stage")
	m.compressedBefore, m.compressedAfter = compressed.WithLabelValues("before"), compressed.WithLabelValues("after")
	network := f.counters("network_bytes_total", "Bytes on the public listener's connections, by direction.", "direction")
	m.BytesIn, m.BytesOut = network.WithLabelValues("in"), network.WithLabelValues("out")
	calls := f.counters("calls_total", "Polls and publishes, by call (poll, publish, publish_many), and by way: lane (the fast path), net/http, or command (on a WebSocket or TCP connection).", "call", "way")
	m.LanePolls, m.LanePublishes = calls.WithLabelValues("poll", "lane"), calls.WithLabelValues("publish", "lane")
	m.HTTPPolls, m.HTTPPublishes = calls.WithLabelValues("poll", "net/http"), calls.WithLabelValues("publish", "net/http")
	m.HTTPPublishesOfMany = calls.WithLabelValues("publish_many", "net/http")
	m.CommandPublishes = calls.WithLabelValues("publish", "command")
	idempotency := f.counters("idempotency_results_total", "Remembered results of idempotency keys, by outcome: repeated, mismatched (the message differed), evicted (dropped before the end of idempotency.window).", "outcome")
	m.IdempotencyRepeated, m.IdempotencyMismatched = idempotency.WithLabelValues("repeated"), idempotency.WithLabelValues("mismatched")
	m.IdempotencyEvicted = idempotency.WithLabelValues("evicted")
	f.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "Always 1. The label has the version.", ConstLabels: prometheus.Labels{"version": version},
	}).Set(1)
	for _, reason := range wire.GapReasons() {
		m.Gaps.WithLabelValues(string(reason))
	}
	for code := range problem.Codes() {
		m.Refused.WithLabelValues(string(code))
	}
	fromZero(m.ConnectionsEnded, string(Refused), string(SlowHead), string(SlowBody), string(SlowReader), string(Silent))
	// Limits that the configuration names are added by their owners.
	fromZero(m.Limited, "topics", "all_subscriptions", "stateless_sessions", "calls", "reads", "signatures", "sessions", "address_calls", "connections", "address_connections", "pending_messages_per_session", "open_files", "memory", "fan_out")
	fromZero(m.Evicted, "expired", "evicted", "deleted", "lost", "memory", "disk")
	fromZero(m.SessionsEnded, "closed", "inactive", "draining", "slow", "topics", "revoked")
	fromZero(m.HookDropped, "full", "failed", "stopped")
	fromZero(m.Presence, wire.PresenceJoin, wire.PresenceLeave, wire.PresenceCount, "retract")
	return m
}

// Ended counts a connection that the daemon closed.
func (m *Metrics) Ended(why Ending) { m.ConnectionsEnded.WithLabelValues(string(why)).Inc() }

// Compressed counts the bytes of a compressed answer.
func (m *Metrics) Compressed(before, after int) {
	m.compressedBefore.Add(float64(before))
	m.compressedAfter.Add(float64(after))
}

// A Transport counts what one transport delivers. Its counters are looked up once, not
// for each answer.
type Transport struct {
	Name            string // immutable
	Frames          prometheus.Counter
	Bytes           prometheus.Counter
	FramesPerAnswer prometheus.Observer
	PublishToWrite  prometheus.Observer
	Parked          atomic.Int64 // polls that wait for a frame

	Polls    *prometheus.CounterVec // by outcome
	Answered prometheus.Counter     // those with outcomeFrames, without looking it up
}

// outcomeFrames is the outcome of a poll answered with frames: the most common one.
const outcomeFrames = "frames"

// Transport returns the counters of a transport. It is called once for each name.
func (m *Metrics) Transport(name string) *Transport {
	t := &Transport{
		Name:            name,
		Frames:          m.delivered.WithLabelValues(name),
		Bytes:           m.deliveredBytes.WithLabelValues(name),
		FramesPerAnswer: m.framesPerAnswer.WithLabelValues(name),
		PublishToWrite:  m.publishToWrite.WithLabelValues(name),
		Polls:           m.polls.MustCurryWith(prometheus.Labels{"transport": name}),
	}
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "polls_parked", Help: "Polls that wait for a frame, by transport.", ConstLabels: prometheus.Labels{"transport": name},
	}, func() float64 { return float64(t.Parked.Load()) }))
	fromZero(t.Polls, outcomeFrames, "empty", "gone", string(wire.CodeStaleAck), string(wire.CodeAckBeyondSent), string(wire.CodePollReplaced), string(wire.CodeSessionEnded), string(wire.CodeTokenExpired), string(wire.CodeUnauthorized), string(wire.CodeDraining))
	t.Answered = t.Polls.WithLabelValues(outcomeFrames)
	return t
}

// A Hook counts the calls of one hook.
type Hook struct {
	calls   *prometheus.CounterVec
	seconds prometheus.Observer
}

// Hook returns the counters of a hook whose calls have these outcomes.
func (m *Metrics) Hook(name string, outcomes ...string) *Hook {
	h := &Hook{
		calls:   m.hookCalls.MustCurryWith(prometheus.Labels{"hook": name}),
		seconds: m.hookSeconds.WithLabelValues(name),
	}
	fromZero(h.calls, outcomes...)
	return h
}

// Called counts one call with its outcome.
func (h *Hook) Called(outcome string) { h.calls.WithLabelValues(outcome).Inc() }

// Took records the time that the application took to answer.
func (h *Hook) Took(d time.Duration) { h.seconds.Observe(d.Seconds()) }
