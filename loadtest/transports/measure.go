package transports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// errLost is why a client did not get all messages, where nothing else failed.
var errLost = errors.New("messages are missing")

// A measurement is one subject, once.
type measurement struct {
	runner *runner
	asker
	messages    int
	pid         int
	subscribers []*subscriber
	sessions    []string
	publisher   *publisher // nil if filled
	aside       *exchange  // for what is not measured
}

// measure measures a subject once. With an error there may be a Sample of what was
// lost.
func (m *runner) measure(ctx context.Context, s subject) (Sample, error) {
	run := &measurement{runner: m, asker: asker{subject: s, authority: m.authority}, messages: m.cfg.messages(s), pid: m.pid}
	defer run.close()
	if err := run.prepare(ctx); err != nil {
		return Sample{}, err
	}
	if err := run.connect(ctx); err != nil {
		return Sample{}, err
	}
	runtime.GC() // of what was prepared, which is not the clients'
	sample, err := run.sample(ctx)
	return sample, errors.Join(err, run.forget())
}

// prepare says where delivery begins.
func (r *measurement) prepare(ctx context.Context) (err error) {
	if r.aside, err = newExchange(ctx, r.authority); err != nil {
		return err
	}
	if r.way == Filled {
		r.at, r.start = r.runner.filled, r.runner.filled.Topic+"@oldest"
		return nil
	}
	if r.publisher, err = newPublisher(ctx, r.authority, r.runner.newTopic(), r.messages); err != nil {
		return err
	}
	if err := r.publisher.begin(ctx); err != nil {
		return err
	}
	r.at, r.start = r.publisher.last, r.publisher.last.String()
	return nil
}

// connect opens all connections, and a session for each that polls one.
func (r *measurement) connect(ctx context.Context) error {
	address, prologue := r.authority, []byte(nil)
	switch {
	case r.transport == TCP:
		address = r.runner.tcp
	case r.isFloor():
		address, r.pid, r.bare = r.runner.bare, r.runner.barePID, bareNumber(r.subject)
	}
	if r.transport == BareLoop {
		prologue = bareAnswers(r.subject)
	}
	for range r.runner.cfg.Clients {
		s, err := newSubscriber(ctx, address, prologue, bufferSize(r.runner.cfg.Clients))
		if err != nil {
			return err
		}
		r.subscribers = append(r.subscribers, s)
		session, err := r.openSession()
		if err != nil {
			return err
		}
		t := newTally(r.at.Offset, r.messages)
		s.transport, s.content = r.newTransport(t, session)
	}
	return nil
}

// openSession opens one for a client whose transport needs it. The bare loop is
// asked for one that is gone, since it looks at nothing.
func (r *measurement) openSession() (string, error) {
	switch r.transport {
	case Single, Batch, Multiple, Stream:
	default:
		return r.runner.session, nil
	}
	session, err := openSession(r.aside, r.authority, r.start)
	if err == nil {
		r.sessions = append(r.sessions, session)
	}
	return session, err
}

// An account is what was used up to some moment.
type account struct {
	at          time.Time
	server, own time.Duration
}

func (r *measurement) account() account {
	server, _ := loadtest.ProcessCPU(r.pid)
	return account{time.Now(), server, loadtest.OwnCPU()}
}

// sample lets all clients run, and the publisher beside them.
func (r *measurement) sample(ctx context.Context) (Sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, r.closeConnections)()
	begin := r.account()
	var running, greeting sync.WaitGroup
	failures := make([]error, len(r.subscribers)+1)
	for i, s := range r.subscribers {
		greeted := func() {}
		if r.publisher != nil && len(r.sessions) == 0 || r.transport == Stream {
			greeting.Add(1)
			greeted = sync.OnceFunc(greeting.Done)
		}
		running.Go(func() {
			defer greeted()
			if failures[i] = asLoss(s.run(greeted)); failures[i] != nil && !errors.Is(failures[i], errLost) {
				cancel() // there is nothing to measure; but one client's loss is not another's
			}
		})
	}
	var published time.Duration
	if r.publisher != nil {
		greeting.Wait()
		begin = r.account()
		running.Go(func() { published, failures[len(r.subscribers)] = r.publish(ctx) })
	}
	running.Wait()
	return r.finish(begin, r.account(), published), r.explain(failures)
}

// publish publishes everything, and returns what CPU time that took. It keeps its
// thread, which is asked.
func (r *measurement) publish(ctx context.Context) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadCPU()
	err := r.publisher.run(ctx)
	return threadCPU() - begin, err
}

func (r *measurement) finish(begin, end account, published time.Duration) Sample {
	took := end.at.Sub(begin.at).Seconds()
	s := Sample{
		TookS: took, PerSecond: float64(r.messages) * float64(len(r.subscribers)) / took,
		ServerS: (end.server - begin.server).Seconds(), ClientS: (end.own - begin.own - published).Seconds(), PublisherS: published.Seconds(),
	}
	for _, sub := range r.subscribers {
		t := sub.content.tally
		s.BytesIn += sub.in
		s.BytesOut += sub.out
		s.lost += t.lost()
		s.duplicates += t.duplicates
		s.disordered += t.disordered
		s.gaps += t.gaps
	}
	return s
}

// explain returns the first failure that is not of a connection closed because of
// another.
func (r *measurement) explain(failures []error) error {
	var first error
	for _, err := range failures {
		switch {
		case err == nil:
		case first == nil || errors.Is(first, net.ErrClosed) || errors.Is(first, errLost):
			first = err
		}
	}
	return first
}

// asLoss makes of a client that waited in vain one that lost messages.
func asLoss(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: none arrived for %v: %w", errLost, patience, err)
	}
	return err
}

// forget leaves the server as it was.
func (r *measurement) forget() error {
	for _, s := range r.sessions {
		if err := r.aside.remove(r.authority, "/v1/sessions/"+s); err != nil {
			return fmt.Errorf("end a session: %w", err)
		}
	}
	if r.publisher == nil {
		return nil
	}
	return r.publisher.forget()
}

func (r *measurement) closeConnections() {
	for _, s := range r.subscribers {
		s.close()
	}
	if r.publisher != nil {
		r.publisher.conn.Close()
	}
}

func (r *measurement) close() {
	r.closeConnections()
	if r.aside != nil {
		r.aside.conn.Close()
	}
}
