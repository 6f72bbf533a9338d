package encoding

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// patience is how long anything may take that is not part of a load: a session's
// opening, the last trips.
const patience = 10 * time.Second

// A load is the clients of one encoding and size, who do one round trip after the
// other.
type load struct {
	server  *server
	clients []*echoer
	stop    atomic.Bool
	failed  chan struct{} // closed with the first failure
	once    sync.Once
	failure error // set before failed is closed
	running sync.WaitGroup
}

// newLoad connects the clients. Their topics are those of every load: a client's
// own.
func newLoad(ctx context.Context, s *server, c codec, clients, objects int, seed uint64) (*load, error) {
	l := &load{server: s, failed: make(chan struct{})}
	for i := range clients {
		e, err := newEchoer(ctx, c, s.address, s.authority, fmt.Sprintf("%s.t%d", s.topics, i), newObjects(newRandom(seed, i), objects))
		if err != nil {
			l.hangUp()
			return nil, fmt.Errorf("client %d of %d: %w", i+1, clients, err)
		}
		l.clients = append(l.clients, e)
	}
	return l, nil
}

// run lets the clients loop and returns what they did while they were recorded. They
// have hung up when it returns.
func (l *load) run(ctx context.Context, warmup, duration time.Duration) (Sum, error) {
	defer l.hangUp()
	defer context.AfterFunc(ctx, l.cut)()
	end := time.Now().Add(warmup + duration + patience)
	for _, e := range l.clients {
		e.setDeadline(end)
		l.running.Go(func() { l.loop(e) })
	}
	l.wait(ctx, warmup)
	begin := l.sum()
	l.wait(ctx, duration)
	done := l.sum().minus(begin)
	l.stop.Store(true)
	l.running.Wait()
	if ctx.Err() != nil {
		return Sum{}, ctx.Err() // what failed then did so for that
	}
	return done, l.failure
}

func (l *load) loop(e *echoer) {
	for !l.stop.Load() {
		if err := e.trip(); err != nil {
			l.fail(err)
			return
		}
	}
	if err := e.close(); err != nil {
		l.fail(err)
	}
}

// fail keeps the first failure, and ends all clients.
func (l *load) fail(err error) {
	l.once.Do(func() {
		l.failure = err
		l.stop.Store(true)
		close(l.failed)
	})
}

func (l *load) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.failed:
	case <-ctx.Done():
	}
}

// sum is what all clients and the server did so far.
func (l *load) sum() Sum {
	s := Sum{Seconds: time.Since(l.server.began).Seconds(), Server: l.server.cpu(), Client: loadtest.OwnCPU().Seconds()}
	for _, e := range l.clients {
		t := e.tally
		s.Trips += t.trips.Load()
		s.BytesIn += t.in.Load()
		s.BytesOut += t.out.Load()
		s.Build += time.Duration(t.build.Load()).Seconds()
		s.Parse += time.Duration(t.parse.Load()).Seconds()
	}
	return s
}

// cut ends what the clients wait for.
func (l *load) cut() {
	l.stop.Store(true)
	for _, e := range l.clients {
		e.setDeadline(time.Unix(1, 0))
	}
}

func (l *load) hangUp() {
	for _, e := range l.clients {
		e.hangUp()
	}
}

// notOffered reports whether err says that the server has no such encoding, rather
// than that something failed.
func notOffered(err error) bool {
	if r, ok := errors.AsType[*refused](err); ok {
		return r.status == 400 || r.status == 406 || r.status == 415
	}
	return errors.Is(err, errNotCompressed) || errors.Is(err, errOpaque)
}
