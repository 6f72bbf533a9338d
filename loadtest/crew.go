package loadtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/child"
)

// A crew is the agents of one test, as the coordinator sees them. The event loop
// never waits for them: it looks at what was heard last, and has others told.
type crew struct {
	members []*member
	run     string // the test's, by which agents tell it from others
	now     func() time.Duration

	ctx     context.Context // ends with the test; for what is said beside the loop
	cancel  context.CancelFunc
	pending sync.WaitGroup // whatever is said beside the loop
	pace    atomic.Int64   // between two looks at a member
	tuned   atomic.Bool    // the clocks were compared
	failure atomic.Pointer[error]
}

// Paces at which members are looked at: where the test waits for what they say,
// and where they are to be left alone.
const (
	briskly  = 20 * time.Millisecond
	calmly   = 100 * time.Millisecond // below linger: the closing sample is not to be taken twice
	crewLead = 3 * time.Second        // between telling agents the first instant, and it; who hears of it too late ends the test
)

// gatherCrew returns the agents that cfg asks for, started if need be and ready for
// an order; nil if it asks for none. Whoever gets a crew must dismiss it.
func gatherCrew(ctx context.Context, cfg *CrewConfig) (*crew, error) {
	if cfg.size() == 0 {
		return nil, nil //nolint:nilnil // no crew is what most tests have
	}
	c := &crew{run: rand.Text()}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, address := range cfg.Agents {
		c.members = append(c.members, newMember(address, cfg.Token))
	}
	err := c.startChildren(ctx, cfg)
	if err == nil {
		err = c.each(func(m *member) error { return m.greet(ctx, cfg.Version) })
	}
	if err != nil {
		c.dismiss()
		return nil, err
	}
	return c, nil
}

func (c *crew) startChildren(ctx context.Context, cfg *CrewConfig) error {
	for range cfg.Processes {
		token := rand.Text()
		started, err := child.Agent(ctx, cfg.Command, AgentTokenVariable+"="+token)
		if err != nil {
			return err
		}
		m := newMember(started.Addresses().Public, token)
		m.child = started
		c.members = append(c.members, m)
	}
	return nil
}

// each does something with every member at the same time, and returns all errors.
func (c *crew) each(do func(*member) error) error {
	faults := make([]error, len(c.members))
	var all sync.WaitGroup
	for i, m := range c.members {
		all.Go(func() { faults[i] = do(m) })
	}
	all.Wait()
	return errors.Join(faults...)
}

// introduce says which processes were started.
func (c *crew) introduce(p Progress) {
	if c == nil {
		return
	}
	for _, m := range c.members {
		if m.child != nil {
			p.Notice(fmt.Sprintf("started an agent as process %d at %s; it is stopped after the test", m.hello.PID, m.address))
		}
	}
}

// order has the agents' clients connect, and begins to look at them.
func (c *crew) order(ctx context.Context, r *run) error {
	c.now = r.loop.Now
	order := portionOrder{
		Run: c.run, Target: r.cfg.Target, Topics: r.topics,
		Transport: r.cfg.Transport, Format: r.cfg.Format, Mode: r.cfg.Mode, Stateless: r.cfg.Stateless,
		Connecting: max(r.cfg.Connecting/len(c.members), 1),
	}
	r.scenario.(divisible).describe(&order)
	for i, n := range split(r.shape.perTopic, len(c.members)) {
		c.members[i].perTopic, c.members[i].clients = n, n*r.shape.topics
	}
	err := c.each(func(m *member) error {
		own := order
		own.PerTopic = m.perTopic
		return m.call(ctx, http.MethodPost, "/v1/runs", own, nil)
	})
	if err != nil {
		return err
	}
	c.pace.Store(int64(briskly))
	for _, m := range c.members {
		c.pending.Go(func() { c.watch(m) })
	}
	return nil
}

// watch looks at a member until the test is over, or it fails.
func (c *crew) watch(m *member) {
	for {
		var s portionStatus
		err := m.call(c.ctx, http.MethodGet, c.path(""), nil, &s)
		switch {
		case c.ctx.Err() != nil:
			return
		case err == nil && s.Error != "":
			err = fmt.Errorf("agent %s: %s", m.address, s.Error)
		}
		if err != nil {
			c.fail(m.gone(err))
			return
		}
		m.status.Store(&s)
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(time.Duration(c.pace.Load())):
		}
	}
}

func (c *crew) path(what string) string { return "/v1/runs/" + c.run + what }

// fail keeps the first failure, for the loop to see.
func (c *crew) fail(err error) { c.failure.CompareAndSwap(nil, &err) }

// failed returns the first failure.
func (c *crew) failed() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// sum adds up what was heard last of all members.
func (c *crew) sum() portionStatus {
	var all portionStatus
	for _, m := range c.members {
		s := m.status.Load()
		all.Ready += s.Ready
		all.Delivered += s.Delivered
		all.Failures += s.Failures
	}
	return all
}

// tune compares the clocks, in the background.
func (c *crew) tune() {
	c.pending.Go(func() {
		err := c.each(func(m *member) (err error) {
			m.clock, err = m.compare(c)
			return err
		})
		if err != nil {
			c.fail(err)
		}
		c.tuned.Store(true)
	})
}

// start tells the agents the first instant, in the background.
func (c *crew) start(at time.Duration) {
	c.pending.Go(func() {
		err := c.each(func(m *member) error {
			return m.call(c.ctx, http.MethodPost, c.path("/start"), portionStart{At: at + m.clock.ahead}, nil)
		})
		if err != nil {
			c.fail(err)
		}
	})
}

// finish ends the agents' runs and returns what each found, in the order of the
// members; nil for one that did not say.
func (c *crew) finish(published *portionPublished) ([]*portionResult, []clock, error) {
	found, clocks := make([]*portionResult, len(c.members)), make([]clock, len(c.members))
	faults := make([]error, len(c.members))
	var all sync.WaitGroup
	for i, m := range c.members {
		all.Go(func() {
			var r portionResult
			clocks[i], faults[i] = m.compare(c)
			if faults[i] == nil {
				faults[i] = m.call(c.ctx, http.MethodPost, c.path("/finish"), published, &r)
			}
			if faults[i] == nil {
				found[i] = &r
			}
		})
	}
	all.Wait()
	return found, clocks, errors.Join(faults...)
}

// dismiss ends whatever the agents are at, and those that were started here.
func (c *crew) dismiss() {
	if c == nil {
		return
	}
	c.cancel()
	c.pending.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), finishes)
	defer cancel()
	_ = c.each(func(m *member) error {
		defer m.http.CloseIdleConnections()
		if m.child != nil {
			_ = m.child.Stop()
			return nil
		}
		return m.call(ctx, http.MethodDelete, c.path(""), nil, nil) // it may have ended
	})
}
