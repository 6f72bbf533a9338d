package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func sessionsCommand() *cobra.Command {
	s := sessionsListing{}
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions and connections that lag most, and why",
		Long: `List open sessions and connections, those that lag most first: how many messages their topics
have that were not sent to them, in all and which topic has most, and what they
wait for:

  ack      the client has as many frames as it may have without acking them
  poll     the client does not poll
  reader   the client polls, but does not take what is sent
  history  the session is catching up from what its topics hold
  rate     what came is too early for the session's max_rate

A session is named by its number, in the order of opening. Its id would let
whoever sees it be the subscriber.

Connections without a session are listed, too: WebSockets, TCP connections and
event streams. CLIENT has the transport, the client's address and its User-Agent,
such as that of pubsubd subscribe. Stateless polls are counted, not listed.`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	s.admin = bindAdmin(f)
	f.BoolVar(&s.json, "json", false, "print the list as the daemon tells it")
	f.StringVar(&s.sort, "sort", "lag", "which come first: lag, those that lag most; idle, those that were not polled for longest")
	f.IntVar(&s.limit, "limit", 100, "at most so many, up to 1000")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long the daemon may take")
	oneOf(cmd, "sort", "lag", "idle")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.out = cmd.OutOrStdout()
		return s.run()
	}
	return cmd
}

// sessionsListing is what the command line asks for.
type sessionsListing struct {
	admin   *address
	json    bool
	sort    string
	limit   int
	timeout time.Duration
	out     io.Writer
}

func (s *sessionsListing) run() error {
	if s.limit < 1 || s.limit > 1000 {
		return usageError{fmt.Errorf("--limit %d: use 1 to 1000", s.limit)}
	}
	base, err := s.admin.url()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	u := base.JoinPath("sessions")
	u.RawQuery = url.Values{"limit": {strconv.Itoa(s.limit)}, "sort": {s.sort}}.Encode()
	var list wire.SessionList
	if err := s.admin.ask(ctx, http.MethodGet, u, &list); err != nil {
		return err
	}
	if s.json {
		return json.NewEncoder(s.out).Encode(list)
	}
	return s.table(list)
}

func (s *sessionsListing) table(list wire.SessionList) error {
	table := newTable(s.out)
	fmt.Fprintln(table, "SESSION\tAGE\tIDLE\tTOPICS\tQUEUED\tUNACKED\tLAG\tMOST\tWAITS FOR\tCLIENT")
	for _, l := range list.Sessions {
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", l.Number, roughly(milliseconds(l.AgeMS)), idle(l),
			l.Subscriptions, l.Queued, l.Unacked, l.Lag, cmp.Or(l.Worst, "-"), cmp.Or(l.Why, "-"), clientOf(l))
	}
	fmt.Fprintf(table, "%d of %d sessions and connections; %d stateless polls\n", len(list.Sessions), list.Open+list.Connections, list.Stateless-list.Connections)
	return table.Flush()
}

// clientOf tells whose connection without a session it is.
func clientOf(l wire.ListedSession) string {
	if l.Transport == "" {
		return "-"
	}
	return printable(strings.TrimSpace(l.Transport + " " + l.Address + " " + l.Agent))
}

// idle tells how long ago the last poll was.
func idle(l wire.ListedSession) string {
	switch {
	case l.Transport != "":
		return "connected"
	case l.Polling:
		return "polling"
	}
	return roughly(milliseconds(l.IdleMS))
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
