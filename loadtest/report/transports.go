package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pubsubd/pubsubd/loadtest/transports"
)

// TransportsTable writes a measurement of the transports as plain text: a row for
// each, then the ratios beside those of the article. The error is the writer's.
func TransportsTable(w io.Writer, r transports.Result) error {
	b := &strings.Builder{}
	writeTransports(b, r.Rows)
	writeTransportRatios(b, r.Ratios)
	writeTransportsDetails(b, &r)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeTransports(b *strings.Builder, rows []transports.Row) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, strings.Join([]string{
		"way", "transport", "format", "messages/s", "stdev", "min", "max", "server µs", "client µs", "publisher µs",
		"bytes in", "bytes out", "loss", "dup", "disorder", "gaps", "client busy", "",
	}, "\t"))
	for i := range rows {
		fmt.Fprintln(t, strings.Join(transportCells(&rows[i]), "\t"))
	}
	_ = t.Flush() // a Builder takes everything
	b.WriteString("(µs: CPU time per message; bytes: per message, in: received by the client; client busy: share of the available CPU time\n" +
		"that the client used; *: client-bound, the client was the limit, not the server)\n\n")
}

func transportCells(r *transports.Row) []string {
	busy := fmt.Sprintf("%.0f %%", 100*r.ClientBusy)
	if r.ClientBound {
		busy = "* " + busy
	}
	cells := []string{r.Way, r.Transport, r.Format}
	for _, v := range []float64{r.PerSecond.Mean, r.PerSecond.Stdev, r.PerSecond.Min, r.PerSecond.Max} {
		cells = append(cells, Number(v))
	}
	for _, v := range []float64{r.ServerUS.Mean, r.ClientUS.Mean, r.PublisherUS.Mean} {
		cells = append(cells, fmt.Sprintf("%.3f", v))
	}
	return append(cells, fmt.Sprintf("%.1f", r.BytesIn), fmt.Sprintf("%.1f", r.BytesOut),
		fmt.Sprint(r.Lost), fmt.Sprint(r.Duplicates), fmt.Sprint(r.Disordered), fmt.Sprint(r.Gaps), busy, "")
}

func writeTransportRatios(b *strings.Builder, ratios []transports.Ratio) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "way\tratio\tours\tstdev\tmin\tmax\ttheirs\twanted\t\t")
	for i := range ratios {
		r := &ratios[i]
		cells := []string{r.Way, r.Name}
		for _, v := range []float64{r.Value, r.Rounds.Stdev, r.Rounds.Min, r.Rounds.Max} {
			cells = append(cells, fmt.Sprintf("%.3f", v))
		}
		fmt.Fprintln(t, strings.Join(append(cells, orNothing(r.Theirs), orNothing(r.Want), remark(r), ""), "\t"))
	}
	_ = t.Flush() // a Builder takes everything
	b.WriteString("(ours: ratio of the means; stdev, min and max: of the rounds; wanted: at least; theirs: \"Comparison of HTTP polling\n" +
		"duplex and net.tcp performance in Silverlight 4 RC\", one client, two cores of 2.26 GHz)\n\n")
}

// orNothing is a figure, or nothing where there is none.
func orNothing(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%g", v)
}

func remark(r *transports.Ratio) string {
	var words []string
	if r.Want > 0 {
		words = append(words, map[bool]string{true: "reached", false: "below"}[r.Met()])
	}
	if r.Bound {
		words = append(words, "client-bound")
	}
	return strings.Join(words, ", ")
}

