package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/encoding"
)

const encodingTitle = "The cost of an encoding from end to end"

// EncodingTable writes a comparison of encodings as plain text. The error is the
// writer's.
func EncodingTable(w io.Writer, r *encoding.Result) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s\n", encodingTitle)
	writeParagraph(b, "", encodingAbout(r))
	fmt.Fprintf(b, "%s\n", r.Example)
	writeTrips(b, r)
	writeRatios(b, r)
	writeSizes(b, r.Shapes)
	writeCosts(b, r.Shapes)
	writeEncodingNotes(b, r)
	_, err := io.WriteString(w, b.String())
	return err
}

func encodingAbout(r *encoding.Result) string {
	p := &r.Parameters
	return fmt.Sprintf("%d clients in closed loops build an array of objects and publish it. The server checks the array and sends it back to the same client "+
		"by long poll (a session with acks, mode batch, keep-alive connections). The client parses it into objects and compares them. Each encoding and size "+
		"has %d rounds of %v, in turns. The %v before each round do not count. The seed is %d. JSON is encoded with encoding/json, CBOR with "+
		"github.com/fxamacker/cbor/v2, from the same Go type. Gzip JSON is published as it is, and comes back compressed by the server, once for each message. "+
		"One object of the arrays:",
		p.Clients, p.Rounds, milli(p.DurationMS), milli(p.WarmupMS), p.Seed)
}

