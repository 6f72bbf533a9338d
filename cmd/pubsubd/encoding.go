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
		Short: "JSON, gzip JSON and CBOR: round trips of objects, bytes, and whose CPU",
		Long: `Clients in closed loops build an array of objects and publish it, the server takes
it in, checks it and sends it back by long poll, and the clients make objects of what
came. Each client is the publisher and the only subscriber of its own topic. This is
done in JSON, gzip JSON and CBOR, in turns, with arrays of 20 and of 100 objects, on
all cores; the report says how many round trips and objects a second, the bytes, and
whose the CPU time is: the server's, or that of the clients' building and parsing.

gzip JSON is published as it is and comes back compressed by the server, for polls
that take it. What the server does not offer is left out, and said.

A size table follows: messages of many shapes in JSON, gzip JSON, CBOR and gzip CBOR,
with the CPU time of encoding, decoding, compressing and decompressing each.

The clients are the greater part of the work, and meant to be. The exit code is 0 if
all is well, 1 if the test went wrong, 2 for a command line that cannot be obeyed, and
3 if a message was lost, came twice, out of order or changed.`,
		Example: `  pubsubd loadtest encoding
  pubsubd loadtest encoding --objects 1,20,100 --rounds 10 --html encoding.html`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return t.run() },
	}
	f := cmd.Flags()
	f.IntVar(&t.cfg.Clients, "clients", t.cfg.Clients, "clients, each with one message on its way")
	f.DurationVar(&t.cfg.Duration, "duration", t.cfg.Duration, "how long each encoding and size is recorded in each round")
	f.IntVar(&t.cfg.Rounds, "rounds", t.cfg.Rounds, "how often everything is measured, in turns")
	f.IntSliceVar(&t.cfg.Objects, "objects", t.cfg.Objects, "sizes of the arrays")
	f.Uint64Var(&t.cfg.Seed, "seed", t.cfg.Seed, "of the objects' contents; the same makes the same")
	f.StringVar(&t.cfg.Target, "target", "", "base URL of a server that runs; without it one is started")
	f.IntVar(&t.cfg.ServerPID, "server-pid", 0, "the target's process on this machine, for its CPU")
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
	ctx, stop := untilSignal()
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
