// Compare measures pubsubd and other servers by the same load generator, and
// writes tables of what each of them costs. See the Makefile: make peers gets the
// other servers, make compare runs all of it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Processes are started on the main thread; see ownGroup.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: to continue, add -resume", err)
	}
	fmt.Fprintln(os.Stderr, "compare:", err)
	os.Exit(1)
}

// options are the flags.
type options struct {
	programs
	out    string
	work   string
	rounds int
	only   string
	quick  bool
	resume bool
	render bool
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&o.out, "out", "", "folder for "+jsonName+" and "+markdownName+"; default: loadtest/results; of a quick run: the folder of -work")
	f.StringVar(&o.work, "work", "", "folder for finished measurements; default: .tools/compare, with -quick .tools/compare-quick")
	f.StringVar(&o.pubsubd, "pubsubd", filepath.Join("bin", "pubsubd"), "the pubsubd binary to measure, and to measure with")
	f.StringVar(&o.baseline, "baseline", "", "an older pubsubd, to show what changed")
	f.StringVar(&o.tools, "tools", ".tools", "folder where make peers puts servers")
	f.IntVar(&o.rounds, "rounds", 4, "largest number of rounds; some scenarios have fewer")
	f.StringVar(&o.only, "only", "", "names of scenarios, servers or both, with commas between; all others are skipped")
	f.BoolVar(&o.quick, "quick", false, "run a small load and one round, to see that everything works")
	f.BoolVar(&o.resume, "resume", false, "continue an interrupted comparison")
	f.BoolVar(&o.render, "render", false, "measure nothing; write the tables again")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 {
		return o, fmt.Errorf("-rounds: must be at least 1; got %d", o.rounds)
	}
	if o.quick {
		o.rounds = 1
		o.work = cmp.Or(o.work, filepath.Join(".tools", "compare-quick"))
		o.out = cmp.Or(o.out, o.work)
	}
	o.work = cmp.Or(o.work, filepath.Join(".tools", "compare"))
	o.out = cmp.Or(o.out, filepath.Join("loadtest", "results"))
	return o, nil
}

func run(ctx context.Context, args []string, w io.Writer) error {
	o, err := parse(args, w)
	if err != nil {
		return err
	}
	if o.render {
		c, err := readComparison(o.out)
		if err != nil {
			return err
		}
		return c.writeTables(o.out)
	}
	if err := limitOpenFiles(openFiles); err != nil {
		return err
	}
	return compare(ctx, o, w)
}

// compare plans, measures and writes.
func compare(ctx context.Context, o options, w io.Writer) error {
	build, err := o.version(judged)
	if err != nil {
		return fmt.Errorf("%s: %w", o.pubsubd, err)
	}
	allScenarios, allContenders := scenarios(o.quick), contenders(o.programs)
	chosen, named, err := only(o.only, allScenarios, allContenders)
	if err != nil {
		return err
	}
	c := Comparison{
		Source: source(), Quick: o.quick, Machine: describeMachine(), Versions: map[string]string{}, LeftOut: []LeftOut{},
		Scenarios: headings(allScenarios, allContenders),
	}
	c.takeVersions(o.programs, allContenders)
	present := slices.DeleteFunc(slices.Clone(named), func(one contender) bool { return c.leavesOut(one, w) })
	j, err := openJournal(o.work, build, o.resume)
	if err != nil {
		return err
	}
	err = measureAll(ctx, plan(chosen, present, o.rounds), o.pubsubd, build, j, w)
	if err := errors.Join(err, j.close()); err != nil {
		return err
	}
	c.Finished, c.Measurements = time.Now().UTC().Truncate(time.Second), j.kept
	if err := c.write(o.out); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "wrote %s and %s\n", filepath.Join(o.out, jsonName), filepath.Join(o.out, markdownName))
	return nil
}

// takeVersions notes who is there, and who is not.
func (c *Comparison) takeVersions(p programs, contenders []contender) {
	for _, one := range contenders {
		version, err := p.version(one.product)
		if err != nil {
			c.LeftOut = append(c.LeftOut, LeftOut{one.name, err.Error()})
			continue
		}
		c.Versions[one.product] = version
	}
}

func (c *Comparison) leavesOut(one contender, w io.Writer) bool {
	i := slices.IndexFunc(c.LeftOut, func(l LeftOut) bool { return l.Server == one.name })
	if i >= 0 {
		_, _ = fmt.Fprintf(w, "%s is left out: %s; see make peers\n", one.name, c.LeftOut[i].Reason)
	}
	return i >= 0
}

// measureAll takes the steps that the journal does not have yet.
func measureAll(ctx context.Context, steps []step, pubsubd, build string, j *journal, w io.Writer) error {
	steps = slices.DeleteFunc(steps, func(s step) bool { return j.has(blank(s, build)) })
	p := newPace(steps)
	for i, s := range steps {
		_, _ = fmt.Fprintf(w, "%d/%d %s, round %d, %s; about %v left\n",
			i+1, len(steps), s.scenario.name, s.round, s.contender.name, p.left().Round(time.Second))
		m, err := measure(ctx, s, pubsubd, build)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "    %s\n", m.summary())
		if err := j.add(m); err != nil {
			return err
		}
		p.done(s, time.Duration(m.ElapsedS*float64(time.Second)))
	}
	return nil
}

// summary is one line of progress.
func (m Measurement) summary() string {
	if m.failed() {
		return "failed: " + m.Error
	}
	notes := ""
	if m.generatorBound() {
		notes = ", generator bound"
	}
	return fmt.Sprintf("%.2f µs CPU a delivery, latency median %.2f ms, p99 %.2f ms, %d lost%s",
		cpuPerDelivery(m), m.Result.Latency.MedianMS, m.Result.Latency.P99MS, m.Result.Deliveries.Lost, notes)
}

// A pace knows how long steps last: as estimated, corrected by how long those
// lasted that are done.
type pace struct{ ahead, estimated, took time.Duration }

func newPace(steps []step) *pace {
	p := &pace{}
	for _, s := range steps {
		p.ahead += s.scenario.lasts
	}
	return p
}

func (p *pace) done(s step, took time.Duration) {
	p.ahead -= s.scenario.lasts
	p.estimated += s.scenario.lasts
	p.took += took
}

func (p *pace) left() time.Duration {
	if p.estimated == 0 {
		return p.ahead
	}
	return time.Duration(float64(p.ahead) * float64(p.took) / float64(p.estimated))
}

// source returns what git calls the tree, or "unknown".
func source() string {
	text, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
