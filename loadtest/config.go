package loadtest

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/client"
)

// Common is what every scenario is told. Begin with the scenario's Default
// function: unless a field says so, zero is not a default but an error.
type Common struct {
	// Target is the server's base URL, such as http://127.0.0.1:8080, or its host:port.
	// Only plain HTTP can be measured. Empty: ServerCommand is started.
	Target string
	// Admin is the base URL or the host:port of the Target's admin listener, for its
	// /metrics. Empty: nothing is read from there; a started server says its own.
	Admin string
	// ServerPID is the Target's process on this machine: its CPU and that of all its
	// descendants is then read from the kernel rather than from /metrics, and so is
	// their memory if there is no Admin. 0: not known.
	ServerPID int
	// ServerCommand starts a server as a child process; see package child for what it
	// must understand. Ignored with a Target.
	ServerCommand []string

	// Dialect is how the Target is spoken to, one of client.Dialects. Default pubsubd;
	// any other needs a Target.
	Dialect string
	// SubscribePath and PublishPath are where a topic's messages come from and go to,
	// with {topic} in them: for the dialect sse, which needs both, and nchan's, where
	// the default is /sub/{topic} and /pub/{topic}.
	SubscribePath, PublishPath string
	// APIKey is that of Centrifugo's API. Default k.
	APIKey string
	// Token is the JWT with which to publish to Mercure; sse's publishes bear it, too,
	// if there is one.
	Token string

	// Transport is over what clients of pubsubd get their messages. Default: polls, as
	// Mode says.
	Transport client.Transport
	// Format is how pubsubd's frames come. Publishes are the same in each. Default json.
	Format client.Format
	// Voices has each client of pubsubd's WebSockets publish on its own connection what
	// is its to publish; only clients of a collaboration do. Default false: publishes
	// are requests on connections of their own.
	Voices bool
	// Mode is how polls are answered, by pubsubd. Default batch.
	Mode client.Mode
	// Stateless polls pubsubd by position and opens no sessions. Default false.
	Stateless bool
	// Subscriptions is how many topics each session of pubsubd subscribes to: the
	// client's own, and quiet ones that nobody else is on. Default 1.
	Subscriptions int

	// Publishers is how many connections for publishing are opened before the test
	// begins. Default 1 for broadcast, 1000 for collab, where at most one for each
	// topic is of use, 100 for steady; what can be of no use is not opened.
	Publishers int
	// MaxPublishers bounds how many more are opened while all are busy. When none is
	// free the publish waits, and the wait counts as latency and as schedule lag.
	// Default 16 for broadcast, else 1000; never less than Publishers, nor more than
	// there are clients.
	MaxPublishers int
	// Connecting bounds how many clients connect or open their session at the same
	// time, so that the server's accept queue is not overrun. Default 128.
	Connecting int
	// Settle is how long everything rests between the last client's connecting and
	// the test. Default 1 s; 0 does not rest.
	Settle time.Duration
	// Drain is how long missing deliveries are waited for at the end before they
	// count as lost. Default 10 s.
	Drain time.Duration

	// Crew are the processes that have the clients, of broadcast and steady. Default:
	// this one.
	Crew CrewConfig

	// MaxP99 is an objective: the 99th percentile of latency must not exceed it.
	// Default 0: no objective.
	MaxP99 time.Duration
	// MaxLoss is an objective: so many deliveries may be lost. Default 0: none.
	MaxLoss int64
}

// A ConfigError is a Config that no test can be made of: every fault, each named
// by its flag.
type ConfigError struct{ error }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.error }

func asConfigError(faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return ConfigError{err}
	}
	return nil
}

func defaultCommon() Common {
	return Common{
		Dialect:       client.Pubsubd,
		APIKey:        "k",
		Mode:          client.Batch,
		Format:        client.JSON,
		Subscriptions: 1,
		Publishers:    100,
		MaxPublishers: 1000,
		Connecting:    128,
		Settle:        time.Second,
		Drain:         10 * time.Second,
	}
}

