package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal ends with the first of the signals. A second one ends the process at once. A
// write that cannot be done ends nothing, but returns an error, if the reader of our output
// has left or the file is as large as the process may make it: a daemon has clients, a load
// test has a server to end, and a subscriber says where to go on.
func untilSignal(signals ...os.Signal) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE, syscall.SIGXFSZ)
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// endings are the signals that end a command. A terminal's going away is one, unless
// nohup said otherwise.
func endings() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM, os.Interrupt}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
