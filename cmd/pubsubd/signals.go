package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal ends with the first signal to end; a second one ends the process at
// once. A reader of our output who leaves does not: a load test has a server to
// end, and a subscriber says where to go on.
func untilSignal() (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
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
