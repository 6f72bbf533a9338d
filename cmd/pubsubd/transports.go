package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest/report"
	"github.com/pubsubd/pubsubd/loadtest/transports"
)

func transportsCommand() *cobra.Command {
	t := transportsTest{cfg: transports.Default()}
	cmd := &cobra.Command{
		Use:   "transports",
		Short: "How fast one client is sent many messages, over each transport",
		Long: `One client is sent --messages messages of 20 short strings, over each transport and
in each format, as Silverlight 4's polling duplex and net.tcp were compared. The
first way is from a topic that was filled before, the second live: what is published,
as fast as the server takes it, while the client waits for it. What takes a request
for each message (single) is sent a tenth, or --single-messages.

Everything is measured once in each round, and each round begins with another
transport; the first does not count. Beside it stand two floors, which do nothing but
send bytes that are ready: the same frames through one channel and one writer on a
bare socket, and a bare loop of a request and an answer of the same size.

Without --target a server is started, with histories that hold all messages. An event
stream is text, and the TCP port speaks CBOR. A lost, doubled or disordered message, or
a gap, is a failure (exit code 3). Rows marked client-bound are the limit of the client
rather than of the server.`,
		Example: `  pubsubd loadtest transports
  pubsubd loadtest transports --clients 100 --messages 10000 --repeats 3
  pubsubd loadtest transports --transports multiple,tcp --formats cbor --ways filled`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return t.run() },
	}
	f := cmd.Flags()
	f.IntVar(&t.cfg.Clients, "clients", t.cfg.Clients, "clients at once, each of which is sent all messages")
	f.IntVar(&t.cfg.Messages, "messages", t.cfg.Messages, "messages that each client is sent")
	f.IntVar(&t.cfg.SingleMessages, "single-messages", t.cfg.SingleMessages, "the same where each takes a request; 0 is a tenth")
	f.IntVar(&t.cfg.Repeats, "repeats", t.cfg.Repeats, "how often each is measured")
	f.StringSliceVar(&t.cfg.Transports, "transports", t.cfg.Transports, "which are measured")
	f.StringSliceVar(&t.cfg.Formats, "formats", t.cfg.Formats, "in which formats: "+strings.Join(transports.Formats(), ", "))
	f.StringSliceVar(&t.cfg.Ways, "ways", t.cfg.Ways, "filled: what was published before; live: what is published meanwhile")
	f.StringVar(&t.cfg.Target, "target", t.cfg.Target, "base URL of a server that runs; without it one is started")
	f.StringVar(&t.cfg.TargetTCP, "target-tcp", t.cfg.TargetTCP, "host:port of the target's TCP port")
	f.IntVar(&t.cfg.ServerPID, "server-pid", t.cfg.ServerPID, "the target's process on this machine, for its CPU")
	f.StringVar(&t.svg, "svg", "", "write the chart to this file")
	f.StringVar(&t.html, "html", "", "write a page with table and chart to this file")
	t.out.bind(f)
	oneOf(cmd, "transports", transports.Transports()...)
	oneOf(cmd, "formats", transports.Formats()...)
	oneOf(cmd, "ways", transports.Ways()...)
	return cmd
}

// A transportsTest is what the command line asks for.
type transportsTest struct {
	cfg       transports.Config
	svg, html string
	out       output
}

func (t *transportsTest) run() error {
	if err := t.complete(); err != nil {
		return err
	}
	if err := errors.Join(t.out.open(), tryFile("--svg", t.svg), tryFile("--html", t.html)); err != nil {
		return usageError{err}
	}
	defer t.out.close()
	ctx, stop := untilSignal()
	defer stop()
	progress := t.out.progress()
	result, err := transports.Run(ctx, t.cfg, progress)
	progress.Finish()
	if fault, ok := errors.AsType[transports.ConfigError](err); ok {
		return usageError{fault}
	}
	if len(result.Rows) == 0 {
		return err
	}
	if err := errors.Join(err, t.show(result)); err != nil {
		return err
	}
	return exitWith(result.ExitCode)
}

// complete adds the commands that start what is measured.
func (t *transportsTest) complete() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	t.cfg.BareCommand = []string{self, "floor", "--bare"}
	if t.cfg.Target == "" {
		t.cfg.ServerCommand = []string{self, "serve", "--log-level=warn"}
	}
	return nil
}

func (t *transportsTest) show(r transports.Result) error {
	return errors.Join(
		t.out.show(r, func(w io.Writer) error { return report.TransportsTable(w, r) }),
		writeFile("--svg", t.svg, report.TransportsBars(r).SVG),
		writeFile("--html", t.html, func(w io.Writer) error { return report.TransportsHTML(w, r) }),
	)
}
