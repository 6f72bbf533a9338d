package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/report"
	"github.com/pubsubd/pubsubd/loadtest/scenarios"
)

// A suiteTest is a preset or a scenario file on the command line.
type suiteTest struct {
	preset, scenario string
	svg, html        string
	where            loadtest.Common // the server, for all runs
	changed          *pflag.FlagSet  // what is not to be as the file says
	out              output
}

// bind adds the flags to f, which is kept.
func (t *suiteTest) bind(f *pflag.FlagSet) {
	defaults := loadtest.DefaultBroadcast()
	t.where, t.changed = loadtest.Common{Dialect: defaults.Dialect, APIKey: defaults.APIKey}, f
	f.StringVar(&t.preset, "preset", "", "run a preset that comes with the binary: "+strings.Join(scenarios.Names(), ", "))
	f.StringVar(&t.scenario, "scenario", "", "run a scenario file, or a preset")
	f.StringVar(&t.svg, "svg", "", "write charts into this folder")
	f.StringVar(&t.html, "html", "", "write a page with tables and charts to this file")
	f.Int("rounds", 0, "rounds of each collaboration and bursts of each broadcast, instead of the file's")
	f.Int("bursts", 0, "bursts of each broadcast, instead of the file's")
	f.Duration("duration", 0, "recorded time of each steady run, instead of the file's")
	f.Duration("warmup", 0, "time before the recorded time, instead of the file's")
	f.Duration("settle", time.Second, "pause between connecting and each test, instead of the file's")
	f.String("transport", "", "transport of the clients, instead of the file's")
	f.String("format", "", "format of frames, instead of the file's")
	f.String("mode", "", "mode of polls, instead of the file's")
	f.Bool("stateless", false, "poll by position, without sessions, instead of the file's")
	loadtest.BindTarget(f, &t.where)
	t.out.bind(f)
}

func (t *suiteTest) run(cmd *cobra.Command) error {
	switch {
	case t.preset == "" && t.scenario == "" && t.changed.NFlag() == 0:
		return cmd.Help()
	case (t.preset == "") == (t.scenario == ""):
		return seeHelp(cmd, errors.New("name either a --preset or a --scenario, or a subcommand of loadtest"))
	}
	suite, err := t.load()
	if err != nil {
		return usageError{err}
	}
	if err := errors.Join(t.apply(suite), t.tryFiles()); err != nil {
		return usageError{err}
	}
	if err := t.out.open(); err != nil {
		return usageError{err}
	}
	defer t.out.close()
	return t.measure(suite)
}

func (t *suiteTest) load() (*scenarios.Suite, error) {
	if t.preset != "" {
		return scenarios.Preset(t.preset)
	}
	return scenarios.Load(t.scenario)
}

// changeable are the parameters of a file that the command line may change.
var changeable = []string{"rounds", "bursts", "duration", "warmup", "settle", "transport", "format", "mode", "stateless", "dialect", "subscribe-path", "publish-path"}

// presetOf is a preset that was asked for below loadtest, with the flags of a
// command that has more of its own: what would be ignored is refused.
func presetOf(f *pflag.FlagSet, preset string, where loadtest.Common, out output) (*suiteTest, error) {
	known := append([]string{"preset", "target", "admin", "server-pid", "api-key", "token", "json", "quiet"}, changeable...)
	var ignored []string
	f.Visit(func(each *pflag.Flag) {
		if !slices.Contains(known, each.Name) {
			ignored = append(ignored, "--"+each.Name)
		}
	})
	if len(ignored) > 0 {
		return nil, usageError{fmt.Errorf("%s: has no effect with --preset", strings.Join(ignored, ", "))}
	}
	return &suiteTest{preset: preset, where: where, changed: f, out: out}, nil
}

// apply makes of the file's runs those that the command line asks for.
func (t *suiteTest) apply(suite *scenarios.Suite) error {
	var err error
	for _, r := range suite.Runs {
		c := r.Common()
		c.Target, c.Admin, c.ServerPID, c.Token, c.APIKey = t.where.Target, t.where.Admin, t.where.ServerPID, t.where.Token, t.where.APIKey
		err = errors.Join(err, completeServer(c))
	}
	for _, key := range changeable {
		if f := t.changed.Lookup(key); f != nil && f.Changed {
			err = errors.Join(err, t.change(suite, key, f.Value.String()))
		}
	}
	if err != nil {
		return err
	}
	return suite.Check()
}

// change sets a parameter of all runs that have it. Rounds are a broadcast's
// bursts, unless those are given.
func (t *suiteTest) change(suite *scenarios.Suite, key, value string) error {
	if key == "rounds" && !t.changed.Changed("bursts") {
		return suite.Change(value, "rounds", "bursts")
	}
	return suite.Change(value, key)
}

// tryFiles finds out before a long test whether its page and charts can be kept.
func (t *suiteTest) tryFiles() error {
	if t.svg != "" {
		if err := os.MkdirAll(t.svg, 0o755); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	return tryFile("--html", t.html)
}

func (t *suiteTest) measure(suite *scenarios.Suite) error {
	ctx, stop := untilSignal(endings()...)
	defer stop()
	progress := t.out.progress()
	result, interrupted := suite.Run(ctx, progress)
	progress.Finish()
	table := func(w io.Writer) error { return report.SuiteTable(w, result) }
	page := func(w io.Writer) error { return report.SuiteHTML(w, result) }
	if err := errors.Join(t.out.show(result, table), t.writeCharts(result), writeFile("--html", t.html, page), interrupted); err != nil {
		return err
	}
	return exitWith(result.ExitCode)
}

func (t *suiteTest) writeCharts(result scenarios.Result) error {
	if t.svg == "" {
		return nil
	}
	for _, c := range report.SuiteCharts(result) {
		if err := writeFile("--svg", filepath.Join(t.svg, c.Name+".svg"), c.Chart.SVG); err != nil {
			return err
		}
	}
	return nil
}
