package main

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest/encoding"
	"github.com/pubsubd/pubsubd/loadtest/report"
)

func encodingCommand() *cobra.Command {
	t := encodingTest{cfg: encoding.Default()}
	cmd := &cobra.Command{
		Use:   "encoding",
		Short: "Compare JSON, gzip JSON and CBOR: round trips, bytes and CPU time",
		Long: `Compare JSON, gzip JSON and CBOR on round trips. Clients in closed loops build an array
of objects and publish it. The server checks the array and sends it back by long poll.
The clients parse it into objects. Each client has its own topic, and is its only
publisher and subscriber. The test runs each encoding in turn, with arrays of 20 and of
100 objects, on all cores. The report shows round trips and objects a second, bytes, and
CPU time: of the server, and of the clients for building and parsing.

Clients publish gzip JSON as it is. The server compresses it again for polls that accept
gzip. The report names and leaves out what the server does not support.

A size table follows: messages of many shapes in JSON, gzip JSON, CBOR and gzip CBOR,
with the CPU time to encode, decode, compress and decompress each.

The clients do most of the work, by design. The exit code is 0 for success, 1 if the
test failed to run, 2 for a wrong command line, and 3 if a message was lost, duplicated,
out of order or changed.`,
		Example: `  pubsubd loadtest encoding
  pubsubd loadtest encoding --objects 1,20,100 --rounds 10 --html encoding.html`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return t.run() },
	}
	f := cmd.Flags()
	f.IntVar(&t.cfg.Clients, "clients", t.cfg.Clients, "clients, each with one message in flight")
	f.DurationVar(&t.cfg.Duration, "duration", t.cfg.Duration, "recorded time of each encoding and size in each round")
	f.IntVar(&t.cfg.Rounds, "rounds", t.cfg.Rounds, "rounds; each measures every encoding and size")
	f.IntSliceVar(&t.cfg.Objects, "objects", t.cfg.Objects, "sizes of the arrays, in objects")
	f.Uint64Var(&t.cfg.Seed, "seed", t.cfg.Seed, "seed of the objects' contents; the same seed makes the same contents")
	f.StringVar(&t.cfg.Target, "target", "", "base URL or host:port of a running server; default: start one")
	f.IntVar(&t.cfg.ServerPID, "server-pid", 0, "process id of the target on this machine, to measure its CPU time")
	f.StringVar(&t.svg, "svg", "", "write the round trips as a chart to this file")
	f.StringVar(&t.html, "html", "", "write a page with tables and charts to this file")
	t.out.bind(f)
	return cmd
}

// An encodingTest is what the command line asks for.
type encodingTest struct {
	cfg       encoding.Config
	svg, html string
	out       output
}

// run measures, shows what was found even if it is not all, and returns what the
// process exits with.
func (t *encodingTest) run() error {
	if err := errors.Join(t.out.open(), tryFile("--svg", t.svg), tryFile("--html", t.html)); err != nil {
		return usageError{err}
	}
	defer t.out.close()
	if t.cfg.Target == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		t.cfg.ServerCommand, t.cfg.Build = []string{self, "serve", "--log-level=warn"}, versionText()
	}
	ctx, stop := untilSignal(endings()...)
	defer stop()
	result, err := encoding.Run(ctx, t.cfg, t.out.say)
	if fault, ok := errors.AsType[encoding.ConfigError](err); ok {
		return usageError{fault}
	}
	if result == nil {
		return err
	}
	if err := errors.Join(err, t.show(result)); err != nil {
		return err
	}
	return exitWith(result.ExitCode)
}

func (t *encodingTest) show(r *encoding.Result) error {
	return errors.Join(
		t.out.show(r, func(w io.Writer) error { return report.EncodingTable(w, r) }),
		writeFile("--svg", t.svg, report.EncodingBars(r).SVG),
		writeFile("--html", t.html, func(w io.Writer) error { return report.EncodingHTML(w, r) }),
	)
}
