package loadtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A portion is an agent's part of a test: its clients connect and receive as in a
// test of one process, and nothing is published. It is the Driver of its loop;
// other goroutines talk to it through the fields that say so.
//
// It keeps the schedule itself, by its own clock, so that latencies, the window
// and the bursts are what they would be in one process.
type portion struct {
	*run

	// Set by others, once.
	startAt   atomic.Int64                     // the first instant; 0: not told yet
	published atomic.Pointer[portionPublished] // what became of the publishes; nil: not finished yet
	asked     atomic.Int64                     // when the coordinator was heard last, by the loop's clock
	// Set here for others.
	status atomic.Pointer[portionStatus]
	done   chan struct{} // closed at the end; then result and err are there
	result portionResult
	err    error

	cancel   context.CancelFunc
	patience time.Duration // without hearing the coordinator
}

// startPortion begins to connect the clients. Whoever gets a portion ends it, and
// waits until it is done.
func startPortion(o *portionOrder, patience time.Duration) (*portion, error) {
	sc, cfg, err := o.scenario()
	if err != nil {
		return nil, err
	}
	if err := checkOpenFiles(sc.shape().clients()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // the agent's lifetime, not the request's
	address, authority, err := resolve(ctx, o.Target)
	if err != nil {
		cancel()
		return nil, err
	}
	loop, err := eventloop.New(eventloop.Config{Target: address})
	if err != nil {
		cancel()
		return nil, err
	}
	s := &portion{run: newRun(ctx, cfg, sc, loop, authority), done: make(chan struct{}), cancel: cancel, patience: patience}
	s.topics = o.Topics
	s.status.Store(&portionStatus{})
	go s.live()
	return s, nil
}

// live runs the loop to its end.
func (s *portion) live() {
	defer close(s.done)
	defer s.cancel()
	defer s.loop.Close()
	s.err = errors.Join(s.loop.Run(s.ctx, s), s.fatal)
	s.result = portionResult{
		Latency: s.latency, Series: s.series, Deliveries: s.verifier.result(), Generator: s.watch.generator(), Errors: s.run.failures.list(),
	}
	if b, ok := s.scenario.(divided).scenario.(*broadcast); ok {
		s.result.Bursts = b.parts()
	}
	s.tellStatus()
}

// end ends it, whatever it is at, and returns when it is done.
func (s *portion) end() {
	s.cancel()
	<-s.done
}

// heard notes that the coordinator is there.
func (s *portion) heard() { s.asked.Store(int64(s.loop.Now())) }

// Due is part of eventloop.Driver.
func (s *portion) Due(now time.Duration) (next time.Duration, done bool) {
	next = s.step(now)
	if p := s.published.Load(); p != nil {
		s.conclude(p, now)
	}
	if now-time.Duration(s.asked.Load()) > s.patience {
		s.fatal = fmt.Errorf("the coordinator sent nothing for %v", s.patience)
	}
	s.tellStatus()
	return min(next, now+look), s.fatal != nil || s.phase == over
}

func (s *portion) tellStatus() {
	status := portionStatus{Ready: s.ready, Delivered: s.verifier.delivered, Failures: s.run.failures.count()}
	if err := errors.Join(s.err, s.fatal); err != nil {
		status.Error = err.Error()
	}
	s.status.Store(&status)
}

func (s *portion) step(now time.Duration) time.Duration {
	switch s.phase {
	case connecting:
		return s.connect(now)
	case settling:
		return s.awaitStart(now)
	case running:
		return s.receive(now)
	default:
		return s.drained(now)
	}
}

func (s *portion) awaitStart(now time.Duration) time.Duration {
	at := time.Duration(s.startAt.Load())
	switch {
	case at == 0:
	case now >= at:
		s.fatal = fmt.Errorf("the order to start arrived %v too late", now-at)
	default:
		s.scenario.start(at)
		s.verifier.foretold = true // not before: no message has an instant then
		s.enter(running, s.scenario.window())
	}
	return now + look
}

// receive is play without publishing.
func (s *portion) receive(now time.Duration) time.Duration {
	if now >= s.phaseEnds {
		s.watch.begin(now)
		s.watch.delivered = -s.verifier.delivered
		s.phaseEnds = never
	}
	next := s.scenario.due(now, s.expect)
	if next == never && s.phaseEnds == never {
		s.enter(draining, never)
		s.closeWindow(now)
		return now
	}
	return min(next, s.phaseEnds)
}

// expect is publish without publishing.
func (s *portion) expect(m publication) {
	s.verifier.publish(m.topic, m.sequence)
	if s.shape.bursts {
		s.watch.underway(true, s.loop.Now())
	}
}

// drained is drain without knowing how much is to come.
func (s *portion) drained(now time.Duration) time.Duration {
	if s.verifier.delivered != s.seen {
		s.closeWindow(now)
	}
	return now + look
}

// conclude ends it with what became of the publishes; in the middle, if the test
// ended early.
func (s *portion) conclude(p *portionPublished, now time.Duration) {
	if s.phase == running {
		s.closeWindow(now)
	}
	s.account(p)
	s.watch.finish()
	s.watch.delivered += s.seen
	s.phase = over
}

// account compares what was delivered with what the server answered to publishes.
func (s *portion) account(p *portionPublished) {
	for topic := range s.shape.topics {
		for sequence, offset := range p.Offsets[topic] {
			if offset != 0 {
				s.verifier.answer(topic, sequence, wire.Position{Topic: s.topics[topic], Epoch: p.Epochs[topic], Offset: offset})
			}
		}
		for _, sequence := range p.Refused[topic] {
			s.verifier.refuse(topic, sequence)
		}
	}
}

// check refuses what account would stumble over.
func (p *portionPublished) check(s shape) error {
	if len(p.Epochs) != s.topics || len(p.Offsets) != s.topics || len(p.Refused) != s.topics {
		return fmt.Errorf("the account does not have %d topics", s.topics)
	}
	for topic := range s.topics {
		if len(p.Offsets[topic]) > s.messages {
			return fmt.Errorf("the account has %d messages of a topic; the topic has %d", len(p.Offsets[topic]), s.messages)
		}
		for _, sequence := range p.Refused[topic] {
			if sequence < 0 || sequence >= s.messages {
				return fmt.Errorf("the account has message %d of a topic as refused; the topic has %d messages", sequence, s.messages)
			}
		}
	}
	return nil
}

// publishedNow returns what became of the publishes so far.
func (v *verifier) publishedNow() *portionPublished {
	n := v.shape.topics
	p := &portionPublished{Epochs: make([]string, n), Offsets: make([][]uint64, n), Refused: make([][]int, n)}
	for topic := range n {
		p.Epochs[topic], p.Offsets[topic] = v.numbers[topic].epoch, v.numbers[topic].offsets
		p.Refused[topic] = v.refused[topic].members(v.shape.messages)
	}
	return p
}

// members returns the numbers below n that are in the set.
func (b bitset) members(n int) []int {
	var all []int
	for i := range n {
		if b.has(i) {
			all = append(all, i)
		}
	}
	return all
}
