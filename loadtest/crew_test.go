package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const agentToken = "s3cret"

// startAgents serves so many agents in this process, and returns their addresses.
func startAgents(t *testing.T, n int) ([]string, []*httptest.Server) {
	t.Helper()
	addresses, servers := make([]string, n), make([]*httptest.Server, n)
	for i := range n {
		a := NewAgent(agentToken, "v1")
		servers[i] = httptest.NewServer(a)
		t.Cleanup(func() { servers[i].Close(); a.Close() })
		u, err := url.Parse(servers[i].URL)
		require.NoError(t, err)
		addresses[i] = u.Host
	}
	return addresses, servers
}

func withAgents(t *testing.T, c *Common, n int) []*httptest.Server {
	t.Helper()
	addresses, servers := startAgents(t, n)
	c.Crew = CrewConfig{Agents: addresses, Token: agentToken, Version: "v1"}
	return servers
}

// wantEverything is wantClean but for the server's figures, which are those of one process.
func wantEverything(t *testing.T, r Result, deliveries int64) {
	t.Helper()
	require.Empty(t, r.Errors)
	require.Equal(t, Deliveries{Expected: deliveries, Delivered: deliveries, Gaps: map[string]int64{}}, r.Deliveries)
	require.Empty(t, r.Verdict.Failed)
	require.Positive(t, r.Latency.MeanMS)
	require.Positive(t, r.Publishes.Answer.Count)
	require.Positive(t, r.Server.BytesIn)
}

// Several processes find what one would.
func TestBroadcastOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{}))
	c.Clients, c.Topics = 14, 2
	withAgents(t, &c.Common, 3)
	r := runBroadcast(t, c)
	wantEverything(t, r, 6*14)
	require.EqualValues(t, 5*14, r.Latency.Count, "warm-up is not recorded")
	wantWithin(t, r, 1, 6*14) // an agent that is late for the window finds less in it
	wantBursts(t, r, 0)
	require.InDelta(t, 4*burstPeriod.Seconds(), r.Generator.WindowS, inVain.Seconds(), "from the first instant to the last delivery")
	clients, latencies := []int{}, int64(0)
	for _, a := range r.Agents {
		clients = append(clients, a.Clients)
		latencies += a.Latency.Count
		require.Positive(t, a.Generator.BytesIn)
		require.Positive(t, a.PID)
		require.False(t, a.Started)
		require.Less(t, a.Clock.UncertaintyMS, 1000.0)
	}
	require.Equal(t, []int{6, 4, 4}, clients)
	require.Equal(t, r.Latency.Count, latencies)
	require.LessOrEqual(t, r.Latency.MaxMS, r.Bursts.Completion.MaxMS+0.01, "both are of the last delivery")
}

// Agents' clients are on the transport, and in the format, that were asked for.
func TestSeveralProcessesOverEveryTransport(t *testing.T) {
	t.Parallel()
	for name, set := range pushedWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := startFake(t, faults{})
			c := smallBroadcast(served)
			set(&c.Common)
			withAgents(t, &c.Common, 2)
			wantEverything(t, runBroadcast(t, c), 6*5)
			require.EqualValues(t, 5, served.pushed.Load())
			served.mu.Lock()
			defer served.mu.Unlock()
			require.Equal(t, c.Format == client.CBOR, served.binaries == 5)
		})
	}
}

func TestSteadyOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	c := smallSteady(startFake(t, faults{}))
	c.Stateless = true
	withAgents(t, &c.Common, 2)
	r, err := RunSteady(t.Context(), c, nil)
	require.NoError(t, err)
	wantEverything(t, r, 6*6*2)
	require.EqualValues(t, 6*4*2, r.Latency.Count)
	require.NotEmpty(t, r.LatencySeries)
}

// Agents serve one test after the other.
func TestAgentsServeOneTestAfterTheOther(t *testing.T) {
	t.Parallel()
	addresses, _ := startAgents(t, 2)
	for range 2 {
		c := smallBroadcast(startFake(t, faults{}))
		c.Bursts = 1
		c.Crew = CrewConfig{Agents: addresses, Token: agentToken, Version: "v1"}
		require.Zero(t, runBroadcast(t, c).Deliveries.Lost)
	}
}

// What the server does wrong to one client of one process is in the account.
func TestFaultsAreFoundInEveryProcess(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{lines: func(n int, m *wire.Message, line string) []string {
		switch {
		case n == 0 && m.Position.Offset == 2:
			return nil // lost
		case n == 1 && m.Position.Offset == 3:
			return []string{line, line}
		case n == 2 && m.Position.Offset == 4:
			return []string{strings.Replace(line, "@k3:4", "@k3:5", 1)} // another offset than the publish was told
		}
		return []string{line}
	}})
	c := faultyBroadcast(s)
	withAgents(t, &c.Common, 2)
	r := runBroadcast(t, c)
	require.Equal(t, int64(6*5), r.Deliveries.Expected)
	require.GreaterOrEqual(t, r.Deliveries.Lost, int64(1))
	require.GreaterOrEqual(t, r.Deliveries.Duplicates, int64(1))
	require.GreaterOrEqual(t, r.Deliveries.Disordered, int64(1))
	require.Equal(t, r.Deliveries.Expected, r.Deliveries.Delivered+r.Deliveries.Lost)
	require.Positive(t, r.Bursts.Incomplete)
	require.Equal(t, ExitMissed, ExitCode(r))
	require.Empty(t, r.Errors)
}

