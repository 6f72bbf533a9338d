package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// jsonType is what is published unless --type says otherwise.
const jsonType = "application/json"

func publishCommand() *cobra.Command {
	p := publishing{}
	cmd := &cobra.Command{
		Use:   "publish TOPIC [DATA|-]",
		Short: "Publish a message, or each line of standard input",
		Long: `Publish DATA, or standard input (with -, or without DATA in a pipe), and print the
position of the message. The data is JSON, unless --type names another media type.

The command retries until --timeout while the daemon restarts or is overloaded. If the
connection breaks before the answer, the message may have been published, so the command
fails, unless --idempotency-key makes a retry safe.

With --lines, publish each line of standard input as a message, in order, and print the
number of messages at the end. Each line waits for the answer to the line before. When a
line fails, or on SIGINT or SIGTERM, the exit code is 1, and all lines before it are
published but none after. A line ends with LF or CR LF. The command skips empty
lines if the data is JSON, and a byte order mark before the first line.

With --idempotency-key, a publish that is repeated within the server's idempotency.window
(two minutes by default) gets the first answer again, and is not published twice. With
--lines, the key of each line is KEY:N, where N is the number of the line, so that you
can repeat the whole command.`,
		Example: `  pubsubd publish prices.acme '{"price": 41.50}'
  echo 'closing bell' | pubsubd publish news --type text/plain
  pubsubd publish prices.acme --lines < prices.ndjson`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
	}
	f := cmd.Flags()
	p.server = bindServer(f)
	cmd.ValidArgsFunction = completeTopics(p.server, 1)
	f.StringVar(&p.mediaType, "type", jsonType, "media type of the data")
	f.StringVar(&p.key, "key", "", "key for conflation: of two messages with the same key, the newer may replace the older")
	f.DurationVar(&p.ttl, "ttl", 0, "time to live: the message expires after this time; whole seconds; 0 means when the topic's history drops it")
	f.StringVar(&p.client, "client", "", "client id of the publisher; subscribers with this id can leave the message out")
	f.StringVar(&p.idempotencyKey, "idempotency-key", "", "idempotency key: a publish that is repeated within idempotency.window is published once")
	f.BoolVar(&p.lines, "lines", false, "publish each line of standard input as a message")
	f.DurationVar(&p.timeout, "timeout", 10*time.Second, "time limit for each message")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p.in, p.out, p.notes = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		return p.run(args)
	}
	return cmd
}

// publishing is what the command line asks for.
type publishing struct {
	server         *address
	mediaType      string
	key            string
	ttl            time.Duration
	client         string
	idempotencyKey string
	lines          bool
	timeout        time.Duration

	in         io.Reader
	out, notes io.Writer

	daemon    *pubsub.Client
	topic     string
	published int // messages
}

func (p *publishing) run(args []string) error {
	if err := p.check(args); err != nil {
		return usageError{err}
	}
	var err error
	notify := func(err error, wait time.Duration) {
		fmt.Fprintf(p.notes, "pubsubd: %v; retrying in %v\n", err, wait.Round(time.Millisecond))
	}
	if p.daemon, err = p.server.client(pubsub.WithPublishRetry(p.timeout), pubsub.WithPublishRetryNotify(notify)); err != nil {
		return err
	}
	defer p.daemon.Close()
	if p.lines {
		return p.publishLines()
	}
	body, err := p.data(args[1:])
	if err == nil {
		err = p.checkData(body)
	}
	if err != nil {
		return usageError{err}
	}
	return p.publish(body, p.idempotencyKey)
}

func (p *publishing) check(args []string) error {
	p.topic = args[0]
	_, _, err := wire.ParseType(p.mediaType)
	switch {
	case err != nil:
		return fmt.Errorf("--type: %w: name one such as text/plain", err)
	case p.ttl < 0 || p.ttl%time.Second != 0:
		return fmt.Errorf("--ttl %v: use whole seconds, such as 30s", p.ttl)
	case p.client != "" && wire.CheckClient(p.client) != nil:
		return fmt.Errorf("--client: %w", wire.CheckClient(p.client))
	case p.idempotencyKey != "" && wire.CheckID(p.idempotencyKey) != nil:
		return fmt.Errorf("--idempotency-key: %w", wire.CheckID(p.idempotencyKey))
	case p.lines && len(args) == 2 && args[1] != "-":
		return errors.New("--lines reads the messages from standard input: omit DATA")
	}
	return wire.CheckTopic(p.topic)
}