// check returns every fault, each named by its flag.
func (c *Common) check() error {
	return errors.Join(
		unless(c.Target != "" || len(c.ServerCommand) > 0, "--target: name a server, or give a command that starts one"),
		c.checkURLs(),
		c.checkDialect(),
		unless(c.Target != "" || c.Admin == "", "--admin: needs --target; the test knows the admin listener of a server that it starts"),
		unless(c.Target != "" || c.ServerPID == 0, "--server-pid: needs --target; the test knows the process of a server that it starts"),
		unless(c.ServerPID >= 0, "--server-pid: must not be negative; got %d", c.ServerPID),
		unless(slices.Contains(client.Modes(), c.Mode), "--mode: %q: use single, batch, multiple or stream", c.Mode),
		unless(c.Publishers > 0, "--publishers: must be at least 1; got %d", c.Publishers),
		unless(c.MaxPublishers > 0, "--max-publishers: must be at least 1; got %d", c.MaxPublishers),
		unless(c.Connecting > 0, "--connecting: must be at least 1; got %d", c.Connecting),
		unless(c.Settle >= 0, "--settle: must not be negative; got %v", c.Settle),
		unless(c.Drain > 0, "--drain: must be positive; got %v", c.Drain),
		unless(c.MaxP99 >= 0, "--max-p99: must not be negative; got %v", c.MaxP99),
		unless(c.MaxLoss >= 0, "--max-loss: must not be negative; got %d", c.MaxLoss),
	)
}

// checkDialect refuses what a dialect lacks, and what it would ignore.
func (c *Common) checkDialect() error {
	own, sse := c.Dialect == client.Pubsubd, c.Dialect == "sse"
	nchan := strings.HasPrefix(c.Dialect, "nchan-")
	return errors.Join(
		unless(slices.Contains(client.Dialects(), c.Dialect), "--dialect: %q: use one of %s", c.Dialect, strings.Join(client.Dialects(), ", ")),
		unless(own || c.Target != "", "--dialect: %s needs --target, because the test starts only pubsubd", c.Dialect),
		unless(own || c.Mode == client.Batch, "--mode: works only with --dialect pubsubd"),
		c.checkTransport(),
		unless(own || !c.Stateless, "--stateless: works only with --dialect pubsubd"),
		unless(c.Subscriptions > 0, "--subscriptions: must be at least 1; got %d", c.Subscriptions),
		unless(c.Subscriptions <= 1 || own && !c.Stateless, "--subscriptions: only sessions of pubsubd can have more than one topic"),
		checkPath("--subscribe-path", c.SubscribePath, sse, sse || nchan),
		checkPath("--publish-path", c.PublishPath, sse, sse || nchan),
		unless(!strings.HasPrefix(c.Dialect, "centrifugo-") || isHeaderText(c.APIKey), "--api-key: must be printable ASCII without spaces, and not empty"),
		unless(c.Token == "" || isHeaderText(c.Token), "--token: must be printable ASCII without spaces"),
		unless(c.Dialect != "mercure" || c.Token != "", "--token: Mercure needs a JWT with the right to publish"),
	)
}

