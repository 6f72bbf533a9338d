package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/report"
)

func broadcastCommand() *cobra.Command {
	b := broadcastTest{cfg: loadtest.DefaultBroadcast()}
	cmd := &cobra.Command{
		Use:   "broadcast",
		Short: "Few topics, many clients: a burst of messages every period",
		Long: `One topic, many clients. Every period one message of 20 short strings is
published: a burst of one delivery to each client. The server holds so many
clients at that period if each burst was complete before the next was due.

With --topics the clients are spread evenly, and each burst publishes one message
to every topic.

With --search it is found out how many clients the server holds at each --period:
their number doubles from --clients until a burst is late, is bisected to 5 %, and
must then hold over all --bursts; what is tried before that takes 25, and is tried
twice before it counts as not held. Each trial has a server of its own. The exit code is 3 if at some period not one client was
held, and 4 if the load generator was the limit at some.`,
		Example: `  pubsubd loadtest broadcast --clients 5000 --period 1s --bursts 100
  pubsubd loadtest broadcast --clients 60000 --processes 4 --target http://10.0.0.7:8080
  pubsubd loadtest broadcast --search --period 100ms,200ms,400ms,1s --svg clients.svg`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	loadtest.BindBroadcast(f, &b.cfg)
	f.DurationSliceVar(&b.periods, "period", []time.Duration{b.cfg.Period}, "time from one burst to the next; of a search, several")
	f.BoolVar(&b.search, "search", false, "find the most clients for each period")
	f.StringVar(&b.svg, "svg", "", "write the search as a chart to this file")
	f.Lookup("clients").Usage += fmt.Sprintf(", %d if not given", searchBegins)
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
		return usageError{fmt.Errorf("--period: %d periods need --search", len(b.periods))}
	case b.svg != "":
		return usageError{errors.New("--svg: is the chart of a --search")}
	}
	b.cfg.Period = b.periods[0]
	return b.out.measure(&b.cfg.Common, func(ctx context.Context, p loadtest.Progress) (loadtest.Result, error) {
		return loadtest.RunBroadcast(ctx, b.cfg, p)
	})
}

// runSearch is measure for a search: what was found is shown even if it is not all.
func (b *broadcastTest) runSearch() error {
	command, err := serverCommand()
	if err != nil {
		return err
	}
	if err := errors.Join(b.out.open(), tryFile("--svg", b.svg)); err != nil {
		return usageError{err}
	}
	defer b.out.close()
	if b.cfg.Target == "" {
		b.cfg.ServerCommand = command
	}
	ctx, stop := testContext()
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
	if err := errors.Join(err, b.show(found), b.writeChart(found)); err != nil {
		return err
	}
	if code := found.ExitCode(); code != 0 {
		return exitError{code}
	}
	return nil
}

func (b *broadcastTest) show(found loadtest.SearchResult) error {
	if b.out.json == "-" {
		return report.JSON(os.Stdout, found)
	}
	if err := report.SearchTable(os.Stdout, found); err != nil || b.out.json == "" {
		return err
	}
	var text strings.Builder
	if err := report.JSON(&text, found); err != nil {
		return err
	}
	return b.out.fill(text.String())
}

// tryFile finds out before a long test whether a file can be kept. What it holds
// stays until there is another, and no empty file does.
func tryFile(flag, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		_ = os.Remove(path)
	}
	return f.Close()
}

func (b *broadcastTest) writeChart(found loadtest.SearchResult) error {
	if b.svg == "" {
		return nil
	}
	var text bytes.Buffer
	if err := report.SearchChart(found).SVG(&text); err != nil {
		return err
	}
	if err := os.WriteFile(b.svg, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--svg: %w", err)
	}
	return nil
}
