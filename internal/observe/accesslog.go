// Package observe shows operators single requests: it writes the access log, reads request
// ids, and makes traces. What is off allocates nothing for a request.
package observe

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An AccessLog logs requests that were answered: all of them, or a random sample. Entries
// wait in a bounded queue, so that event loops do not wait for a slow disk or pipe because of
// them. If the queue is full, entries are dropped and counted. All methods may be called
// concurrently. A nil *AccessLog logs nothing.
type AccessLog struct {
	to      *zap.Logger // immutable, like dropped and queue
	dropped prometheus.Counter
	queue   chan *Entry // never closed
	every   atomic.Uint32
}

// queuedEntries bounds the entries that wait: 1 MB at most.
const queuedEntries = 1024

// NewAccessLog returns an access log that writes to a logger. It needs Run.
func NewAccessLog(every int, to *zap.Logger, m *metrics.Metrics) *AccessLog {
	l := &AccessLog{to: to.Named("access"), dropped: m.AccessLogDropped, queue: make(chan *Entry, queuedEntries)}
	l.Reload(every)
	return l
}

// Reload makes the log select one of every so many requests. 1: all; 0: none.
func (l *AccessLog) Reload(every int) { l.every.Store(uint32(every)) }

// Begin returns an entry for a request that begins now, or nil if the request is not
// selected.
func (l *AccessLog) Begin() *Entry {
	if l == nil {
		return nil
	}
	every := l.every.Load()
	// The sample is random: clients that poll and publish in turn would defeat a count.
	if every == 0 || every > 1 && rand.Uint32N(every) > 0 {
		return nil
	}
	return &Entry{log: l, Begun: time.Now()}
}

// Run writes entries until ctx ends, and then those that still wait.
func (l *AccessLog) Run(ctx context.Context) {
	for {
		select {
		case e := <-l.queue:
			l.write(e)
		case <-ctx.Done():
			for len(l.queue) > 0 {
				l.write(<-l.queue)
			}
			return
		}
	}
}

// write writes an entry. Members that do not apply are omitted.
func (l *AccessLog) write(e *Entry) {
	fields := make([]zap.Field, 0, 16)
	text := func(name, value string) {
		if value != "" {
			fields = append(fields, zap.String(name, strings.Map(printable, value)))
		}
	}
	text("method", e.Method)
	text("route", e.Route)
	if wire.CheckTopic(e.Topic) == nil {
		text("topic", e.Topic)
	}
	fields = append(fields, zap.Int("status", e.Status)) // 0: the connection was closed without an answer
	text("code", string(e.code))
	fields = append(fields, zap.Int("bytes", e.bytes), zap.Time("begun", e.Begun), zap.Duration("took", e.took))
	text("client", e.Client)
	text("agent", e.Agent)
	text("request_id", e.RequestID)
	text("trace_id", e.TraceID)
	text("way", e.Way)
	l.to.Info("request", fields...)
}

// printable returns r, or -1 for what a terminal may obey, or show in another order.
func printable(r rune) rune {
	if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
		return -1
	}
	return r
}

// maxTextBytes bounds each text of an entry: clients choose some of them.
const maxTextBytes = 256

// cut returns the begin of a text that a client chose, without the head in which it stood.
func cut(text string) string { return strings.Clone(text[:min(len(text), maxTextBytes)]) }

// An Entry is one request in the access log. One goroutine at a time may use it. A nil
// *Entry is valid, and logs nothing. The caller sets the exported fields after Begin. None of
// them may have a session's id, credentials or a query string.
type Entry struct {
	Begun         time.Time
	Method, Route string // the route has {id} and {topic} instead of their values
	Topic         string // logged if it is a valid name
	Client        string // its address
	Agent         string
	RequestID     string
	TraceID       string
	Way           string // lane or net/http: which wrote the answer
	Status        int    // 0: none

	log   *AccessLog
	code  wire.Code
	bytes int
	took  time.Duration
}

// Wrote counts bytes of the answer, whose status is 200 unless it is set.
func (e *Entry) Wrote(n int) {
	if e != nil {
		e.bytes += n
		e.Status = cmp.Or(e.Status, http.StatusOK)
	}
}

// Refused notes that the answer is a problem.
func (e *Entry) Refused(p *wire.Problem) {
	if e != nil {
		e.Status, e.code = p.Status, p.Code
	}
}

// End logs the request. A request without a status got no answer. The entry must not be used
// afterwards.
func (e *Entry) End() {
	if e == nil {
		return
	}
	e.took = time.Since(e.Begun)
	e.Method, e.Topic, e.Agent, e.RequestID = cut(e.Method), cut(e.Topic), cut(e.Agent), cut(e.RequestID)
	select {
	case e.log.queue <- e:
	default:
		e.log.dropped.Inc()
	}
}

// RequestID returns the id of a request from its X-Request-Id headers, or "" if there is not
// exactly one, or if it is not 1 to 128 visible ASCII characters: logs and answers repeat it.
func RequestID(values ...string) string {
	if len(values) != 1 || len(values[0]) > 128 {
		return ""
	}
	for _, c := range []byte(values[0]) {
		if c <= ' ' || c > '~' {
			return ""
		}
	}
	return values[0]
}

// RequestIDField is the field of a log entry about a request with an id, which may be "".
func RequestIDField(id string) zap.Field {
	if id == "" {
		return zap.Skip()
	}
	return zap.String("request_id", id)
}
