package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/pubsubd/pubsubd/loadtest"
)

// articleBroadcast is what "Performance of HTTP polling duplex server-side channel
// in Microsoft Silverlight 3" (2009) states of its broadcast experiment, measured
// on four processors, clients on machines of their own; the rest is a picture.
var articleBroadcast = Line{
	Name:   "Silverlight 3 article, 4 processors",
	Points: []Dot{{X: 10, Y: 5000}},
	Loose:  true,
}

// SearchTable writes a search as plain text: one row for each period, then what
// limited it and what was tried. The error is the writer's.
func SearchTable(w io.Writer, r loadtest.SearchResult) error {
	b := &strings.Builder{}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, strings.Join([]string{"P s", "clients", "the article", "p99 ms", "slowest burst ms", "CPU µs/delivery", "limited by", ""}, "\t"))
	for i := range r.Points {
		fmt.Fprintln(t, strings.Join(searchRow(&r.Points[i]), "\t"))
	}
	_ = t.Flush() // a Builder takes everything
	fmt.Fprintf(b, "(P: period; clients: the most clients, to %[2]s, for which each of %[1]d bursts was complete before the next one\n"+
		"was due, with nothing lost or out of order, found with %[3]d bursts and confirmed with %[1]d; the article: 5000 at\n"+
		"10 s on 4 processors, \"Performance of HTTP polling duplex server-side channel in Microsoft Silverlight 3\")\n\n",
		r.Bursts, fmt.Sprintf("%.0f %%", 100*r.Precision), r.Exploring)
	writeSearchDetails(b, &r)
	_, err := io.WriteString(w, b.String())
	return err
}

func searchRow(p *loadtest.SearchPoint) []string {
	article := ""
	for _, d := range articleBroadcast.Points {
		if d.X == p.PeriodMS/1000 {
			article = fmt.Sprint(d.Y)
		}
	}
	p99, slowest, cpu := "", "", ""
	if r := p.Result; r != nil {
		p99 = milliseconds(r.Latency.P99MS)
		if r.Bursts != nil {
			slowest = milliseconds(r.Bursts.Completion.MaxMS)
		}
		if r.Server != nil && r.Server.CPUSource != "" {
			cpu = fmt.Sprintf("%.1f", r.Server.CPUPerDeliveryUS)
		}
	}
	return []string{fmt.Sprint(p.PeriodMS / 1000), fmt.Sprint(p.Clients), article, p99, slowest, cpu, p.LimitedBy, ""}
}

func writeSearchDetails(b *strings.Builder, r *loadtest.SearchResult) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	message := "20 short strings"
	if r.MessageBytes > 0 {
		message = fmt.Sprintf("%d bytes", r.MessageBytes)
	}
	line("scenario", "broadcast, %s, %d topics, messages of %s", spoken(loadtest.Parameters{
		Dialect: r.Dialect, Mode: r.Mode, Format: r.Format, Stateless: r.Stateless, Subscriptions: r.Subscriptions,
	}), r.Topics, message)
	e := r.Environment
	line("machine", "%d cores, GOMAXPROCS %d, %s %s/%s", e.Cores, e.GOMAXPROCS, e.GoVersion, e.OS, e.Arch)
	for i := range r.Points {
		p := &r.Points[i]
		line(fmt.Sprintf("%g s", p.PeriodMS/1000), "limited by %s: %s", p.LimitedBy, p.Reason)
		line("", "tried %s", trials(p.Trials))
	}
	_ = t.Flush() // a Builder takes everything
}

func trials(all []loadtest.Trial) string {
	words := make([]string, len(all))
	for i, t := range all {
		held := "failed"
		if t.Held {
			held = "passed"
		}
		words[i] = fmt.Sprintf("%d × %d %s", t.Clients, t.Bursts, held)
	}
	return strings.Join(words, ", ")
}

// SearchChart draws clients against period. What the generator or open files
// limited is hollow: the server might have held more.
func SearchChart(r loadtest.SearchResult) Chart {
	found := Line{Name: fmt.Sprintf("pubsubd, %d processors", r.Environment.Cores)}
	for _, p := range r.Points {
		found.Points = append(found.Points, Dot{
			X: p.PeriodMS / 1000, Y: float64(p.Clients),
			Doubtful: p.LimitedBy != loadtest.LimitServer, Note: ", limited by " + p.LimitedBy,
		})
	}
	return Chart{
		Title:  fmt.Sprintf("Clients that receive every burst in time, over %d bursts", r.Bursts),
		X:      Axis{Label: "period between bursts, s", Log: true},
		Y:      Axis{Label: "clients (hollow: the server was not the limit)", Log: true},
		Series: []Line{found, articleBroadcast},
	}
}
