package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest/floor"
	"github.com/pubsubd/pubsubd/loadtest/floor/bare"
)

func floorCommand() *cobra.Command {
	listen, addressesFile, bareOne := "127.0.0.1:8080", "", false
	cmd := &cobra.Command{
		Use:   "floor",
		Short: "Serve the physical limit only, to compare with",
		Long: `Serve polls, streams and publishes with one thread that does nothing else: no sessions,
no timeouts, no limits, no authorisation. No server can cost less. Measure it with
loadtest --dialect floor or floor-stream. With --bare, serve the floor of loadtest
transports, which starts it by itself.`,
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if bareOne {
				return serveBare(listen, addressesFile)
			}
			return serveFloor(listen, addressesFile)
		},
	}
	cmd.Flags().BoolVar(&bareOne, "bare", false, "serve the floor for one fast connection, made of goroutines and a channel")
	cmd.Flags().StringVar(&listen, "listen", listen, "address to listen on")
	cmd.Flags().StringVar(&addressesFile, "addresses-file", "", "write the address to this file, as JSON, once the server is ready")
	return cmd
}

func serveFloor(listen, addressesFile string) error {
	server, err := floor.Listen(listen)
	if err != nil {
		return err
	}
	if addressesFile == "" {
		fmt.Fprintln(os.Stderr, "pubsubd: floor listens on", server.Addr())
	}
	if err := tellAddress(addressesFile, server.Addr().String()); err != nil {
		return err
	}
	// Nothing is allocated once everyone is connected: a collection would be a cost
	// that is not the kernel's.
	debug.SetGCPercent(-1)
	ctx, stop := untilSignal(endings()...)
	defer stop()
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve()
}

func serveBare(listen, addressesFile string) error {
	server, err := bare.Listen(listen)
	if err != nil {
		return err
	}
	if err := tellAddress(addressesFile, server.Addr().String()); err != nil {
		return err
	}
	ctx, stop := untilSignal(endings()...)
	defer stop()
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve()
}
