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
		Short: "Measure how fast one client receives many messages, over each transport",
		Long: `Send one client --messages messages of 20 short strings, over each transport and in each
format. The test repeats a comparison of polling duplex and net.tcp in Silverlight 4.
Each transport is measured twice: filled, from a topic that has all messages, and live,
with messages that are published as fast as the server accepts them while the client
waits. Transports that need a request for each message (single) get a tenth of the
messages, or --single-messages.

Each round measures everything once, and begins with another transport. The first round
does not count. Two floors run beside the server. They only send bytes that are ready:
the same frames through one channel and one writer on a bare socket, and a bare loop of
a request and an answer of the same size.

Without --target, the test starts a server with histories that hold all messages. Event
streams support only JSON, and the TCP port only CBOR. A lost, duplicated or disordered
message, or a gap, is a failure (exit code 3). In rows marked client-bound, the client
is the limit, not the server.`,
		Example: `  pubsubd loadtest transports
  pubsubd loadtest transports --clients 100 --messages 10000 --repeats 3
  pubsubd loadtest transports --transports multiple,tcp --formats cbor --ways filled`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return t.run() },
	}
	f := cmd.Flags()
	f.IntVar(&t.cfg.Clients, "clients", t.cfg.Clients, "clients at a time; each receives all messages")
	f.IntVar(&t.cfg.Messages, "messages", t.cfg.Messages, "messages to each client")
	f.IntVar(&t.cfg.SingleMessages, "single-messages", t.cfg.SingleMessages, "messages to each client for transports that need a request for each; 0 means a tenth")
	f.IntVar(&t.cfg.Repeats, "repeats", t.cfg.Repeats, "how often each transport is measured")
	f.StringSliceVar(&t.cfg.Transports, "transports", t.cfg.Transports, "transports to measure")
	f.StringSliceVar(&t.cfg.Formats, "formats", t.cfg.Formats, "formats to measure: "+strings.Join(transports.Formats(), ", "))
	f.StringSliceVar(&t.cfg.Ways, "ways", t.cfg.Ways, "filled: messages published before the client subscribes; live: messages published while it waits")
	f.StringVar(&t.cfg.Target, "target", t.cfg.Target, "base URL or host:port of a running server; default: start one")
	f.StringVar(&t.cfg.TargetTCP, "target-tcp", t.cfg.TargetTCP, "host:port of the target's TCP port")
	f.IntVar(&t.cfg.ServerPID, "server-pid", t.cfg.ServerPID, "process id of the target on this machine, to measure its CPU time")
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
	ctx, stop := untilSignal(endings()...)
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
