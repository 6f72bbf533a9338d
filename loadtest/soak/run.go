package soak

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Progress is told how a soak gets on. Its calls come one at a time.
type Progress func(line string)

// progressEvery is how often there is a line.
const progressEvery = 10 * time.Second

// Run is a whole soak. It returns when everything has stopped that it has started;
// ctx ends the time in which things go wrong early, and the result says so. An
// error means that there is no result, or that the soak came to no proper end; a
// ConfigError that it could not begin as it was asked for.
func Run(ctx context.Context, cfg Config, say Progress) (*Result, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	w, err := newWorld(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer w.close()
	say(fmt.Sprintf("seed %d; started a server as process %d, and proxies at %s and %s", cfg.Seed, w.reign.server.PID(), w.ports.http.address(), w.ports.bare.address()))
	began := time.Now()
	stop := w.report(say)
	failure := w.rage(ctx, cfg)
	stop()
	w.reign.end()
	w.judge()
	r := w.result(cfg, time.Since(began), ctx.Err() != nil)
	return r, failure
}

func newWorld(ctx context.Context, cfg Config) (*world, error) {
	began, f := time.Now(), newFaults()
	p := newPayloads(cfg.Seed, largestMessage)
	ports, err := newPorts(cfg.Seed)
	if err != nil {
		return nil, err
	}
	w := &world{
		seed: cfg.Seed, payloads: p, ledger: newLedger(topicNames(eagerTopics+cfg.Topics), p, f, began), ports: ports,
		calm: make(chan struct{}), trails: make([][]*trail, eagerTopics+cfg.Topics), retentions: &retentions{}, publishers: cfg.Publishers,
	}
	if w.hook, err = newApplication(w.ledger); err != nil {
		ports.close()
		return nil, err
	}
	cfg.ServerCommand = slices.Concat(cfg.ServerCommand, w.hook.flags(), limitFlags(cfg, w.ledger.names))
	if w.reign, err = newReign(ctx, cfg, w.hook.variable(), ports, w.ledger, w.retentions); err != nil {
		w.close()
		return nil, err
	}
	if w.features, err = askFeatures(ctx, w.reign.server.Addresses().Public, w.ledger.names[0]); err != nil {
		w.reign.end()
		w.close()
		return nil, fmt.Errorf("ask what the server offers: %w", err)
	}
	return w, nil
}

// close ends what clients and daemons were led to.
func (w *world) close() {
	w.ports.close()
	w.hook.close()
}

// largestMessage is the limit that the daemon has by default.
const largestMessage = 64 << 10

// topicNames returns names of one and of two tokens, part of which no other test
// has used.
func topicNames(n int) []string {
	tag := rand.Text()[:6]
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("soak-%s.%d", tag, i)
	}
	return names
}

// rage lets everything go wrong for the time that cfg says, then lets all calm down
// and waits until every subscriber has everything.
func (w *world) rage(ctx context.Context, cfg Config) (failure error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	living, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()

	var crowd, writers sync.WaitGroup
	crowd.Go(func() { w.populate(living, cfg.Subscribers, min(time.Minute, cfg.Duration/3)) })
	for n := range cfg.Publishers {
		p, err := newPublisher(w, n)
		if err != nil {
			return err
		}
		writers.Go(func() { p.run(ctx, cfg.Rate/float64(cfg.Publishers)) })
	}
	if err := w.press(ctx, &writers); err != nil {
		return err
	}
	if w.features.deletion {
		writers.Go(func() { w.erase(ctx) })
	}
	failure = w.reign.run(ctx, min(cfg.Restart, cfg.Duration/3))
	cancel()
	close(w.calm)
	w.ports.calm()
	writers.Wait()
	if failure == nil {
		failure = w.settle(living, cfg.Settle)
	}
	if failure == nil {
		failure = w.readHistories(living)
	}
	die()
	crowd.Wait()
	return failure
}

// settle publishes the last messages and waits until every live trail has them. What
// is missing then is for the judge.
func (w *world) settle(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := probe(ctx, w); err != nil {
		return err
	}
	for !w.complete() {
		if sleep(ctx, 50*time.Millisecond) != nil {
			return nil
		}
	}
	w.settled.Store(true)
	return nil
}

// complete reports whether every live trail has everything.
func (w *world) complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, trails := range w.trails {
		for _, t := range trails {
			if t.isLive() && !t.complete(w.reign.epoch) {
				return false
			}
		}
	}
	return true
}

// judge decides over all trails.
func (w *world) judge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.ledger.epoch(w.reign.epoch)
	for topic, trails := range w.trails {
		judgeTopic(w.ledger, w.retentions, topic, last, trails)
	}
	w.hook.judge()
}

// report says a line now and then, until the returned function is called.
func (w *world) report(say Progress) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for sleep(ctx, progressEvery) == nil {
			say(w.line())
		}
	})
	return func() { cancel(); done.Wait() }
}

func (w *world) line() string {
	messages, gaps := w.seen()
	all := int64(0)
	for _, n := range gaps {
		all += n
	}
	return fmt.Sprintf("%4.0f s  %d published, %d delivered, %d gaps, %d cuts, epoch %d, %d faults",
		time.Since(w.ledger.began).Seconds(), w.published.accepted.Load(), messages, all, w.ports.cuts(), w.reign.number.Load(), w.ledger.faults.total())
}
