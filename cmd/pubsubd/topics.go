package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func topicsCommand() *cobra.Command {
	t := topicsListing{}
	cmd := &cobra.Command{
		Use:   "topics",
		Short: "List topics: newest offset, history, subscriptions",
		Long: `List topics by name, with the offset of the newest message and the number of
subscriptions. For the history, show the number of messages and bytes, and the age of
the newest message.`,
		Example: `  pubsubd topics --prefix prices.
  pubsubd topics --json | jq -r 'select(.subscriptions == 0).topic'`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	t.server = bindServer(f)
	f.StringVar(&t.prefix, "prefix", "", "list only topics whose names begin with this text")
	f.BoolVar(&t.json, "json", false, "print each topic's state as the daemon sends it, one on each line")
	f.DurationVar(&t.timeout, "timeout", 10*time.Second, "time limit for each page of 1000 topics")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t.out = cmd.OutOrStdout()
		return t.run()
	}
	cmd.AddCommand(deleteTopicCommand())
	return cmd
}

// topicsListing is what the command line asks for.
type topicsListing struct {
	server  *address
	prefix  string
	json    bool
	timeout time.Duration
	out     io.Writer
}

func (t *topicsListing) run() error {
	base, err := t.server.url()
	if err != nil {
		return err
	}
	show := t.table()
	if t.json {
		show = t.lines
	}
	after := before(t.prefix)
	for {
		page, err := t.page(base, after)
		if err != nil {
			return err
		}
		topics, all := t.withPrefix(page.Topics)
		if err := show(topics); err != nil {
			return err
		}
		if page.Next == "" || !all {
			return nil
		}
		after = page.Next
	}
}

// before returns a text that comes before all names that begin with prefix, and
// after all names that come before those: '~' comes after what names are made of.
func before(prefix string) string {
	if prefix == "" {
		return ""
	}
	last := len(prefix) - 1
	return prefix[:last] + string(rune(prefix[last]-1)) + "~"
}

// topicsPage is as many topics as the daemon gives at a time.
const topicsPage = 1000

func (t *topicsListing) page(base *url.URL, after string) (wire.TopicList, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	u := base.JoinPath("v1/topics")
	query := url.Values{"limit": {strconv.Itoa(topicsPage)}}
	if after != "" {
		query.Set("after", after)
	}
	u.RawQuery = query.Encode()
	var page wire.TopicList
	err := t.server.ask(ctx, http.MethodGet, u, &page)
	return page, err
}

// completeTimeout bounds how long a shell waits for names of topics.
const completeTimeout = time.Second

// completeTopics completes the first arguments of a command, or all if most is 0, with names
// of topics. It asks the daemon. Without an answer it completes nothing.
func completeTopics(server *address, most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		t := topicsListing{server: server, prefix: begun, timeout: completeTimeout}
		base, err := server.url()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		page, err := t.page(base, before(begun))
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		topics, _ := t.withPrefix(page.Topics)
		var names []string
		for _, topic := range topics {
			names = append(names, topic.Topic)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// withPrefix returns those of a page that are asked for, and whether that is all of
// it: in the order of names those with a prefix stand together.
func (t *topicsListing) withPrefix(topics []wire.TopicState) (some []wire.TopicState, all bool) {
	for i, topic := range topics {
		if !strings.HasPrefix(topic.Topic, t.prefix) {
			return topics[:i], false
		}
	}
	return topics, true
}

func (t *topicsListing) lines(topics []wire.TopicState) error {
	lines := json.NewEncoder(t.out)
	for _, topic := range topics {
		if err := lines.Encode(topic); err != nil {
			return err
		}
	}
	return nil
}

// table shows page after page under one head.
func (t *topicsListing) table() func(topics []wire.TopicState) error {
	table := newTable(t.out)
	fmt.Fprintln(table, "TOPIC\tOFFSET\tMESSAGES\tBYTES\tSUBSCRIPTIONS\tNEWEST")
	return func(topics []wire.TopicState) error {
		for _, topic := range topics {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%s\n", topic.Topic, topic.Position.Offset, topic.Messages, topic.Bytes, topic.Subscriptions, newest(topic))
		}
		return table.Flush()
	}
}

func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// newest tells how long ago the newest message was published, by this machine's
// clock.
func newest(t wire.TopicState) string {
	if t.Time == 0 {
		return "-"
	}
	return roughly(time.Since(time.UnixMilli(t.Time))) + " ago"
}

// roughly writes a time in whole seconds.
func roughly(d time.Duration) string { return max(0, d).Round(time.Second).String() }

func deleteTopicCommand() *cobra.Command {
	var server *address
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete TOPIC",
		Short: "Delete a topic's history",
		Long: `Delete a topic's history. Its subscribers get a gap with the reason "deleted" and stay
subscribed, and the numbering of messages continues. You cannot undo this.`,
		Args: usageArgs(cobra.ExactArgs(1)),
	}
	server = bindServer(cmd.Flags())
	cmd.ValidArgsFunction = completeTopics(server, 1)
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "time limit of the request")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		state, err := deleteTopic(server, args[0], timeout)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s is empty; it continues after %s\n", state.Topic, state.Position)
		}
		return err
	}
	return cmd
}

func deleteTopic(server *address, topic string, timeout time.Duration) (wire.TopicState, error) {
	var state wire.TopicState
	if err := wire.CheckTopic(topic); err != nil {
		return state, usageError{err}
	}
	base, err := server.url()
	if err != nil {
		return state, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err = server.ask(ctx, http.MethodDelete, base.JoinPath("v1/topics", topic), &state)
	if errors.Is(err, &wire.Problem{Code: wire.CodeMethodNotAllowed}) {
		err = fmt.Errorf("delete %q: the daemon at %s is too old to delete a history: upgrade it, or let the history expire", topic, server.typed())
	}
	return state, err
}
