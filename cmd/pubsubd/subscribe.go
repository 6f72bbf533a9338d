package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func subscribeCommand() *cobra.Command {
	s := subscribing{}
	cmd := &cobra.Command{
		Use:   "subscribe TOPIC...",
		Short: "Print the messages of topics as they arrive",
		Long: `Print the messages of topics until SIGINT or SIGTERM. The command reconnects when the
connection breaks or the daemon restarts.

On standard error, the command first prints the daemon's address, the transport and the
position at which each topic begins. It then reports gaps there, unless --json prints
them as frames among the others, and at the end the positions from which to resume.

A subscription begins with the next message, unless you write topic@oldest,
topic@newest-50 or topic@epoch:offset, or set --from. Instead of a topic you can write a
pattern: in 'chat.*', * matches one segment, and in 'prices.>', > matches one or more.`,
		Example: `  pubsubd subscribe prices.acme
  pubsubd subscribe prices.acme news --from oldest --json
  pubsubd subscribe 'chat.*' --from newest-50
  pubsubd subscribe prices.acme@k3x9f2ab:17 --count 1 --timeout 30s`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
	}
	f := cmd.Flags()
	s.server, s.carriage = bindServer(f), bindCarriage(cmd, f)
	cmd.ValidArgsFunction = completeTopics(s.server, 0)
	f.StringArrayVar(&s.from, "from", nil, "oldest: begin with the oldest message that is kept; newest-50: begin with the newest 50 of each topic; a position: begin after it, for its topic")
	f.BoolVar(&s.json, "json", false, "print frames as in the protocol, one on each line")
	f.IntVar(&s.count, "count", 0, "end after this number of messages; 0 means never")
	f.DurationVar(&s.timeout, "timeout", 0, "end after this time; fail if there was no connection, or fewer than --count messages have arrived; 0 means never")
	f.StringVar(&s.client, "client", "", "client id of the subscriber, for --no-echo")
	f.BoolVar(&s.noEcho, "no-echo", false, "leave out messages published with the id of --client")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.out, s.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
		return s.run(args)
	}
	return cmd
}

// subscribing is what the command line asks for.
type subscribing struct {
	server   *address
	carriage *carriage
	from     []string
	json     bool
	count    int
	timeout  time.Duration
	client   string
	noEcho   bool

	out, notes io.Writer
	came       int // messages
}

func (s *subscribing) run(args []string) error {
	starts, err := s.check(args)
	if err != nil {
		return usageError{err}
	}
	reach, err := s.carriage.reach(s.server)
	if err != nil {
		return err
	}
	client, err := s.server.client(append(reach, pubsub.WithUserAgent("pubsubd/"+versionText()+" subscribe"))...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := untilSignal(endings()...)
	defer stop()
	return s.subscribe(ctx, client, starts)
}

func (s *subscribing) check(args []string) ([]wire.Start, error) {
	switch {
	case s.count < 0:
		return nil, fmt.Errorf("--count must be at least 0; got %d", s.count)
	case s.timeout < 0:
		return nil, fmt.Errorf("--timeout must be at least 0; got %v", s.timeout)
	case s.noEcho && s.client == "":
		return nil, errors.New("--no-echo needs --client, the id of the publisher to leave out")
	case s.client != "" && wire.CheckClient(s.client) != nil:
		return nil, fmt.Errorf("--client: %w", wire.CheckClient(s.client))
	}
	if err := s.carriage.check(); err != nil {
		return nil, err
	}
	return s.starts(args)
}

// starts returns where each topic begins: where it says itself, else where --from
// says.
func (s *subscribing) starts(args []string) ([]wire.Start, error) {
	starts := make([]wire.Start, len(args))
	for i, text := range args {
		var err error
		if starts[i], err = wire.ParseStart(text); err != nil {
			return nil, err
		}
	}
	for _, text := range s.from {
		if err := moveStarts(starts, text); err != nil {
			return nil, fmt.Errorf("--from %s: %w", text, err)
		}
	}
	return starts, nil
}

// moveStarts has the topics that begin now begin where from says.
func moveStarts(starts []wire.Start, from string) error {
	if from == "oldest" || strings.HasPrefix(from, "newest-") {
		for i, start := range starts {
			if start.From != wire.FromNow {
				continue
			}
			var err error
			if starts[i], err = wire.ParseStart(start.Topic + "@" + from); err != nil {
				return err
			}
		}
		return nil
	}
	position, err := wire.ParsePosition(from)
	if err != nil {
		return fmt.Errorf("%w; or oldest, or newest-50", err)
	}
	found := false
	for i, start := range starts {
		if start.From == wire.FromNow && start.Topic == position.Topic {
			starts[i], found = wire.StartAfter(position), true
		}
	}
	if !found {
		return fmt.Errorf("no topic %s to begin after this position: name the topic without a position, or omit --from", position.Topic)
	}
	return nil
}

// errTimeout ends a subscription after --timeout. Only a subscription that was never
// connected shows it.
var errTimeout = errors.New("no connection within --timeout")

// subscribe prints what comes until ctx ends, and then where to go on.
func (s *subscribing) subscribe(ctx context.Context, client *pubsub.Client, starts []wire.Start) error {
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.timeout, errTimeout)
		defer cancel()
	}
	sub, err := client.Subscribe(ctx, starts, s.options()...)
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return s.carriage.unreached(s.server, err)
	case err != nil:
		return s.ended(ctx, s.carriage.unreached(s.server, err))
	}
	defer sub.Close()
	fmt.Fprintf(s.notes, "pubsubd: subscribed at %s over %s, after %s\n", s.server.typed(), sub.Transport(), positions(sub.Positions()))
	err = s.print(ctx, sub)
	if isClosedOutput(err) {
		return nil // nobody reads on, so nobody goes on
	}
	fmt.Fprintln(s.notes, "pubsubd: to resume from here:", positions(sub.Positions()))
	return s.ended(ctx, err)
}