// checkTransport refuses what a transport lacks.
func (c *Common) checkTransport() error {
	own, pushed := c.Dialect == client.Pubsubd, c.Transport.IsPushed()
	known := c.Transport == "" || slices.Contains(client.Transports(), c.Transport)
	return errors.Join(
		unless(known, "--transport: %q: use longpoll, stream, sse or websocket", c.Transport),
		unless(own || c.Transport == "", "--transport: works only with --dialect pubsubd"),
		unless(c.Transport != client.LongPoll || c.Mode != client.Stream, "--transport: longpoll does not work with --mode stream"),
		unless(c.Transport != client.Streaming || c.Mode == client.Batch || c.Mode == client.Stream, "--mode: %s does not work with --transport stream", c.Mode),
		unless(!pushed || c.Mode == client.Batch, "--mode: works only with polls, not with --transport %s", c.Transport),
		unless(!pushed || !c.Stateless, "--stateless: works only with polls, not with --transport %s", c.Transport),
		unless(slices.Contains(client.Formats(), c.Format), "--format: %q: use json or cbor", c.Format),
		unless(own || c.Format == client.JSON, "--format: works only with --dialect pubsubd"),
		unless(c.Transport != client.SSE || c.Format == client.JSON, "--format: --transport sse supports only json"),
		unless(!c.Voices || own && c.Transport == client.WebSocket, "--publish-on-socket: works only with --transport websocket"),
		unless(!c.Voices || c.Crew.size() == 0, "--publish-on-socket: does not work with agents, whose clients do not publish"),
	)
}

// checkSilent is for scenarios whose clients do not publish.
func (c *Common) checkSilent() error {
	return unless(!c.Voices, "--publish-on-socket: the clients of this test do not publish")
}

func checkPath(flag, path string, needed, allowed bool) error {
	switch {
	case path == "":
		return unless(!needed, "%s: is missing: this dialect needs it, such as /topics/{topic}", flag)
	case !allowed:
		return fmt.Errorf("%s: has no effect with this dialect", flag)
	}
	return unless(strings.HasPrefix(path, "/") && strings.Contains(path, "{topic}") && isHeaderText(path),
		"%s: must begin with a slash and contain {topic}; got %q", flag, path)
}

// isHeaderText reports whether s is printable ASCII without spaces, and not empty.
func isHeaderText(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// dialect returns what the dialect is made of.
func (c *Common) dialect(authority, contentType string) client.Options {
	return client.Options{
		Dialect: c.Dialect, Authority: authority, ContentType: contentType,
		Transport: c.Transport, Format: c.Format, Mode: c.Mode, Stateless: c.Stateless, Subscriptions: c.Subscriptions,
		SubscribePath: c.SubscribePath, PublishPath: c.PublishPath, APIKey: c.APIKey, Token: c.Token,
	}
}

// modeName says how messages came.
func (c *Common) modeName() string {
	switch {
	case c.Dialect != client.Pubsubd:
		return c.Dialect
	case c.Transport == "" || c.Transport == client.LongPoll:
		return string(c.Mode)
	}
	return string(c.Transport)
}

// formatName is empty for JSON, which needs not be said.
func (c *Common) formatName() string {
	if c.Format == client.JSON {
		return ""
	}
	return string(c.Format)
}

func (c *Common) checkURLs() error {
	var target, admin error
	if c.Target != "" {
		_, target = parseTarget(c.Target)
	}
	if c.Admin != "" {
		u, err := url.Parse(WithScheme(c.Admin))
		ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
		admin = unless(ok, "--admin %q: write host:port or http://host:port", c.Admin)
	}
	return errors.Join(target, admin)
}

// mostClients bounds topics, clients, and their product, far above what one
// machine can open.
const mostClients = 10_000_000

func checkClients(topics, perTopic int) error {
	err := errors.Join(
		unless(topics > 0 && topics <= mostClients, "--topics: must be 1 to %d; got %d", mostClients, topics),
		unless(perTopic > 0 && perTopic <= mostClients, "--clients-per-topic: must be 1 to %d; got %d", mostClients, perTopic),
	)
	if err != nil {
		return err
	}
	return unless(topics*perTopic <= mostClients, "--topics: %d topics with %d clients each are more than %d clients", topics, perTopic, mostClients)
}

// publishers returns how many connections to open first and at most.
func (c *Common) publishers(s shape) (first, most int) {
	if c.Voices {
		return 0, 0
	}
	first = min(c.Publishers, s.publishes)
	return first, max(min(c.MaxPublishers, s.clients()), first)
}

func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
