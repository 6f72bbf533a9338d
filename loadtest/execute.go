package loadtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/child"
	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// newLoop is replaced by tests, to run everything over the portable loop too.
type newLoop func(eventloop.Config) (eventloop.Loop, error)

// execute is a whole test: limits, server, run, result.
func execute(ctx context.Context, cfg Common, sc scenario, p Progress) (Result, error) {
	return executeOn(ctx, eventloop.New, cfg, sc, p)
}

func executeOn(ctx context.Context, loop newLoop, cfg Common, sc scenario, p Progress) (r Result, err error) {
	if p == nil {
		p = silent{}
	}
	sh := sc.shape()
	if err := checkOpenFiles(cfg.connections(sh)); err != nil {
		return Result{}, err
	}
	if cfg.ServerPID > 0 && !processKnown(cfg.ServerPID) {
		return Result{}, fmt.Errorf("--server-pid: the CPU time of a process %d cannot be read", cfg.ServerPID)
	}
	crew, err := gatherCrew(ctx, &cfg.Crew)
	if err != nil {
		return Result{}, err
	}
	defer crew.dismiss()
	crew.introduce(p)
	started := cfg.Target == ""
	if started {
		c, err := child.Server(ctx, cfg.ServerCommand)
		if err != nil {
			return Result{}, err
		}
		defer func() { _ = c.Stop() }()
		defer func() { err = r.alsoFailed(err, c.Ended()) }()
		cfg.useChild(c)
		p.Notice(fmt.Sprintf("started a server as process %d at %s (admin %s); it is stopped after the test",
			cfg.ServerPID, cfg.Target, cfg.Admin))
	}
	r, err = measure(ctx, loop, cfg, sc, crew, p)
	if r.Scenario != "" {
		r.Parameters.StartedServer = started
	}
	return r, err
}

// connections returns how many this process has, or a server that it starts, which
// may have as many files open.
func (c *Common) connections(s shape) int {
	_, most := c.publishers(s)
	if c.Crew.size() > 0 && c.Target != "" {
		return most + c.Crew.size()
	}
	return s.clients() + most
}

func (c *Common) useChild(server *child.Child) {
	at := server.Addresses()
	c.Target = "http://" + at.Public
	c.ServerPID = server.PID()
	if at.Admin != "" {
		c.Admin = "http://" + at.Admin
	}
}

// measure runs the scenario against cfg.Target.
func measure(ctx context.Context, newLoop newLoop, cfg Common, sc scenario, crew *crew, p Progress) (Result, error) {
	address, authority, err := resolve(ctx, cfg.Target)
	if err != nil {
		return Result{}, err
	}
	loop, err := newLoop(eventloop.Config{Target: address})
	if err != nil {
		return Result{}, err
	}
	defer loop.Close()
	r := newRun(ctx, cfg, sc, loop, authority)
	r.sampler.take(ctx, beforeClients)
	if err := r.sampler.failure; err != nil {
		return Result{}, err
	}
	if crew != nil {
		r.crew = crew
		if err := crew.order(ctx, r); err != nil {
			return Result{}, err
		}
	}
	r.reporter = startReporter(p)
	started := time.Now()
	err = r.endEarly(errors.Join(loop.Run(ctx, r), r.fatal))
	r.reporter.stop()
	r.sampler.pending.Wait()
	if err != nil && r.phase < running {
		return Result{}, err
	}
	if crew != nil {
		if failure := crew.reap(r, err != nil); failure != nil {
			r.failures.add("agents", failure)
		}
	}
	if failure := r.sampler.failure; err == nil && failure != nil {
		r.failures.add("server's metrics", failure)
	}
	return r.result(started), err
}

// endEarly makes err, if any, the reason for which the test ended before its time.
func (r *run) endEarly(err error) error {
	switch {
	case err == nil:
		return nil
	case r.ctx.Err() != nil:
		err = fmt.Errorf("interrupted: %w", err)
	}
	r.failures.add(endedEarly, err)
	if r.phase == running {
		r.watch.cut(r.loop.Now())
		r.watch.delivered += r.delivered()
	}
	return err
}

// resolve returns the address behind a base URL, and what to call it in requests.
func resolve(ctx context.Context, target string) (*net.TCPAddr, string, error) {
	u, err := parseTarget(target)
	if err != nil {
		return nil, "", err
	}
	n, _ := portOf(u) // parseTarget has seen it
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, u.Hostname())
	if err != nil {
		return nil, "", fmt.Errorf("--target %q: %w", target, err)
	}
	return &net.TCPAddr{IP: addresses[0].IP, Port: int(n), Zone: addresses[0].Zone}, u.Host, nil
}

// parseTarget reads a base URL or a host:port.
func parseTarget(target string) (*url.URL, error) {
	u, err := url.Parse(WithScheme(target))
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("--target %q: write host:port or http://host:port (https cannot be measured yet)", target)
	}
	if _, err := portOf(u); err != nil {
		return nil, fmt.Errorf("--target %q: port: %w", target, err)
	}
	return u, nil
}

func portOf(u *url.URL) (uint64, error) { return strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16) }

// topicNames returns a test's topics. Part of each is random, so that neither
// another test nor an earlier one is on them.
func topicNames(d client.Dialect, n int) []string {
	tag := rand.Text()[:8]
	names := make([]string, n)
	for i := range names {
		names[i] = d.TopicName(tag, i)
	}
	return names
}

// result gathers everything and judges it.
func (r *run) result(started time.Time) Result {
	s := r.shape
	first, most := r.cfg.publishers(s)
	result := Result{
		Scenario:    s.name,
		Started:     started,
		Environment: Here(),
		Parameters: Parameters{
			Target: r.cfg.Target, Dialect: r.cfg.Dialect, Mode: r.cfg.modeName(), Stateless: r.cfg.Stateless,
			Format: r.cfg.formatName(), OnSocket: r.cfg.Voices, Subscriptions: r.cfg.Subscriptions,
			Topics: s.topics, PerTopic: s.perTopic, Clients: s.clients(),
			Publishers: first, MaxPublishers: most,
			DrainMS: stats.Milliseconds(r.cfg.Drain), MaxP99MS: stats.Milliseconds(r.cfg.MaxP99), MaxLoss: r.cfg.MaxLoss,
		},
		Latency:       r.latency.Summary(),
		LatencySeries: r.series.Points(),
		Deliveries:    r.verifier.result(),
		Publishes: Publishes{
			Sent: r.pool.published, Refused: r.refused, Waited: r.pool.waited, IdleClosed: r.pool.idleClosed, Answer: r.pool.answer.Summary(),
		},
		Generator: r.watch.generator(),
		Agents:    r.agents,
		Errors:    r.failures.list(),
	}
	result.addAgents()
	result.Generator.ScheduleLag = r.pool.lag.Summary()
	result.Generator.LagThresholdMS = stats.Milliseconds(lagThreshold(s.period, r.latency.Quantile(0.99)))
	result.Server = r.sampler.server(s.clients(), result.Generator, r.watch.began.at)
	r.scenario.report(&result)
	result.judge()
	return result
}

// forms prepares publishes to each topic.
func forms(d client.Dialect, topics []string) []client.PublishForm {
	made := make([]client.PublishForm, len(topics))
	for i, topic := range topics {
		made[i] = d.PublishForm(topic)
	}
	return made
}
