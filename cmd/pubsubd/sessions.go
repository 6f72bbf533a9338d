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
		Short: "List the sessions and connections that lag most, and the reason",
		Long: `List open sessions and connections, beginning with the largest lag, which is the number
of messages in the session's topics that were not sent to it. The list shows the lag, the
topic with the largest share of it, and what the session waits for:

  ack      the client must acknowledge frames before the daemon sends more
  poll     the client does not poll
  reader   the client polls, but does not read what the daemon sends
  history  the session is catching up from the history of its topics
  rate     the next message is too early for the session's max_rate

Sessions are numbered in the order in which they opened. The list does not show their
ids, because anyone who knows the id of a session can receive its messages.

The list also has connections without a session: WebSockets, TCP connections and event
streams. CLIENT shows the transport, the client's address and its User-Agent, such as
that of pubsubd subscribe. The list does not show stateless polls, but its last
line counts them, and shows which daemon answered.`,
		Args: usageArgs(cobra.NoArgs),
	}
	f := cmd.Flags()
	s.admin = bindAdmin(f)
	f.BoolVar(&s.json, "json", false, "print the list as the daemon sends it, as JSON")
	f.StringVar(&s.sort, "sort", "lag", "order: lag, largest lag first; idle, longest time without a poll first")
	f.IntVar(&s.limit, "limit", 100, "largest number of sessions to list, 1 to 1000")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "time limit of the request")
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
		return usageError{fmt.Errorf("--limit must be 1 to 1000; got %d", s.limit)}
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
	fmt.Fprintf(table, "%d of %d sessions and connections; %d stateless polls; at %s\n", len(list.Sessions), list.Open+list.Connections, list.Stateless-list.Connections, s.admin.typed())
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
