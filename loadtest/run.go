package loadtest

import (
	"context"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/loadtest/stats"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A run carries one scenario through its phases: connect everyone, rest, run the
// schedule, drain, linger. It is the event loop's Driver and hears of all clients
// and publishers, all on the loop's goroutine, which owns every field.
type run struct {
	ctx      context.Context // the test's lifetime, for samples that are taken beside the loop
	cfg      Common
	scenario scenario
	shape    shape
	loop     eventloop.Loop
	dialect  client.Dialect
	topics   []string
	pool     *pool
	voices   *voices // nil: clients do not publish themselves
	sampler  *sampler
	verifier *verifier
	watch    watch
	reporter *reporter
	crew     *crew         // nil: all clients are here
	agents   []AgentResult // of the crew

	latency  *stats.Latency
	series   *stats.Series
	failures failures
	refused  int64
	fatal    error // why the test ended before its time

	phase     phase
	phaseEnds time.Duration // when the phase ends, if by time
	dialled   int           // clients
	ready     int
	alive     int  // clients that have not closed
	sampled   bool // the window's first sample is being taken
	reported  time.Duration

	seen   int64         // deliveries when the window was closed last
	rested time.Duration // since when no delivery came, while draining
	closed int64         // deliveries of which the server's closing sample is, or is being taken
}

type phase uint8

const (
	connecting phase = iota
	settling
	sampling // what everyone connected costs
	opening  // the publishers' connections
	running
	draining
	lingering // for duplicates of the last messages
	over
)

// Times of a run that nobody needs to set.
const (
	connectPatience = 30 * time.Second       // without any client becoming ready
	lead            = 300 * time.Millisecond // between starting the schedule and its first instant
	sampleLead      = 200 * time.Millisecond // between the window's first scrape and the window
	linger          = 200 * time.Millisecond // after the last delivery; the polls that ack it are the server's work, too
	look            = 10 * time.Millisecond  // how often something without an instant is looked at
)

func newRun(ctx context.Context, cfg Common, sc scenario, loop eventloop.Loop, authority string) *run {
	s := sc.shape()
	dialect := client.NewDialect(cfg.dialect(authority, s.contentType))
	r := &run{
		ctx:      ctx,
		cfg:      cfg,
		scenario: sc,
		shape:    s,
		loop:     loop,
		dialect:  dialect,
		topics:   topicNames(dialect, s.topics),
		sampler:  newSampler(cfg.ServerPID, cfg.Admin, loop.Now),
		verifier: newVerifier(s, dialect.Positions()),
		closed:   -1,
		watch:    watch{loop: loop},
		latency:  stats.NewLatency(),
		series:   stats.NewSeries(time.Second),
	}
	_, most := cfg.publishers(s)
	prepared := forms(dialect, r.topics)
	r.pool = newPool(dialect, loop, most, func(topic int) client.PublishForm { return prepared[topic] })
	r.pool.taken, r.pool.refused, r.pool.failed = r.publishTaken, r.publishRefused, r.publisherFailed
	if cfg.Voices {
		r.voices = newVoices(r.pool)
	}
	return r
}

// Due is part of eventloop.Driver.
func (r *run) Due(now time.Duration) (next time.Duration, done bool) {
	next = r.step(now)
	if r.crew != nil && r.fatal == nil {
		r.fatal = r.crew.failed()
	}
	if r.fatal != nil || r.phase == over {
		return 0, true
	}
	if now-r.reported >= progressEvery {
		r.tell(now)
	}
	return min(next, now+progressEvery), false
}

func (r *run) step(now time.Duration) time.Duration {
	switch r.phase {
	case connecting:
		return r.connect(now)
	case settling:
		return r.settle(now)
	case sampling:
		return r.sample(now)
	case opening:
		return r.openPublishers(now)
	case running:
		return r.play(now)
	case draining:
		return r.drain(now)
	default:
		return r.lingered(now)
	}
}

// connect keeps a bounded number of clients between dialling and being ready, so
// that the server's own pace is the pace.
func (r *run) connect(now time.Duration) time.Duration {
	clients := r.shape.clients()
	if r.crew != nil {
		r.connectCrew()
	}
	for r.crew == nil && r.fatal == nil && r.dialled < clients && r.dialled-r.ready < r.cfg.Connecting {
		number := r.dialled
		r.dialled++
		r.alive++
		r.dial(r.dialect.Subscriber(number, r.topics[number%r.shape.topics], r))
	}
	if r.ready == clients {
		r.enter(settling, now+r.cfg.Settle)
	}
	r.impatient(now, "%d of %d clients were ready", r.ready, clients)
	return now + look
}

func (r *run) dial(m client.Machine) {
	if r.voices != nil {
		r.voices.dial(r.loop, m.(client.Speaker))
		return
	}
	r.loop.Dial(m)
}

// impatient ends the test if connecting takes too long. Each client that becomes
// ready sets phaseEnds back to 0; publishers have one term for all.
func (r *run) impatient(now time.Duration, format string, args ...any) {
	switch {
	case r.phase != connecting && r.phase != opening:
	case r.phaseEnds == 0:
		r.phaseEnds = now + connectPatience
	case now >= r.phaseEnds:
		r.fatal = fmt.Errorf(format+", and no other within %v", append(args, connectPatience)...)
	}
}

func (r *run) enter(p phase, ends time.Duration) { r.phase, r.phaseEnds = p, ends }

func (r *run) settle(now time.Duration) time.Duration {
	if now >= r.phaseEnds && (r.crew == nil || r.crew.tuned.Load()) {
		r.sampler.begin(r.ctx, allConnected)
		r.enter(sampling, never)
	}
	if now < r.phaseEnds {
		return min(r.phaseEnds, now+look)
	}
	return now + look
}

func (r *run) sample(now time.Duration) time.Duration {
	if r.sampler.has(allConnected) {
		r.enter(opening, 0)
	}
	return now + look
}

// openPublishers opens connections at the pace of the server. It comes after the
// sample, so that what a client costs does not include them.
func (r *run) openPublishers(now time.Duration) time.Duration {
	publishers, _ := r.cfg.publishers(r.shape)
	open := len(r.pool.free)
	if open == publishers {
		return r.begin(now)
	}
	for r.fatal == nil && len(r.pool.conns) < min(publishers, open+r.cfg.Connecting) {
		r.pool.open()
	}
	r.impatient(now, "%d of %d publishers were connected", open, publishers)
	return now + look
}

// begin starts the schedule.
func (r *run) begin(now time.Duration) time.Duration {
	r.scenario.start(r.firstInstant(now))
	r.pool.recordFrom = r.scenario.window()
	r.enter(running, r.scenario.window()-sampleLead)
	return now
}

// play runs the schedule. phaseEnds is what comes next of the window: its first
// sample, then its beginning, then nothing.
func (r *run) play(now time.Duration) time.Duration {
	if now >= r.phaseEnds {
		r.approachWindow(now)
	}
	next := r.scenario.due(now, r.publish)
	if next == never && r.phaseEnds == never {
		// A burst is late only when the next would be due.
		r.enter(draining, r.loop.Now()+max(r.cfg.Drain, r.shape.period))
		r.awaitCrew()
		r.closeWindow(now)
		return now
	}
	return min(next, r.phaseEnds)
}

func (r *run) approachWindow(now time.Duration) {
	if !r.sampled {
		r.sampled = true
		r.sampler.begin(r.ctx, windowNears)
	}
	if now < r.scenario.window() {
		r.phaseEnds = r.scenario.window()
		return
	}
	r.sampler.begin(r.ctx, windowBegins)
	r.watch.begin(now)
	r.watch.delivered = -r.delivered() // what came before does not count
	r.phaseEnds = never
}

// drain waits for deliveries and for the publishes' answers. The window ends with
// the last delivery, however long the wait for another is.
func (r *run) drain(now time.Duration) time.Duration {
	if r.delivered() != r.seen {
		r.closeWindow(now)
	}
	r.sampleEnd(now)
	if now < r.phaseEnds && (r.missing() > 0 || r.pool.unanswered() > 0) {
		return min(r.phaseEnds, now+look)
	}
	for range r.pool.unanswered() {
		r.failures.add("publish unanswered", fmt.Errorf("no answer before the drain time of %v was over", r.cfg.Drain))
	}
	r.watch.finish()
	r.watch.delivered += r.seen
	r.enter(lingering, now+linger)
	return now
}

// closeWindow ends the window for now: the deliveries that came may be the last.
func (r *run) closeWindow(now time.Duration) {
	r.seen, r.rested = r.delivered(), now
	r.watch.end(now)
}

// sampleEnd takes the server's closing sample when deliveries have rested for
// linger, and anew if more came after that; never before the first, which may be slow.
func (r *run) sampleEnd(now time.Duration) {
	if r.closed == r.seen || now < r.rested+linger || r.closed >= 0 && !r.sampler.has(windowEnds) || !r.sampler.has(windowNears) {
		return
	}
	r.closed = r.seen
	r.sampler.begin(r.ctx, windowEnds)
}

func (r *run) lingered(now time.Duration) time.Duration {
	r.sampleEnd(now)
	if now >= r.phaseEnds && r.closed == r.seen && r.sampler.has(windowEnds) {
		r.tell(now)
		r.phase = over
	}
	return now + look
}

// publish hands a message to the pool and expects its deliveries.
func (r *run) publish(m publication) {
	r.verifier.publish(m.topic, m.sequence)
	if r.shape.bursts && r.crew == nil {
		r.watch.underway(true, r.loop.Now())
	}
	if r.voices != nil {
		r.voices.publish(m)
		return
	}
	r.pool.publish(m)
}

func (r *run) publishTaken(m publication, p wire.Position) {
	r.verifier.answer(m.topic, m.sequence, p)
}

func (r *run) publishRefused(m publication, err error) {
	r.refused++
	r.verifier.refuse(m.topic, m.sequence)
	r.failures.add("publish refused", err)
}

func (r *run) publisherFailed(err error) {
	r.failures.add("publisher's connection", err)
	if r.phase == opening {
		r.fatal = fmt.Errorf("publisher: %w", err)
	}
}

// Ready is part of client.Events.
func (r *run) Ready(number int, begin wire.Position) {
	r.ready++
	r.phaseEnds = 0 // patience begins anew; see impatient
	r.verifier.begin(number, begin)
}

// Message is part of client.Events.
func (r *run) Message(number int, f *client.Frame, now time.Duration) error {
	topic := number % r.shape.topics
	sequence, ok := r.scenario.read(topic, f.Data)
	if !ok || !r.verifier.knows(topic, sequence) {
		return fmt.Errorf("message %q with payload %.80q, which this test did not publish", f.Position, f.Data)
	}
	if !r.verifier.message(number, sequence, f.Position) {
		return nil
	}
	o := r.scenario.delivered(delivery{client: number, topic: topic, sequence: sequence, now: now})
	if o.late {
		r.verifier.late++
	}
	if o.recorded {
		r.latency.Record(o.latency)
		r.series.Record(now-r.scenario.window(), o.latency)
	}
	if r.shape.bursts && r.verifier.missing() == 0 {
		r.watch.underway(false, now)
	}
	return nil
}

// Gap is part of client.Events.
func (r *run) Gap(number int, g *wire.Gap) { r.verifier.gap(number, g) }

// Closed is part of client.Events.
func (r *run) Closed(number int, err error) {
	r.alive--
	r.failures.add("client's connection", err)
	switch {
	case r.phase == connecting:
		r.fatal = fmt.Errorf("client %d of %d: %w", number+1, r.shape.clients(), err)
	case r.alive == 0:
		r.fatal = fmt.Errorf("the connections of all clients have ended; the last error: %w", err)
	}
}

// tell reports where the run is.
func (r *run) tell(now time.Duration) {
	r.reported = now
	s := Status{Deliveries: r.delivered(), Failures: r.failuresSoFar(), Elapsed: now}
	switch r.phase {
	case connecting:
		s.Phase, s.Done, s.Total, s.Unit = "connecting", r.ready, r.shape.clients(), "clients"
	case settling, sampling, opening:
		s.Phase, s.Done, s.Total, s.Unit = "settling", r.ready, r.shape.clients(), "clients"
	case running:
		s.Phase = r.shape.name
		s.Done, s.Total, s.Unit = r.scenario.progress(now)
	default:
		s.Phase, s.Done, s.Total, s.Unit = "draining", int(r.delivered()), int(r.verifier.expected), "deliveries"
	}
	r.reporter.newest.Store(&s)
}
