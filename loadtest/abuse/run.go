package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A conductor has the daemon, and a process for each role.
type conductor struct {
	options
	log       io.Writer
	daemon    *daemon
	victims   *role
	attackers *role
	sink      *role
	sinkAt    string
}

// conduct makes the whole run.
func conduct(ctx context.Context, o options, log io.Writer) (r *Result, err error) {
	c := &conductor{options: o, log: log}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	if r, err = c.describe(ctx); err != nil {
		return nil, err
	}
	for i, a := range o.attacks {
		_, _ = fmt.Fprintf(log, "%d/%d %s: %s\n", i+1, len(o.attacks), a.name, a.what)
		attacked, err := c.attack(ctx, a)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		r.Attacks = append(r.Attacks, attacked)
		_, _ = fmt.Fprintf(log, "    %s\n", attacked.summary())
	}
	live, sink := r.overallLatency()
	r.OverallRatio = ratio(live, sink)
	r.Finished = time.Now().UTC().Truncate(time.Second)
	r.Verdicts = judge(r)
	return r, nil
}

// summary is one line of progress.
func (a *Attacked) summary() string {
	faults := a.Live.Victims.faults()
	if faults == "" {
		faults = "nothing lost"
	}
	return fmt.Sprintf("p99 %.1f ms, against the sink %.1f ms; %.0f operations/s, against the sink %.0f; %s",
		a.Live.Victims.Latency.Summary().P99MS, a.Sink.Victims.Latency.Summary().P99MS, a.Live.Raid.PerSecond, a.Sink.Raid.PerSecond, faults)
}

func (c *conductor) start(ctx context.Context) (err error) {
	if c.daemon, err = startDaemon(ctx, c.options); err != nil {
		return err
	}
	for name, r := range map[string]**role{theVictims: &c.victims, theAttackers: &c.attackers, theSink: &c.sink} {
		if *r, err = startRole(ctx, name); err != nil {
			return err
		}
	}
	if err := c.sink.do(order{Do: "listen"}, &c.sinkAt); err != nil {
		return err
	}
	return c.victims.do(order{Do: "open", Target: c.daemon.Addresses().Public, Count: c.count}, nil)
}

func (c *conductor) stop() error {
	for _, r := range []*role{c.attackers, c.victims, c.sink} {
		if r != nil {
			r.stop()
		}
	}
	if c.daemon != nil && c.daemon.Child != nil {
		return c.daemon.stop()
	}
	return nil
}

func (c *conductor) describe(ctx context.Context) (*Result, error) {
	m, err := loadtest.Scrape(ctx, "http://"+c.daemon.Addresses().Admin)
	if err != nil {
		return nil, err
	}
	r := &Result{
		Cores: runtime.NumCPU(), Quick: c.quick, Victims: c.count, AttackS: c.lasts.Seconds(),
		BudgetBytes: int64(m["pubsubd_memory_budget_bytes"]), MemoryLimit: c.memoryLimit, Attacks: []Attacked{},
	}
	for key := range m {
		if labels, ok := strings.CutPrefix(key, "pubsubd_build_info"); ok {
			r.Build = label(labels)
		}
	}
	return r, nil
}

// attack makes one attack, on the sink and then on the daemon, each after a rest in
// which what came before ends.
func (c *conductor) attack(ctx context.Context, a attack) (attacked Attacked, err error) {
	attacked.Name, attacked.What = a.name, a.what
	if attacked.Sink, err = c.phase(ctx, a, c.sinkAt); err != nil {
		return attacked, err
	}
	attacked.Live, err = c.phase(ctx, a, c.daemon.Addresses().Public)
	return attacked, err
}

// phase attacks the target, and measures the victims meanwhile.
func (c *conductor) phase(ctx context.Context, a attack, target string) (p Phase, err error) {
	if !rest(ctx, c.settle) {
		return p, ctx.Err()
	}
	w, err := newWatch(ctx, c.daemon.Addresses().Admin)
	if err != nil {
		return p, errors.Join(err, c.daemon.Ended())
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.run(watching)
	}()
	attacked := make(chan error, 1)
	go func() {
		attacked <- c.attackers.do(order{Do: "attack", Attack: a.name, Small: c.quick, Target: target, Lasts: c.lasts}, &p.Raid)
	}()
	err = c.victims.do(order{Do: "measure", Lasts: c.lasts}, &p.Victims)
	err = errors.Join(err, <-attacked)
	stop()
	<-watched
	if err != nil {
		return p, errors.Join(err, c.daemon.Ended())
	}
	p.Server, err = w.result(ctx)
	return p, errors.Join(err, c.daemon.Ended())
}
