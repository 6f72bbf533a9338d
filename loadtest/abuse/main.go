// Abuse attacks a daemon in every way that a client can, one after the other, while
// well-behaved clients on other addresses get a message each second, and says what
// they noticed. What attackers cost the machine by themselves is seen when they
// attack a sink instead, just before. See the Makefile: make abuse.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Exit codes, as those of pubsubd loadtest.
const (
	exitFailed = 1
	exitUsage  = 2
	exitMissed = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := start(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// start is the program, in whichever role.
func start(ctx context.Context, args []string, in io.Reader, out, log io.Writer) int {
	if name := os.Getenv(roleVariable); name != "" {
		if err := play(ctx, name, in, out); err != nil {
			_, _ = fmt.Fprintf(log, "abuse: %s: %v\n", name, err)
			return exitFailed
		}
		return 0
	}
	o, err := parse(args, log)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintln(log, "abuse:", err)
		return exitUsage
	}
	r, err := conduct(ctx, o, log)
	if err == nil {
		err = r.write(o.out)
	}
	if err != nil {
		_, _ = fmt.Fprintln(log, "abuse:", err)
		return exitFailed
	}
	_, _ = fmt.Fprint(out, r.report())
	if !r.passed() {
		return exitMissed
	}
	return 0
}

// options are the flags.
type options struct {
	pubsubd     string
	out         string
	count       int // victims
	lasts       time.Duration
	settle      time.Duration
	memoryLimit int64
	quick       bool
	attacks     []attack
	settings    []byte   // the daemon's file
	serve       []string // more flags of the daemon
}

// Where results go: those of a quick run must not take the place of real ones.
var (
	keptResults  = filepath.Join("loadtest", "results")
	quickResults = filepath.Join("bin", "abuse-quick")
)

func parse(args []string, w io.Writer) (options, error) {
	var o options
	var only, file, serve string
	f := flag.NewFlagSet("abuse", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&o.pubsubd, "pubsubd", filepath.Join("bin", "pubsubd"), "the daemon to attack")
	f.StringVar(&o.out, "out", "", "folder for "+jsonName+" and "+textName+" (default "+keptResults+"; of a quick run: "+quickResults+")")
	f.StringVar(&only, "only", "", "names of attacks, with commas between; all others are skipped")
	f.IntVar(&o.count, "victims", 2000, "well-behaved clients")
	f.DurationVar(&o.lasts, "lasts", 15*time.Second, "duration of each attack, on the sink and on the daemon; whole seconds")
	f.DurationVar(&o.settle, "settle", 2500*time.Millisecond, "pause before each attack")
	f.Int64Var(&o.memoryLimit, "memory-limit", 512<<20, "the daemon's GOMEMLIMIT, in bytes")
	f.StringVar(&file, "config", "", "the daemon's settings (default: the built-in loadtest/abuse/limits.yaml)")
	f.StringVar(&serve, "serve", "--limits-connections=10000 --http2-cleartext", "more flags of the daemon, with spaces between")
	f.BoolVar(&o.quick, "quick", false, "run short attacks at a tenth of the load, to see that everything works")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	o.serve = strings.Fields(serve)
	o.hurry(f)
	return o, errors.Join(o.choose(only), o.read(file), o.check())
}

// hurry gives a quick run what was not said otherwise.
func (o *options) hurry(f *flag.FlagSet) {
	said := map[string]bool{}
	f.Visit(func(f *flag.Flag) { said[f.Name] = true })
	if o.out == "" {
		o.out = keptResults
		if o.quick {
			o.out = quickResults
		}
	}
	if !o.quick {
		return
	}
	if !said["lasts"] {
		o.lasts = 3 * time.Second
	}
	if !said["settle"] {
		o.settle = 500 * time.Millisecond
	}
	if !said["victims"] {
		o.count = 50
	}
}

// choose takes the attacks of that list, or all.
func (o *options) choose(only string) error {
	o.attacks = attacks()
	if only == "" {
		return nil
	}
	o.attacks = nil
	for name := range strings.SplitSeq(only, ",") {
		a, ok := attackNamed(name, false)
		if !ok {
			return fmt.Errorf("-only: %w", unknownAttack(name))
		}
		o.attacks = append(o.attacks, a)
	}
	return nil
}

func (o *options) read(file string) (err error) {
	if o.settings = limits; file == "" {
		return nil
	}
	if o.settings, err = os.ReadFile(file); err != nil {
		return fmt.Errorf("-config: %w", err)
	}
	return nil
}

// mostVictims leave a process room for other files than connections.
const mostVictims = 15_000

func (o *options) check() error {
	switch {
	case runtime.GOOS != "linux":
		return errors.New("this test needs Linux: victims and attackers have separate addresses in 127.0.0.0/8")
	case o.count < 1 || o.count > mostVictims:
		return fmt.Errorf("-victims: must be 1 to %d; got %d", mostVictims, o.count)
	case o.lasts < period || o.lasts%period != 0:
		return fmt.Errorf("-lasts: must be whole seconds; got %v", o.lasts)
	case o.settle < 0:
		return fmt.Errorf("-settle: must not be negative; got %v", o.settle)
	case o.memoryLimit < 1:
		return fmt.Errorf("-memory-limit: must be at least 1; got %d", o.memoryLimit)
	}
	return nil
}