// maxDataBytes is the largest message that a daemon can be set to take.
const maxDataBytes = 8 << 20

// data returns what to publish: the argument, or all of standard input.
func (p *publishing) data(args []string) ([]byte, error) {
	switch {
	case len(args) == 1 && args[0] != "-":
		return []byte(args[0]), nil
	case len(args) == 0 && isTerminal(p.in):
		return nil, errors.New("there is nothing to publish: give DATA, or - to type it and end it with Ctrl-D")
	}
	body, err := io.ReadAll(io.LimitReader(p.in, maxDataBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("standard input: %w", err)
	case len(body) > maxDataBytes:
		return nil, fmt.Errorf("standard input must have at most %d bytes, the limit of a message: use --lines to publish each line", maxDataBytes)
	}
	return body, nil
}

// isTerminal reports whether someone would have to type what is read. It holds for
// /dev/null, too, where there is nothing to read either.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	state, err := f.Stat()
	return err == nil && state.Mode()&os.ModeCharDevice != 0
}

// isJSON reports whether the data is published as JSON.
func (p *publishing) isJSON() bool {
	mediaType, _, _ := mime.ParseMediaType(p.mediaType) // was checked
	return mediaType == jsonType
}

// checkData finds out what the daemon would refuse, in the words of this command.
func (p *publishing) checkData(body []byte) error {
	if !p.isJSON() {
		return nil
	}
	if _, err := wire.CompactJSON(body); err != nil {
		return fmt.Errorf("%w: for data that is not JSON, use --type text/plain", err)
	}
	return nil
}

// publish publishes one message and prints its position.
func (p *publishing) publish(body []byte, idempotencyKey string) error {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	published, err := p.daemon.Publish(ctx, p.topic, p.mediaType, body, p.options(idempotencyKey)...)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("publish %q: no answer within %v; the message may be published or not; raise --timeout", p.topic, p.timeout)
	case errors.Is(err, pubsub.ErrOutcomeUnknown) && idempotencyKey == "":
		return fmt.Errorf("%w; with --idempotency-key the command retries, and the message is published once", p.server.unreached(err))
	case err != nil:
		return p.server.unreached(err)
	}
	p.published++
	_, err = fmt.Fprintln(p.out, published.Position)
	return err
}

func (p *publishing) options(idempotencyKey string) []pubsub.PublishOption {
	options := []pubsub.PublishOption{pubsub.WithKey(p.key)}
	if p.ttl > 0 {
		options = append(options, pubsub.WithTTL(p.ttl))
	}
	if p.client != "" {
		options = append(options, pubsub.WithClient(p.client))
	}
	if idempotencyKey != "" {
		options = append(options, pubsub.WithIdempotencyKey(idempotencyKey))
	}
	return options
}

// publishLines publishes each line, and prints how many were published. After a signal it still
// waits for the answer to the line in flight, so that the number is exact.
func (p *publishing) publishLines() error {
	ctx, stop := untilSignal(endings()...)
	defer stop()
	defer func() { fmt.Fprintln(p.notes, "pubsubd: messages published:", p.published) }()
	scanner := bufio.NewScanner(p.in)
	scanner.Buffer(nil, maxDataBytes)
	lines := make(chan []byte)
	go func() { // a signal cannot end a read of standard input: this may last as long as the process
		defer close(lines)
		skip := []byte(config.ByteOrderMark) // before the first line
		for ; scanner.Scan(); skip = nil {
			lines <- bytes.Clone(bytes.TrimPrefix(scanner.Bytes(), skip))
		}
	}()
	number := 0
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case line, more := <-lines:
			number++
			if !more {
				return ofLine(number, scanner.Err())
			}
			if err := p.publishLine(line, number); err != nil {
				return ofLine(number, err)
			}
		}
	}
	return fmt.Errorf("interrupted: line %d and the lines after it are not published", number+1)
}

// ofLine adds to an error the number of the line.
func ofLine(number int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("line %d must have at most %d bytes, the limit of a message", number, maxDataBytes)
	}
	return fmt.Errorf("line %d: %w", number, err)
}

// publishLine publishes a line, unless it is JSON and empty.
func (p *publishing) publishLine(line []byte, number int) error {
	if p.isJSON() && len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	if err := p.checkData(line); err != nil {
		return err
	}
	key := ""
	if p.idempotencyKey != "" {
		key = p.idempotencyKey + ":" + strconv.Itoa(number)
	}
	return p.publish(line, key)
}