func TestARefusedPublishIsExpectedInNoProcess(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{refuse: func(n int) bool { return n == 3 }}))
	withAgents(t, &c.Common, 2)
	r := runBroadcast(t, c)
	require.Equal(t, Deliveries{Expected: 5 * 5, Delivered: 5 * 5, Gaps: map[string]int64{}}, r.Deliveries)
	require.Len(t, r.Errors, 1)
	require.Equal(t, "publish refused", r.Errors[0].Kind)
}

// A connection that a server closes is told by the agent whose it was.
func TestAClosedConnectionIsNamedWithItsAgent(t *testing.T) {
	t.Parallel()
	c := faultyBroadcast(startFake(t, faults{hangUp: func(n, poll int) bool { return n == 2 && poll == 1 }}))
	c.Mode = client.Single // each poll acks one message
	withAgents(t, &c.Common, 2)
	r := runBroadcast(t, c)
	require.Len(t, r.Errors, 1)
	require.Equal(t, "client's connection", r.Errors[0].Kind)
	require.Regexp(t, `^agent 127\.0\.0\.1:\d+: `, r.Errors[0].First)
	require.Positive(t, r.Deliveries.Lost)
}

// An agent that dies fails the test, and says who.
func TestAnAgentThatDiesFailsTheTest(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{}))
	c.Bursts = 10_000
	servers := withAgents(t, &c.Common, 2)
	r, err := RunBroadcast(t.Context(), c, progressFunc(func(s Status) {
		if s.Phase == "broadcast" && s.Done > 2 {
			servers[1].Listener.Close() // first, and again: nobody is to come in between
			servers[1].CloseClientConnections()
		}
	}))
	require.ErrorContains(t, err, "agent "+c.Crew.Agents[1]+" cannot be reached")
	require.NotContains(t, err.Error(), agentToken)
	require.True(t, r.EndedEarly())
	require.Equal(t, ExitFailed, ExitCode(r))
	require.Len(t, r.Agents, 1, "the other has told what it has")
}

// An interrupted test leaves agents that can be used again.
func TestAnInterruptedTestLeavesItsAgentsFree(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := smallBroadcast(startFake(t, faults{}))
	c.Bursts = 10_000
	withAgents(t, &c.Common, 2)
	r, err := RunBroadcast(ctx, c, progressFunc(func(s Status) {
		if s.Phase == "broadcast" && s.Deliveries > 0 {
			cancel()
		}
	}))
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, r.EndedEarly())
	require.Len(t, r.Agents, 2)
	require.Positive(t, r.Deliveries.Delivered)
	c.Bursts = 1
	require.Zero(t, runBroadcast(t, c).Deliveries.Lost)
}

func TestClientsThatCannotConnectAreToldByTheirAgent(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{}))
	c.Target, c.Admin = nobody, ""
	withAgents(t, &c.Common, 2)
	_, err := RunBroadcast(t.Context(), c, nil)
	require.ErrorContains(t, err, "connection refused")
	require.Regexp(t, `agent 127\.0\.0\.1:\d+: client \d of \d`, err.Error())
}

// Agents that cannot be worked with are told apart, before anything is measured.
func TestAgentsThatCannotBeWorkedWith(t *testing.T) {
	t.Parallel()
	foreign := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(foreign.Close)
	newer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(agentHello{Control: controlVersion + 1, Version: "v1"})
	}))
	t.Cleanup(newer.Close)
	fake := startFake(t, faults{})
	for name, c := range map[string]struct {
		set  func(*CrewConfig)
		want string
	}{
		"wrong token":   {func(c *CrewConfig) { c.Token = "guess" }, "wrong token: set the same $LOADTEST_AGENT_TOKEN on both sides"},
		"no token":      {func(c *CrewConfig) { c.Token = "" }, "wrong token"},
		"another build": {func(c *CrewConfig) { c.Version = "v2" }, `is build "v1"; this process is build "v2": use one build for both`},
		"no agent":      {func(c *CrewConfig) { c.Agents[1] = strings.TrimPrefix(foreign.URL, "http://") }, "this is no agent of a load test: it answered 404"},
		"a newer one":   {func(c *CrewConfig) { c.Agents[1] = strings.TrimPrefix(newer.URL, "http://") }, "has version 2 of the control protocol; this process has version 1"},
		"nobody":        {func(c *CrewConfig) { c.Agents[1] = "127.0.0.1:1" }, "agent 127.0.0.1:1 cannot be reached"},
		"no port":       {func(c *CrewConfig) { c.Agents[1] = "localhost" }, `--agents: "localhost": write host:port`},
	} {
		t.Run(name, func(t *testing.T) {
			b := smallBroadcast(fake)
			withAgents(t, &b.Common, 2)
			c.set(&b.Crew)
			_, err := RunBroadcast(t.Context(), b, nil)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), agentToken)
		})
	}
}

