package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/report"
)

func broadcastCommand() *cobra.Command {
	b := broadcastTest{cfg: loadtest.DefaultBroadcast()}
	cmd := &cobra.Command{
		Use:   "broadcast",
		Short: "Measure few topics with many clients: a burst of messages every period",
		Long: `Measure one topic with many clients. Every period, publish one message of 20 short
strings, which makes a burst of one delivery to each client. The server passes if
each burst is complete before the next one is due.

With --topics, spread the clients evenly over the topics. Each burst then publishes
one message to every topic.

With --search, find how many clients the server holds at each --period. The number of
clients doubles from --clients until a burst is late. Then the search bisects it to
5 %. The result must pass a final trial of all --bursts. Trials before the last have
25 bursts, and fail only if a second attempt fails, too. Each trial starts a new
server. The exit code is 3 if the server held no client at some period, and 4 if the
load generator was the limit at some period.`,
		Example: `  pubsubd loadtest broadcast --clients 5000 --period 1s --bursts 100
  pubsubd loadtest broadcast --clients 60000 --processes 4 --target http://10.0.0.7:8080
  pubsubd loadtest broadcast --search --period 100ms,200ms,400ms,1s --svg clients.svg`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	loadtest.BindBroadcast(f, &b.cfg)
	f.DurationSliceVar(&b.periods, "period", []time.Duration{b.cfg.Period}, "time from one burst to the next; with --search, a list of `durations`")
	f.BoolVar(&b.search, "search", false, "find the most clients for each period")
	f.StringVar(&b.svg, "svg", "", "write the search as a chart to this file")
	f.Lookup("clients").Usage += fmt.Sprintf(", %d by default", searchBegins)
	loadtest.BindCommon(f, &b.cfg.Common)
	loadtest.BindCrew(f, &b.cfg.Crew)
	b.out.bind(f)
	cmd.RunE = func(*cobra.Command, []string) error {
		if b.search && !f.Changed("clients") {
			b.cfg.Clients = searchBegins
		}
		return b.run()
	}
	return cmd
}

// searchBegins is fewer clients than any server worth a search holds.
const searchBegins = 1000

// A broadcastTest is what the command line asks for.
type broadcastTest struct {
	cfg     loadtest.BroadcastConfig
	periods []time.Duration
	search  bool
	svg     string
	out     output
}

func (b *broadcastTest) run() error {
	if err := completeCrew(&b.cfg.Crew); err != nil {
		return err
	}
	switch {
	case b.search:
		return b.runSearch()
	case len(b.periods) != 1:
		return usageError{fmt.Errorf("--period: without --search, give one period; got %d", len(b.periods))}
	case b.svg != "":
		return usageError{errors.New("--svg: only --search makes a chart")}
	}
	b.cfg.Period = b.periods[0]
	return b.out.measure(&b.cfg.Common, func(ctx context.Context, p loadtest.Progress) (loadtest.Result, error) {
		return loadtest.RunBroadcast(ctx, b.cfg, p)
	})
}

// runSearch is measure for a search: what was found is shown even if it is not all.
func (b *broadcastTest) runSearch() error {
	if err := completeServer(&b.cfg.Common); err != nil {
		return err
	}
	if err := errors.Join(b.out.open(), tryFile("--svg", b.svg)); err != nil {
		return usageError{err}
	}
	defer b.out.close()
	ctx, stop := untilSignal(endings()...)
	defer stop()
	progress := b.out.progress()
	found, err := loadtest.RunSearch(ctx, loadtest.SearchConfig{Broadcast: b.cfg, Periods: b.periods}, progress)
	progress.Finish()
	if fault, ok := errors.AsType[loadtest.ConfigError](err); ok {
		return usageError{fault}
	}
	if len(found.Points) == 0 {
		return err
	}
	table := func(w io.Writer) error { return report.SearchTable(w, found) }
	if err := errors.Join(err, b.out.show(found, table), writeFile("--svg", b.svg, report.SearchChart(found).SVG)); err != nil {
		return err
	}
	return exitWith(found.ExitCode())
}