func milli(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func writeTrips(b *strings.Builder, r *encoding.Result) {
	if len(r.Rows) == 0 {
		return
	}
	b.WriteByte('\n')
	rows := [][]string{{
		"objects", "encoding", "round trips/s", "±", "objects/s", "bytes out", "bytes in",
		"µs server", "µs build", "µs parse", "µs rest", "% server", "% build", "% parse", "% rest", "% of the cores", "",
	}}
	for _, row := range r.Rows {
		rows = append(rows, tripsRow(r, row))
	}
	writeFilled(b, rows)
	b.WriteString("(bytes: of a round trip, with HTTP; µs: CPU time of a round trip; %: its share of the CPU time. Clients build and parse, which\n" +
		"includes decompression; rest is their other work: HTTP, sockets, comparison and the garbage collector. The kernel measures the CPU\n" +
		"time of the server and of all clients; the CPU clock of the thread measures build and parse. % of the cores: what clients and\n" +
		"server used)\n")
}

func tripsRow(r *encoding.Result, row *encoding.Row) []string {
	s, whole := row.All, row.All.Server+row.All.Client
	cells := []string{
		fmt.Sprint(row.Objects), row.Encoding, Number(row.TripsS.Mean), Number(row.TripsS.Stdev), Number(row.ObjectsS),
		fmt.Sprintf("%.0f", float64(s.BytesOut)/float64(max(s.Trips, 1))), fmt.Sprintf("%.0f", float64(s.BytesIn)/float64(max(s.Trips, 1))),
	}
	parts := []float64{s.Server, s.Build, s.Parse, s.Rest()}
	known := func(i int) bool { return parts[i] > 0 }
	for i, cpu := range parts {
		cells = append(cells, filled(known(i), "%.1f", s.MicrosPerTrip(cpu)))
	}
	for i, cpu := range parts {
		cells = append(cells, filled(known(i) && r.Parameters.ServerCPU, "%.0f", 100*cpu/whole))
	}
	return append(cells, filled(r.Parameters.ServerCPU, "%.0f", 100*s.InUse(r.Environment.Cores)), "")
}

func writeRatios(b *strings.Builder, r *encoding.Result) {
	if len(r.Ratios) == 0 {
		return
	}
	b.WriteByte('\n')
	rows := [][]string{{"objects", "÷ JSON", "round trips", "±", "theirs", "by all CPU", "by server CPU", "by client CPU", ""}}
	for _, ratio := range r.Ratios {
		rows = append(rows, []string{
			fmt.Sprint(ratio.Objects), ratio.Encoding, fmt.Sprintf("%.2f", ratio.Throughput.Mean), fmt.Sprintf("%.2f", ratio.Throughput.Stdev),
			filled(ratio.Theirs > 0, "%.2f", ratio.Theirs), filled(ratio.AllCPU > 0, "%.2f", ratio.AllCPU), filled(ratio.ServerCPU > 0, "%.2f", ratio.ServerCPU),
			filled(ratio.ClientCPU > 0, "%.2f", ratio.ClientCPU), "",
		})
	}
	writeFilled(b, rows)
	b.WriteString("(round trips: mean of the ratios of the rounds; theirs: binary ÷ text in Silverlight 3, with one server that ten machines of clients\n" +
		"saturated; by CPU: the CPU time of a round trip in JSON ÷ the CPU time in this encoding. By all CPU is the ratio of round trips if\n" +
		"the cores are full; by server CPU is the ratio for a server that is saturated, as theirs was)\n")
}

var sizeForms = []string{encoding.JSON, encoding.GzipJSON, encoding.CBOR, encoding.GzipCBOR}

func writeSizes(b *strings.Builder, shapes []encoding.Shape) {
	if len(shapes) == 0 {
		return
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "bytes\t"+strings.Join(sizeForms, "\t")+"\tof JSON: gzip JSON\tCBOR\tgzip CBOR\t")
	for i := range shapes {
		s := &shapes[i]
		cells := []string{s.Name}
		for _, form := range sizeForms {
			cells = append(cells, fmt.Sprint(s.Form(form).Bytes))
		}
		for _, form := range sizeForms[1:] {
			cells = append(cells, fmt.Sprintf("%.0f %%", 100*float64(s.Form(form).Bytes)/float64(s.Form(encoding.JSON).Bytes)))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	_ = t.Flush() // a Builder takes everything
}

func writeCosts(b *strings.Builder, shapes []encoding.Shape) {
	if len(shapes) == 0 {
		return
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "µs CPU\tJSON: encode\tdecode\tgzip\tgunzip\tCBOR: encode\tdecode\tgzip\tgunzip\tall: "+strings.Join(sizeForms, "\t")+"\t")
	for i := range shapes {
		s := &shapes[i]
		cells := []string{s.Name}
		for _, form := range []encoding.Form{s.Form(encoding.GzipJSON), s.Form(encoding.GzipCBOR)} {
			cells = append(cells, micros(form.EncodeNS), micros(form.DecodeNS), micros(form.CompressNS), micros(form.DecompressNS))
		}
		for _, form := range sizeForms {
			cells = append(cells, micros(s.Form(form).Both()))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	_ = t.Flush() // a Builder takes everything
	b.WriteString("(for one message, on one core: the median of runs in turns. It is CPU time of the process, so it includes the garbage collector.\n" +
		"gzip is the default level of compress/gzip, with writer and reader reused)\n")
}

// micros writes nanoseconds with three digits that say something.
func micros(ns float64) string { return Number(ns / 1000) }

func writeEncodingNotes(b *strings.Builder, r *encoding.Result) {
	b.WriteByte('\n')
	for _, m := range r.Missing {
		writeParagraph(b, "left out  ", m.Encoding+": "+m.Reason)
	}
	for _, f := range r.Findings {
		writeParagraph(b, "ours      ", f)
	}
	writeParagraph(b, "theirs    ", "Binary raised the throughput by 24 % with 20 objects, and by 71 % with 100. It saved few bytes of a long string, and most of "+
		"arrays and of objects with many members. Readers asked about compressed text and its cost, which the article did not measure.")
	e := r.Environment
	build := ""
	if r.Parameters.Build != "" {
		build = "; server build " + r.Parameters.Build
	}
	writeParagraph(b, "machine   ", fmt.Sprintf("%d cores, shared by clients and server unless there was a --target; GOMAXPROCS %d, %s %s/%s%s",
		e.Cores, e.GOMAXPROCS, e.GoVersion, e.OS, e.Arch, build))
	writeParagraph(b, "limit     ", "the generator, on purpose: the CPU time of the clients is part of the measurement")
	for _, f := range r.Faults {
		writeParagraph(b, "fault     ", f)
	}
	writeParagraph(b, "verdict   ", fmt.Sprintf("%s (exit code %d)", encodingVerdict(r), r.ExitCode))
}

func encodingVerdict(r *encoding.Result) string {
	switch {
	case r.Error != "":
		return "ENDED EARLY: " + r.Error
	case len(r.Faults) > 0:
		return "FAILED"
	}
	return "ok"
}

// EncodingBars is the throughput of each encoding at each size.
func EncodingBars(r *encoding.Result) Bars {
	bars := Bars{Title: fmt.Sprintf("Round trips of arrays of objects, %d clients", r.Parameters.Clients), Unit: "/s", Series: sizeForms[:3]}
	for _, objects := range r.Parameters.Objects {
		group := Group{Name: fmt.Sprintf("%d objects", objects)}
		for _, name := range bars.Series {
			rate := 0.0
			if row := r.Row(objects, name); row != nil {
				rate = row.TripsS.Mean
			}
			group.Values = append(group.Values, rate)
		}
		bars.Groups = append(bars.Groups, group)
	}
	return bars
}

// shapeBars is a figure of every form of the size table, of the same in JSON.
func shapeBars(title string, shapes []encoding.Shape, figure func(encoding.Form) float64) Bars {
	bars := Bars{Title: title, Unit: " %", Series: sizeForms}
	for i := range shapes {
		group := Group{Name: shapes[i].Name}
		for _, name := range sizeForms {
			group.Values = append(group.Values, 100*figure(shapes[i].Form(name))/figure(shapes[i].Form(encoding.JSON)))
		}
		bars.Groups = append(bars.Groups, group)
	}
	return bars
}

// EncodingHTML writes a comparison of encodings as a page that needs nothing else.
// The error is the writer's.
func EncodingHTML(w io.Writer, r *encoding.Result) error {
	var table strings.Builder
	_ = EncodingTable(&table, r) // a Builder takes everything
	return writePage(w, encodingTitle, r.Started, table.String(), []drawing{
		EncodingBars(r),
		shapeBars("Bytes of a message, in percent of JSON", r.Shapes, func(f encoding.Form) float64 { return float64(f.Bytes) }),
		shapeBars("CPU time of sender and receiver, in percent of JSON", r.Shapes, encoding.Form.Both),
	})
}
