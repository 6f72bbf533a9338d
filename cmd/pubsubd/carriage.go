package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
)

// Where serve has its TCP port, if the environment says so.
const (
	listenTCPEnv = "PUBSUBD_LISTEN_TCP"
	usualTCPPort = "8082"
)

var (
	transportNames = []string{"auto", "longpoll", "stream", "sse", "websocket", "tcp"}
	formatNames    = []string{"json", "cbor"}
)

// A carriage is what messages come over to a subscriber.
type carriage struct {
	transport string
	format    string // empty: the transport's own
	tcp       string // empty: see port
}

func bindCarriage(cmd *cobra.Command, f *pflag.FlagSet) *carriage {
	c := &carriage{}
	f.StringVar(&c.transport, "transport", "auto", "transport of the messages: "+strings.Join(transportNames, ", ")+"; auto selects the best that works")
	f.StringVar(&c.format, "format", "", "format of the messages: json or cbor; default: json, with tcp cbor")
	f.StringVar(&c.tcp, "tcp", "", "`HOST:PORT` of the daemon's TCP port; default: $"+listenTCPEnv+" if set, else --server's host and port "+usualTCPPort)
	oneOf(cmd, "transport", transportNames...)
	oneOf(cmd, "format", formatNames...)
	return c
}

func (c *carriage) check() error {
	_, _, err := net.SplitHostPort(c.tcp)
	switch {
	case c.transport == "tcp" && c.format == "json", c.transport == "sse" && c.format == "cbor":
		return fmt.Errorf("--format %s: --transport %s supports only the other format", c.format, c.transport)
	case c.tcp != "" && c.transport != "tcp":
		return fmt.Errorf("--tcp %s: use it only with --transport tcp", c.tcp)
	case c.tcp != "" && err != nil:
		return fmt.Errorf("--tcp %q: %w", c.tcp, err)
	}
	return nil
}

// reach returns what the client of a server must know for the transport. The TCP port
// speaks TLS where the server does.
func (c *carriage) reach(server *address) ([]pubsub.Option, error) {
	if c.transport != "tcp" {
		return nil, nil
	}
	base, err := server.url()
	if err != nil {
		return nil, err
	}
	var config *tls.Config
	if base.Scheme == "https" {
		if config, err = server.authority.tls(); err != nil {
			return nil, err
		}
	}
	return []pubsub.Option{pubsub.WithTCPAddr(c.port(base.Hostname()), config)}, nil
}

// port returns where the TCP port is.
func (c *carriage) port(host string) string {
	if c.tcp != "" {
		return c.tcp
	}
	if listens := os.Getenv(listenTCPEnv); listens != "" {
		return reachable(listens)
	}
	return net.JoinHostPort(host, usualTCPPort)
}

// unreached adds to an error of a connection how to name another TCP port or another daemon.
func (c *carriage) unreached(server *address, err error) error {
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" && c.transport == "tcp" {
		return fmt.Errorf("%w: does the daemon listen there (listen.tcp)? --tcp or %s sets another address", err, listenTCPEnv)
	}
	return server.unreached(err)
}

func (c *carriage) options() []pubsub.SubscribeOption {
	options := []pubsub.SubscribeOption{pubsub.WithTransport(pubsub.Transport(c.transport))}
	if c.format != "" {
		options = append(options, pubsub.WithFormat(pubsub.Format(c.format)))
	}
	return options
}