func TestWhatCannotBeDivided(t *testing.T) {
	t.Parallel()
	crew := CrewConfig{Agents: []string{"a:1", "b:1", "c:1"}}
	b, s, c := DefaultBroadcast(), DefaultSteady(), DefaultCollab()
	b.Target, s.Target, c.Target = "http://h", "http://h", "http://h"
	b.Crew, s.Crew, c.Crew = crew, crew, crew
	require.NoError(t, b.Check())
	require.ErrorContains(t, s.Check(), "--agents: 3 agents need at least 3 clients on each topic; got 2")
	require.ErrorContains(t, c.Check(), "--agents: rounds do not work with agents")
	search := SearchConfig{Broadcast: b, Periods: []time.Duration{time.Second}}
	require.ErrorContains(t, search.Check(), "--agents: a search does not work with agents")
	for want, set := range map[string]func(*BroadcastConfig){
		"--processes: does not work with --agents":             func(b *BroadcastConfig) { b.Crew.Processes = 1 },
		"--processes: must not be negative; got -1":            func(b *BroadcastConfig) { b.Crew = CrewConfig{Processes: -1} },
		"--agents: names an agent twice":                       func(b *BroadcastConfig) { b.Crew.Agents = []string{"a:1", "a:1"} },
		"--agents: works only with --dialect pubsubd":          func(b *BroadcastConfig) { b.Dialect = "floor" },
		"--agents: does not work with --subscriptions above 1": func(b *BroadcastConfig) { b.Subscriptions = 2 },
	} {
		broken := b
		set(&broken)
		require.ErrorContains(t, broken.Check(), want)
	}
}

func TestSplit(t *testing.T) {
	require.Equal(t, []int{4, 3, 3}, split(10, 3))
	require.Equal(t, []int{1, 1}, split(2, 2))
}

// The verdict is about every process, and about how well its clock is known.
func TestEveryAgentIsJudged(t *testing.T) {
	good := AgentResult{Address: "a:1", Generator: Generator{Thread: Thread{Known: true, Busy: 0.5}}, Clock: AgentClock{UncertaintyMS: 0.1}}
	busy, blurred, lateBurst := good, good, good
	busy.Address, busy.Generator.Thread.Waited = "b:1", 0.45
	blurred.Address, blurred.Clock.UncertaintyMS = "c:1", 11
	lateBurst.Address, lateBurst.Generator.Thread.BusyInBursts = "d:1", 0.95
	r := Result{Agents: []AgentResult{good, busy, blurred, lateBurst}, Generator: Generator{LagThresholdMS: 10}, Deliveries: Deliveries{Expected: 1}}
	r.judge()
	require.Equal(t, []string{
		"the thread of agent b:1 was 50 % busy and 45 % waiting for a core",
		"the clock of agent c:1 is known only to ± 11.000 ms, above 10.000 ms",
	}, r.Verdict.GeneratorBound)
	require.Equal(t, ExitGeneratorBound, r.Verdict.ExitCode)
	r.Bursts = &Bursts{Total: 2, InTime: 1}
	r.judge()
	require.Contains(t, r.Verdict.GeneratorBound, "bursts were late, and during bursts the thread of agent d:1 was 95 % busy and 0 % waiting for a core")
}

// A crew's failure is the first, whoever fails after.
func TestTheFirstFailureIsKept(t *testing.T) {
	c := &crew{}
	require.NoError(t, c.failed())
	c.fail(errors.New("first"))
	c.fail(errors.New("second"))
	require.EqualError(t, c.failed(), "first")
}

// One process alone cannot know that its client sees other positions than the
// publishes were told: the account tells it.
func TestPositionsAreComparedOverProcesses(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{lines: func(n int, m *wire.Message, line string) []string {
		if n == 1 {
			shifted := m.Position
			shifted.Offset++
			line = strings.Replace(line, m.Position.String(), shifted.String(), 1)
		}
		return []string{line}
	}}))
	c.Clients, c.MaxPublishers, c.Stateless = 2, 1, false
	withAgents(t, &c.Common, 2)
	r := runBroadcast(t, c)
	require.EqualValues(t, 6, r.Deliveries.Disordered)
	require.Zero(t, r.Deliveries.Lost)
}