func (s *subscribing) options() []pubsub.SubscribeOption {
	options := append(s.carriage.options(), pubsub.WithRetryNotify(s.notifyRetry))
	if s.noEcho {
		options = append(options, pubsub.WithoutOwn(s.client))
	}
	return options
}

// ended returns what a subscription that ended with err comes to: an end that was
// asked for is none.
func (s *subscribing) ended(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil:
		return err
	case s.came < s.count && errors.Is(context.Cause(ctx), errTimeout):
		return fmt.Errorf("%d of %d messages arrived within %v", s.came, s.count, s.timeout)
	}
	return nil
}

// print prints items until there are enough.
func (s *subscribing) print(ctx context.Context, sub *pubsub.Subscription) error {
	for s.count == 0 || s.came < s.count {
		item, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if item.Message != nil {
			s.came++
		}
		if err := s.printItem(item); err != nil {
			return err
		}
	}
	return nil
}

func (s *subscribing) printItem(item pubsub.Item) error {
	var err error
	switch {
	case s.json && item.Gap != nil:
		_, err = s.out.Write(wire.Content{Gap: item.Gap}.AppendJSON(nil))
	case s.json:
		_, err = s.out.Write(wire.Content{Message: item.Message}.AppendJSON(nil))
	case item.Gap != nil:
		fmt.Fprintf(s.notes, "pubsubd: gap (%s): %v\n", item.Gap.Reason, item.Gap)
	default:
		_, err = fmt.Fprintln(s.out, line(item.Message))
	}
	return err
}

// line is a message for people: where, when and what.
func line(m *wire.Message) string {
	at := time.UnixMilli(m.Time).Format("15:04:05.000")
	words := []string{m.Position.String(), at}
	if m.Key != "" {
		words = append(words, "key="+printable(m.Key))
	}
	payload := printable(string(m.Data))
	if m.Type != "" && !m.IsText() {
		payload = fmt.Sprintf("(%s, %d bytes)", printable(m.Type), len(m.Data))
	}
	return strings.Join(append(words, payload), "  ")
}

func (s *subscribing) notifyRetry(err error, wait time.Duration) {
	fmt.Fprintf(s.notes, "pubsubd: %v; retrying in %v\n", err, wait.Round(time.Millisecond))
}

// positions lists positions as arguments of another subscribe. A shell would read the
// wildcards of patterns.
func positions(list []wire.Position) string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = p.String()
		if wire.IsPattern(p.Topic) {
			words[i] = "'" + words[i] + "'"
		}
	}
	return strings.Join(words, " ")
}
