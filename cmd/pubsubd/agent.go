package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/loadtest"
)

func agentCommand() *cobra.Command {
	var listen, addressesFile string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Take a share of the clients of load tests",
		Long: `Take a share of the clients of load tests that other processes run, with --agents,
one test after the other, until a signal: one process may have some thousands of
files open, and so as many clients. It connects to whatever server it is told to.

Who may tell it has the token that is in $` + loadtest.AgentTokenVariable + `. Without one it serves
whoever is on this machine, and refuses to listen elsewhere. Nothing is encrypted:
use it in a network of your own.

Latencies of agents on one machine are by one clock. Over machines the clocks are
compared before and after the test by asking; the difference is corrected, and the
report says how well it is known.`,
		Example: `  ` + loadtest.AgentTokenVariable + `=… pubsubd loadtest agent --listen 10.0.0.8:9000
  ` + loadtest.AgentTokenVariable + `=… pubsubd loadtest broadcast --agents 10.0.0.8:9000,10.0.0.9:9000 --clients 30000 --target http://10.0.0.7:8080`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return serveAgent(listen, addressesFile)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9000", "where coordinators reach it; port 0 is any that is free")
	cmd.Flags().StringVar(&addressesFile, "addresses-file", "", "write the address to this file once it is bound")
	return cmd
}

func serveAgent(listen, addressesFile string) error {
	token := os.Getenv(loadtest.AgentTokenVariable)
	if err := checkAgentListen(listen, token); err != nil {
		return usageError{err}
	}
	ctx, stop := untilSignal()
	defer stop()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	agent := loadtest.NewAgent(token, versionText())
	defer agent.Close()
	server := &http.Server{Handler: agent, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Fprintf(os.Stderr, "agent %s listens on %s\n", versionText(), listener.Addr())
	if err := tellAddress(addressesFile, listener.Addr().String()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// checkAgentListen keeps an agent that anybody may command on this machine.
func checkAgentListen(listen, token string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("--listen: %q: write host:port", listen)
	}
	ip := net.ParseIP(host)
	if token == "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen: %s is not loopback alone: put a token into $%s, which coordinators need, too", listen, loadtest.AgentTokenVariable)
	}
	return nil
}

// tellAddress writes the line that a load test waits for which started this process.
func tellAddress(file, public string) error {
	if file == "" {
		return nil
	}
	line, err := json.Marshal(map[string]string{"public": public})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(line, '\n'), 0o600); err != nil {
		return fmt.Errorf("--addresses-file: %w", err)
	}
	return nil
}

// completeCrew adds what a coordinator has besides its flags.
func completeCrew(c *loadtest.CrewConfig) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.Token, c.Version = os.Getenv(loadtest.AgentTokenVariable), versionText()
	c.Command = []string{self, "loadtest", "agent"}
	return nil
}
