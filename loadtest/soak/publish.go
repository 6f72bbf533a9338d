package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A publisher publishes at a steady rate and in bursts, and enters into the ledger
// what became of each message. It is one goroutine's.
type publisher struct {
	number    int
	world     *world
	client    *pubsub.Client
	transport *http.Transport
	rng       *rand.Rand
	sequence  uint64
}

// published counts what became of publishes. It is safe for concurrent use.
type published struct {
	accepted, refused, forbidden, unknown, bursts atomic.Int64

	limited, overloaded, heeded atomic.Int64 // of those who reach limits on purpose: told so; and served when they came as told
}

// note counts a refusal.
func (p *published) note(refusal error) {
	if errors.Is(refusal, &wire.Problem{Code: wire.CodeForbidden}) {
		p.forbidden.Add(1)
		return
	}
	p.refused.Add(1)
}

// publishTimeout bounds one publish: a cut is noticed by its connection, a stall
// by this.
const publishTimeout = 10 * time.Second

func newPublisher(w *world, number int, options ...pubsub.Option) (*publisher, error) {
	p := &publisher{number: number, world: w, rng: w.lot('p', number), transport: &http.Transport{}}
	hc := &http.Client{Transport: p.transport}
	if w.features.echo {
		hc.Transport = namedPublisher{p.transport, clientName(number)}
	}
	var err error
	p.client, err = pubsub.New("http://"+w.ports.http.address(), append(options, pubsub.WithHTTPClient(hc))...)
	return p, err
}

// run publishes rate messages a second until ctx ends.
func (p *publisher) run(ctx context.Context, rate float64) {
	defer p.transport.CloseIdleConnections()
	next := time.Now()
	for ctx.Err() == nil {
		next = next.Add(time.Duration(p.rng.ExpFloat64() / rate * float64(time.Second)))
		if late := time.Since(next); late > time.Second {
			next = time.Now() // no burst for the time that nobody took anything
		}
		if sleep(ctx, time.Until(next)) != nil {
			return
		}
		if p.offer(ctx, p.drawTopic()) != nil {
			_ = sleep(ctx, time.Duration(100+p.rng.IntN(400))*time.Millisecond) // nobody may be there
		}
		if p.rng.Float64() < burstsPerSecond/rate {
			p.burst(ctx)
		}
	}
}

const (
	burstsPerSecond = 0.1 // of one publisher
	longestBurst    = 120
)

// burst publishes to one topic without a pause.
func (p *publisher) burst(ctx context.Context) {
	p.world.published.bursts.Add(1)
	topic := p.drawTopic()
	for range 10 + p.rng.IntN(longestBurst-10) {
		if ctx.Err() != nil || p.offer(ctx, topic) != nil {
			return
		}
	}
}

// drawTopic draws one to which everyone publishes.
func (p *publisher) drawTopic() int {
	return eagerTopics + p.rng.IntN(len(p.world.ledger.names)-eagerTopics)
}

// offer publishes one message, and returns why it was not accepted.
func (p *publisher) offer(ctx context.Context, topic int) error {
	p.sequence++
	id := newIdentity(topic, p.number, p.sequence)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	answer, err := publish(ctx, p.world, p.client, id)
	switch {
	case err == nil:
		p.world.published.accepted.Add(1)
		p.world.ledger.accepted(id, answer)
	case wasRefused(err):
		p.world.published.note(err)
		p.world.ledger.refusedBy(id)
		p.judgeRefusal(id, err)
	default:
		p.world.published.unknown.Add(1)
		p.world.ledger.lostAnswer(id)
	}
	return err
}

func publish(ctx context.Context, w *world, client *pubsub.Client, id identity) (wire.Published, error) {
	f := w.payloads.offered(id)
	var options []pubsub.PublishOption
	if f.ttl > 0 {
		options = append(options, pubsub.WithTTL(f.ttl))
	}
	if w.reign.store != "" && !hooked(id.topic()) { // the application would be asked again
		options = append(options, pubsub.WithIdempotencyKey(string(id.appendTo(nil))))
	}
	return client.Publish(ctx, w.ledger.names[id.topic()], f.mediaType, w.payloads.body(id, f), options...)
}

// A namedPublisher says with each publish whose it is. It belongs to one publisher,
// whose name the daemon is told as client=.
type namedPublisher struct {
	http.RoundTripper
	name string
}

// RoundTrip is part of http.RoundTripper.
func (p namedPublisher) RoundTrip(req *http.Request) (*http.Response, error) {
	named := req.Clone(req.Context())
	query := named.URL.Query()
	query.Set("client", p.name)
	named.URL.RawQuery = query.Encode()
	return p.RoundTripper.RoundTrip(named)
}

func clientName(publisher int) string { return fmt.Sprintf("publisher-%d", publisher) }

// wasRefused reports whether the daemon said that it did not take the message.
func wasRefused(err error) bool {
	_, ok := errors.AsType[*wire.Problem](err)
	return ok && !errors.Is(err, pubsub.ErrOutcomeUnknown)
}

// judgeRefusal finds fault unless the daemon said "later", or what the application did.
func (p *publisher) judgeRefusal(id identity, err error) {
	problem, _ := errors.AsType[*wire.Problem](err)
	if isHalfRequest(err) || wasForbidden(p.world.payloads, id, problem) {
		return
	}
	if !saysLater(problem) || problem.Code == wire.CodeHookFailed && !hooked(id.topic()) {
		p.fault(Protocol, id.topic(), "%v was refused: %v", id, err)
	}
}

func (p *publisher) fault(kind Kind, topic int, format string, args ...any) {
	p.world.fault(kind, fmt.Sprintf("publisher %d", p.number), p.world.ledger.names[topic], format, args...)
}

func saysLater(problem *wire.Problem) bool {
	return problem.Status == http.StatusServiceUnavailable || problem.Status == http.StatusTooManyRequests
}

// wasForbidden reports whether the problem is what the application said.
func wasForbidden(p *payloads, id identity, problem *wire.Problem) bool {
	o, _ := p.opinionOf(id)
	return o == refuses && problem.Code == wire.CodeForbidden && problem.Detail == refusal(id)
}

// probe publishes the last message of each topic: whoever has it, and all before,
// has everything.
func probe(ctx context.Context, w *world) error {
	client, err := pubsub.New("http://" + w.ports.http.address())
	if err != nil {
		return err
	}
	defer client.Close()
	for topic := range w.ledger.names {
		if err := probeTopic(ctx, w, client, topic); err != nil {
			return fmt.Errorf("publish the last message of %s: %w", w.ledger.names[topic], err)
		}
	}
	return nil
}

func probeTopic(ctx context.Context, w *world, client *pubsub.Client, topic int) (err error) {
	for attempt := range uint64(20) {
		id := newIdentity(topic, probePublisher, attempt)
		var answer wire.Published
		if answer, err = publish(ctx, w, client, id); err == nil {
			w.ledger.accepted(id, answer)
			return nil
		}
		if wasRefused(err) {
			w.ledger.refusedBy(id)
		} else {
			w.ledger.lostAnswer(id)
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
	return err
}

// sleep waits for d, or for the end of ctx, and then returns why it ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