func writeTransportsDetails(b *strings.Builder, r *transports.Result) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	p := &r.Parameters
	line("scenario", "transports: %d clients, %d messages each, %d where each message needs a request; %d repeats",
		p.Clients, p.Messages, p.SingleMessages, p.Repeats)
	line("target", "%s%s", p.Target, startedText(p.StartedServer))
	if len(p.ServerFlags) > 0 {
		line("", "with %s", strings.Join(p.ServerFlags, " "))
	}
	line("message", "20 short strings: %d bytes as JSON, %d as CBOR; published as JSON", r.Payload.JSON, r.Payload.CBOR)
	writeWhy(r, line)
	e := r.Environment
	line("machine", "%d cores, GOMAXPROCS %d, %s %s/%s", e.Cores, e.GOMAXPROCS, e.GoVersion, e.OS, e.Arch)
	line("took", "%.0f s", r.TookS)
	switch {
	case len(r.Failed) > 0:
		line("verdict", "FAILED")
	case len(r.Missed) > 0:
		line("verdict", "MISSED")
	default:
		line("verdict", "ok")
	}
	for _, reason := range append(append([]string{}, r.Failed...), r.Missed...) {
		line("", "%s", reason)
	}
	_ = t.Flush() // a Builder takes everything
}

// writeWhy explains why ratios differ from the article's.
func writeWhy(r *transports.Result, line lineWriter) {
	p := &r.Payload
	line("why", "many ÷ one: in the article, each poll crossed the browser's UI thread; here %s", pollCost(r.Rows))
	line("", "bytes: in the article, text was XML; here the strings are %d of the %d bytes of a message in JSON, and of the %d bytes in CBOR", p.Text, p.JSON, p.CBOR)
	line("", "binary ÷ text: the server encodes a message once in each format, so binary saves only the bytes to send")
	if r.PublishPerSecond > 0 {
		line("", "live: a client cannot receive more than is published; without subscribers, the server accepted %s messages/s, 1000 with each request", Number(r.PublishPerSecond))
	}
}

// pollCost is what one poll takes, beside the bare loop.
func pollCost(rows []transports.Row) string {
	took := func(transport string) float64 {
		for i := range rows {
			if r := &rows[i]; r.Transport == transport && r.Way == transports.Filled && r.PerSecond.Mean > 0 {
				return 1e6 / r.PerSecond.Mean
			}
		}
		return 0
	}
	poll, loop := took(transports.Single), took(transports.BareLoop)
	if poll == 0 || loop == 0 {
		return "a poll is only a request and its answer on an open connection"
	}
	return fmt.Sprintf("a poll takes %s µs, of which a bare request and answer take %s", Number(poll), Number(loop))
}

// TransportsBars draws messages a second, a group of bars for each transport, over a
// logarithmic axis as the article does.
func TransportsBars(r transports.Result) Bars {
	title := "Messages per second to one client"
	if n := r.Parameters.Clients; n > 1 {
		title = fmt.Sprintf("Messages per second to %d clients together", n)
	}
	bars := Bars{Title: title + ", of 20 short strings (logarithmic)", Unit: "/s", Log: true}
	for _, way := range transports.Ways() {
		for _, format := range transports.Formats() {
			bars.Series = append(bars.Series, format+", "+way)
		}
	}
	for i := range r.Rows {
		bars.addRow(&r.Rows[i])
	}
	return bars
}

// addRow puts a row into the group of its transport.
func (c *Bars) addRow(r *transports.Row) {
	at := slices.IndexFunc(c.Groups, func(g Group) bool { return g.Name == r.Transport })
	if at < 0 {
		at = len(c.Groups)
		c.Groups = append(c.Groups, Group{r.Transport, make([]float64, len(c.Series))})
		c.Spreads = append(c.Spreads, make([]Spread, len(c.Series)))
	}
	series := slices.Index(c.Series, r.Format+", "+r.Way)
	c.Groups[at].Values[series] = r.PerSecond.Mean
	c.Spreads[at][series] = Spread{r.PerSecond.Min, r.PerSecond.Max, r.ClientBound}
}

// TransportsHTML writes a measurement as a page that needs nothing else. The error
// is the writer's.
func TransportsHTML(w io.Writer, r transports.Result) error {
	var table strings.Builder
	_ = TransportsTable(&table, r) // a Builder takes everything
	return writePage(w, "pubsubd loadtest transports", r.Started, table.String(), []drawing{TransportsBars(r)})
}
