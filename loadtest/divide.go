package loadtest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest/client"
)

// CrewConfig says which processes have the clients of a test. This one then
// publishes, and has none: so a test may have more clients than one process may
// have open files. The zero value is this process alone.
type CrewConfig struct {
	// Agents are the addresses (host:port) of agents that run.
	Agents []string
	// Token is theirs. Empty: they have none.
	Token string
	// Processes is how many agents to start as children, with a token of their own.
	Processes int
	// Command starts one of those; server.go says how, with --listen in place of its
	// two addresses. It finds its token in the environment, as AgentTokenVariable.
	Command []string
	// Version is this build's; that of agents must be the same.
	Version string
}

// AgentTokenVariable is where an agent's token is in the environment.
const AgentTokenVariable = "LOADTEST_AGENT_TOKEN"

// BindCrew binds what a scenario has whose clients can be divided. The token is
// not bound: a command line is for everyone to see.
func BindCrew(f *pflag.FlagSet, c *CrewConfig) {
	f.StringSliceVar(&c.Agents, "agents", nil, "distribute the clients over these agents (host:port), with the token in $"+AgentTokenVariable)
	f.IntVar(&c.Processes, "processes", c.Processes, "start this number of agents and distribute the clients over them; 0 means this process alone")
}

// size is how many agents there are to be.
func (c *CrewConfig) size() int { return len(c.Agents) + c.Processes }

// checkCrew is for scenarios that can be divided: into whole clients a topic.
func (c *Common) checkCrew(perTopic int) error {
	n := c.Crew.size()
	doubled := slices.Sorted(slices.Values(c.Crew.Agents))
	return errors.Join(
		unless(c.Crew.Processes >= 0, "--processes: must not be negative; got %d", c.Crew.Processes),
		unless(c.Crew.Processes == 0 || len(c.Crew.Agents) == 0, "--processes: does not work with --agents: use one of them"),
		unless(len(slices.Compact(doubled)) == len(c.Crew.Agents), "--agents: names an agent twice"),
		unless(n <= max(perTopic, 0) || n == 0, "--agents: %d agents need at least %d clients on each topic; got %d", n, n, perTopic),
		unless(n == 0 || c.Dialect == client.Pubsubd, "--agents: works only with --dialect pubsubd, whose positions tell messages of several processes apart"),
		unless(n == 0 || c.Subscriptions == 1, "--agents: does not work with --subscriptions above 1"),
	)
}

// checkAlone is for scenarios that cannot be divided.
func (c *Common) checkAlone(why string) error {
	return unless(c.Crew.size() == 0, "--agents: %s", why)
}

// A divisible scenario can be run by several processes: its schedule does not
// depend on what was delivered.
type divisible interface {
	scenario
	// describe puts the scenario into an order.
	describe(o *portionOrder)
	// absorb takes what the clients of one agent have.
	absorb(bursts []burstPart) error
}

// split divides n among so many, as evenly as it goes.
func split(n, among int) []int {
	all := make([]int, among)
	for i := range all {
		all[i] = n / among
		if i < n%among {
			all[i]++
		}
	}
	return all
}

// A divided scenario is one agent's portion: all of the schedule, and some of the
// clients.
type divided struct {
	scenario
	perTopic int
}

func (d divided) shape() shape {
	s := d.scenario.shape()
	s.perTopic = d.perTopic
	return s
}

// scenario returns what is to be run.
func (o *portionOrder) scenario() (divided, Common, error) {
	c := defaultCommon()
	c.Target, c.Transport, c.Format, c.Mode, c.Stateless = o.Target, o.Transport, o.Format, o.Mode, o.Stateless
	c.Connecting = o.Connecting
	sc, err := o.whole(c)
	if err != nil {
		return divided{}, c, err
	}
	if most := sc.shape().perTopic; o.PerTopic < 1 || o.PerTopic > most {
		return divided{}, c, fmt.Errorf("%d clients per topic are not a portion of %d", o.PerTopic, most)
	}
	return divided{sc, o.PerTopic}, c, nil
}

// whole returns the scenario as all agents together have it.
func (o *portionOrder) whole(c Common) (scenario, error) {
	switch {
	case o.Broadcast != nil && o.Steady == nil:
		cfg := o.Broadcast.config(c, len(o.Topics))
		if err := cfg.Check(); err != nil {
			return nil, err
		}
		return newBroadcast(cfg), nil
	case o.Steady != nil && o.Broadcast == nil:
		cfg := o.Steady.config(c, len(o.Topics))
		if err := cfg.Check(); err != nil {
			return nil, err
		}
		return newSteady(cfg), nil
	}
	return nil, errors.New("the order is for neither a broadcast nor a steady run")
}

func (b *broadcastOrder) config(c Common, topics int) BroadcastConfig {
	return BroadcastConfig{
		Common: c, Clients: b.Clients, Topics: topics, Period: b.Period, Bursts: b.Bursts, Warmup: b.Warmup, MessageBytes: b.MessageBytes,
	}
}

func (s *steadyOrder) config(c Common, topics int) SteadyConfig {
	return SteadyConfig{Common: c, Topics: topics, ClientsPerTopic: s.PerTopic, Period: s.Period, Warmup: s.Warmup, Duration: s.Duration}
}

func (b *broadcast) describe(o *portionOrder) {
	c := &b.cfg
	o.Broadcast = &broadcastOrder{Clients: c.Clients, Period: c.Period, Bursts: c.Bursts, Warmup: c.Warmup, MessageBytes: c.MessageBytes}
}

// absorb makes a burst as late as the last of all agents has it.
func (b *broadcast) absorb(parts []burstPart) error {
	if len(parts) != len(b.bursts) {
		return fmt.Errorf("sent %d bursts instead of %d", len(parts), len(b.bursts))
	}
	for n, part := range parts {
		burst := &b.bursts[n]
		burst.delivered += part.Delivered
		burst.last = max(burst.last, b.schedule.instant(n)+part.Last)
	}
	return nil
}

// parts are what this process' clients have.
func (b *broadcast) parts() []burstPart {
	parts := make([]burstPart, len(b.bursts))
	for n, burst := range b.bursts {
		if burst.delivered > 0 {
			parts[n] = burstPart{Delivered: burst.delivered, Last: burst.last - b.schedule.instant(n)}
		}
	}
	return parts
}

func (s *steady) describe(o *portionOrder) {
	c := &s.cfg
	o.Steady = &steadyOrder{PerTopic: c.ClientsPerTopic, Period: c.Period, Warmup: c.Warmup, Duration: c.Duration}
}

func (s *steady) absorb([]burstPart) error { return nil }

// giveUpAfter is how long an agent goes on without being asked anything.
const giveUpAfter = 30 * time.Second
