package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal ends with the first of the signals. A second one ends the process at once. If
// the reader of our output has left, or a file may not grow, a write returns an error and ends
// nothing: a daemon has clients, and a subscriber says where to go on.
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
