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
		Short: "Run a share of the clients of load tests",
		Long: `Run a share of the clients of load tests that another process coordinates, with
--agents. The agent serves one test after the other, until SIGINT or SIGTERM. Each client
needs an open file, and one process can open only some thousands, so agents are
additional processes. An agent connects to any server that its coordinator names.

Coordinators must send the token in $` + loadtest.AgentTokenVariable + `. Without a token, the
agent accepts every process on this machine, and refuses to listen on other addresses.
Nothing is encrypted: use agents only in a private network.

Latencies of agents on one machine use one clock. For agents on several machines, the
coordinator compares the clocks before and after the test, and corrects the
difference. The report states how exact the correction is.`,
		Example: `  ` + loadtest.AgentTokenVariable + `=… pubsubd loadtest agent --listen 10.0.0.8:9000
  ` + loadtest.AgentTokenVariable + `=… pubsubd loadtest broadcast --agents 10.0.0.8:9000,10.0.0.9:9000 --clients 30000 --target http://10.0.0.7:8080`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return serveAgent(listen, addressesFile)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9000", "address for coordinators; with port 0, any free port")
	cmd.Flags().StringVar(&addressesFile, "addresses-file", "", "write the address to this file once the agent listens")
	return cmd
}

func serveAgent(listen, addressesFile string) error {
	token := os.Getenv(loadtest.AgentTokenVariable)
	if err := checkAgentListen(listen, token); err != nil {
		return usageError{err}
	}
	ctx, stop := untilSignal(endings()...)
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
		return fmt.Errorf("--listen: %s is not a loopback address: set a token in $%s, here and for the coordinators", listen, loadtest.AgentTokenVariable)
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
