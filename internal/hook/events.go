package hook

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// EventsConfig configures the events hook. A zero field takes its default.
type EventsConfig struct {
	Config // its Calls and MessageBytes are unused: one call is made at a time

	// Topics are patterns of the topics whose first and last subscribers are reported.
	Topics []string

	// Batch is how many events one call has at most. Default 100.
	Batch int

	// Delay is how long an event waits for others. Default 500 ms.
	Delay time.Duration

	// Grace is how long a topic must have no subscriber before it is reported as vacated.
	// Default 5 s.
	Grace time.Duration

	// Queue is how many events may wait. Later ones are dropped. Default 10,000.
	Queue int

	// Attempts is how often a batch is sent before it is dropped. Default 10.
	Attempts int
}

// WithDefaults returns c with every zero field set to its default.
func (c EventsConfig) WithDefaults() EventsConfig {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Batch = cmp.Or(c.Batch, 100)
	c.Delay = cmp.Or(c.Delay, 500*time.Millisecond)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	c.Queue = cmp.Or(c.Queue, 10_000)
	c.Attempts = cmp.Or(c.Attempts, 10)
	return c
}

// Topics tells which topics got their first subscriber, or have lost the last one.
type Topics interface {
	// Occupancies calls changed for each change since the last call, and returns how many
	// changes were lost. A topic is vacant after it has had no subscriber for grace.
	Occupancies(now time.Time, grace time.Duration, changed func(topic string, occupied bool, at time.Time)) (lost int)
}

// Events reports sessions and topics to an application, in batches, in order. Only Run
// waits for the application: all other methods put events into a bounded queue, or drop and
// count them. All methods may be called concurrently. Its owner calls Run, and Close.
//
// A batch that fails is sent again, with the same id and after longer and longer times.
// Meanwhile events queue.
type Events struct {
	application
	topics     Topics                 // immutable
	dead       *prometheus.CounterVec // immutable; events that no application gets, by reason
	daemon     string                 // immutable; random
	about      atomic.Pointer[EventsConfig]
	hasNoGrace atomic.Bool // see Drain

	wake    chan struct{} // has a token if the queue or about has changed; never closed
	closing chan struct{} // closed by Close
	close   func()
	done    chan struct{} // closed when Run has returned

	collecting sync.Mutex // held while changes of topics are queued, to keep their order

	mu    sync.Mutex // guards the fields below; taken last
	queue []event    // the oldest first
	sent  int        // events of the batch that is being sent
}

// An event is one member of events of a batch.
type event struct {
	Type      string `json:"type"`
	Time      int64  `json:"time"` // Unix milliseconds
	Session   uint64 `json:"session,omitempty"`
	Principal string `json:"principal,omitempty"` // empty: anonymous
	Reason    string `json:"reason,omitempty"`
	Topic     string `json:"topic,omitempty"`
}

// The types of events.
const (
	sessionOpened = "session_opened"
	sessionEnded  = "session_ended"
	topicOccupied = "topic_occupied"
	topicVacated  = "topic_vacated"
)

// Reasons for dropped events, as metrics label them.
const (
	queueFull     = "full"
	batchFailed   = "failed"  // after the last attempt
	hookWasClosed = "stopped" // the daemon stopped, or a reload removed the hook
)

// NewEvents returns the events hook. cfg must have been validated.
func NewEvents(cfg EventsConfig, topics Topics, m *metrics.Metrics, log *zap.Logger) *Events {
	e := &Events{
		topics: topics, daemon: rand.Text(), dead: m.HookDropped,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	e.close = sync.OnceFunc(func() { close(e.closing) })
	cfg = cfg.WithDefaults()
	e.init(wire.HookEvents, cfg.Config, nil, m, log, passed, failed, timeout)
	e.about.Store(&cfg)
	return e
}

// Reload applies cfg to later calls, also to the next attempt of a batch. Without a URL, it
// drops the events that wait.
func (e *Events) Reload(cfg EventsConfig) {
	cfg = cfg.WithDefaults()
	e.about.Store(&cfg)
	e.reload(cfg.Config)
	e.changed()
}

func (e *Events) changed() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Drain reports topics without the grace from now on: their subscribers will not be back.
func (e *Events) Drain() { e.hasNoGrace.Store(true) }

// SessionOpened reports a session. It does not block.
func (e *Events) SessionOpened(number uint64, principal string) {
	e.put(event{Type: sessionOpened, Session: number, Principal: principal}, time.Now())
}

// SessionEnded reports the end of a session. It does not block.
func (e *Events) SessionEnded(number uint64, principal, reason string) {
	e.put(event{Type: sessionEnded, Session: number, Principal: principal, Reason: reason}, time.Now())
}

// put queues an event, or drops it. It does not block.
func (e *Events) put(one event, at time.Time) {
	// Fast path: there is no hook.
	cfg := e.about.Load()
	if cfg.URL == "" {
		return
	}
	one.Time = at.UnixMilli()
	e.mu.Lock()
	n, isFull := len(e.queue), len(e.queue) >= cfg.Queue
	if !isFull {
		e.queue = append(e.queue, one)
	}
	e.mu.Unlock()
	switch {
	case isFull:
		e.dead.WithLabelValues(queueFull).Inc()
	case n == 0, n == cfg.Batch-1:
		e.changed()
	}
}

// Gauge returns how many events wait, with those that are being sent.
func (e *Events) Gauge() metrics.Limit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return metrics.Limit{Name: "hooks.events.queue", Most: e.about.Load().Queue, InUse: len(e.queue) + e.sent}
}

