package loadtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// reap merges what the agents found into the run. Of a test that ended early it
// takes what it can get.
func (c *crew) reap(r *run, early bool) error {
	found, clocks, err := c.finish(r.verifier.publishedNow())
	if err != nil && !early {
		err = fmt.Errorf("at the end of the test: %w", err)
	}
	var expected int64
	for i, part := range found {
		if part == nil {
			continue
		}
		m := c.members[i]
		expected += part.Deliveries.Expected
		if fault := r.absorb(m, part, clocks[i]); fault != nil {
			err = errors.Join(err, fmt.Errorf("agent %s: %w", m.address, fault))
		}
	}
	if err == nil && !early && expected != r.verifier.expected {
		err = fmt.Errorf("the agents expected %d deliveries instead of %d", expected, r.verifier.expected)
	}
	if early {
		return nil // it has failed for another reason
	}
	return err
}

// absorb adds what one agent found.
func (r *run) absorb(m *member, part *portionResult, after clock) error {
	if part.Latency == nil || part.Series == nil {
		return errors.New("sent no latencies")
	}
	r.latency.Merge(part.Latency)
	r.series.Merge(part.Series)
	r.verifier.absorb(part.Deliveries)
	for _, f := range part.Errors {
		r.failures.merge(Failure{Kind: f.Kind, Count: f.Count, First: "agent " + m.address + ": " + f.First})
	}
	r.agents = append(r.agents, AgentResult{
		Address: m.address, PID: m.hello.PID, Started: m.child != nil, Clients: m.clients,
		Latency: part.Latency.Summary(), Generator: part.Generator, Clock: m.clock.result(after),
	})
	return r.scenario.(divisible).absorb(part.Bursts)
}

// result says how well a clock was known over a test: drift is what the second
// comparison found otherwise.
func (c clock) result(after clock) AgentClock {
	drift := (after.ahead - c.ahead).Abs()
	uncertainty := max(c.uncertainty, after.uncertainty) + drift
	return AgentClock{
		Shared:        c.shared && after.shared,
		UncertaintyMS: stats.Milliseconds(max(uncertainty, time.Microsecond)), // nothing is known better than it is said
		DriftMS:       stats.Milliseconds(drift),
	}
}