// Run reports events until Close, and then those that wait. It collects changes of topics
// also while the application does not answer.
func (e *Events) Run() {
	defer close(e.done)
	var running sync.WaitGroup
	running.Go(e.collectAll)
	for {
		batch := e.next()
		if len(batch) == 0 {
			break
		}
		e.send(batch)
	}
	running.Wait()
	e.drop(e.take(0), hookWasClosed)
}

// Close sends what waits, as long as the application takes it and until ctx ends, and ends
// Run.
func (e *Events) Close(ctx context.Context) {
	e.Drain()
	e.close()
	select {
	case <-e.done:
	case <-ctx.Done():
	}
	e.application.Close()
	<-e.done
}

func (e *Events) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// collectAll collects changes of topics until Close.
func (e *Events) collectAll() {
	for {
		pause := time.NewTimer(e.about.Load().Delay)
		select {
		case <-pause.C:
			e.collect()
		case <-e.closing:
			pause.Stop()
			return
		}
	}
}

// collect queues the changes of topics.
func (e *Events) collect() {
	e.collecting.Lock()
	defer e.collecting.Unlock()
	grace := e.about.Load().Grace
	if e.hasNoGrace.Load() {
		grace = 0
	}
	lost := e.topics.Occupancies(time.Now(), grace, func(topic string, occupied bool, at time.Time) {
		one := event{Type: topicVacated, Topic: topic}
		if occupied {
			one.Type = topicOccupied
		}
		e.put(one, at)
	})
	e.dead.WithLabelValues(queueFull).Add(float64(lost))
}

// next waits for the next batch. It returns none once all events were sent after Close.
func (e *Events) next() []event {
	full := time.NewTimer(0)
	defer full.Stop()
	for waited := false; ; {
		cfg := e.about.Load()
		if cfg.URL == "" {
			e.drop(e.take(0), hookWasClosed)
		}
		if e.isClosing() {
			e.collect()
			return e.take(cfg.Batch)
		}
		e.mu.Lock()
		n := len(e.queue)
		e.mu.Unlock()
		if n >= cfg.Batch || n > 0 && waited {
			return e.take(cfg.Batch)
		}
		if n > 0 {
			full.Reset(cfg.Delay)
		}
		select {
		case <-e.wake:
		case <-full.C:
			waited = n > 0
		case <-e.closing:
		}
	}
}

// take takes the oldest events, at most so many; 0: all.
func (e *Events) take(most int) []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(cmp.Or(most, len(e.queue)), len(e.queue))
	batch := e.queue[:n:n]
	if e.queue = e.queue[n:]; len(e.queue) == 0 {
		e.queue = nil
	}
	e.sent = n
	return batch
}

// drop counts events that are not sent.
func (e *Events) drop(events []event, reason string) {
	e.dead.WithLabelValues(reason).Add(float64(len(events)))
	e.endSending()
}

// endSending ends the sending of a batch.
func (e *Events) endSending() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent = 0
}

// send sends a batch until the application takes it, or drops it.
func (e *Events) send(batch []event) {
	// {"type":"events","daemon":"…","events":[{"type":"session_opened","time":1774000000000,"session":17,"principal":"ann"}]}
	id, body := newID(), encode(struct {
		Type   string  `json:"type"`
		Daemon string  `json:"daemon"`
		Events []event `json:"events"`
	}{wire.HookEvents, e.daemon, batch})
	for attempt := 1; ; attempt++ {
		cfg := e.about.Load()
		if cfg.URL == "" {
			e.drop(batch, hookWasClosed)
			return
		}
		err := e.post(id, body)
		switch {
		case err == nil:
			e.metrics.Called(passed)
			e.endSending()
			return
		case e.life.Err() != nil, e.isClosing() && attempt >= attemptsAtClose:
			e.drop(append(batch, e.take(0)...), hookWasClosed)
			return
		case attempt >= cfg.Attempts:
			_ = e.failed(fmt.Errorf("attempt %d was the last, and %d events are dropped: %w", attempt, len(batch), err))
			e.drop(batch, batchFailed)
			return
		}
		_ = e.failed(fmt.Errorf("attempt %d of %d: %w", attempt, cfg.Attempts, err))
		wait := time.NewTimer(min(time.Second<<min(attempt-1, bits.UintSize/2), maxBackOff)) // 1 s, 2 s, 4 s, up to a minute
		select {
		case <-wait.C:
		case <-e.closing: // the daemon is about to stop
		}
		wait.Stop()
	}
}

// attemptsAtClose is how often a batch is sent if the daemon is about to stop. A failure
// after these drops all other events, too: the daemon does not wait for an application that
// is not there.
const attemptsAtClose = 2

const maxBackOff = time.Minute

// post makes one attempt. Any status from 200 to 299 is success.
func (e *Events) post(id string, body []byte) error {
	defer e.timed(time.Now())
	return e.inForce.Load().call(e.life, id, body, func(resp *http.Response) error {
		if resp.StatusCode < 200 || resp.StatusCode > 299 {
			return fmt.Errorf("it answered with status %d", resp.StatusCode)
		}
		_, err := io.CopyN(io.Discard, resp.Body, maxIgnored) // so that the connection is kept
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("its answer broke off: %w", err)
		}
		return nil
	})
}

// maxIgnored is how many bytes of an answer's body are read and ignored.
const maxIgnored = 64 << 10
