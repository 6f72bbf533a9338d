package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/loadtest/report"
)

// page returns the measurements as Markdown. All its figures come from them; notes
// are prose by the name of a series, or "model".
func page(m Measurements, notes map[string]string) string {
	b := &strings.Builder{}
	writeHead(b, &m)
	for _, s := range allSeries {
		if points := m.of(s.name); len(points) > 0 {
			writeSeries(b, s, points, notes[s.name])
		}
	}
	writeModel(b, newModel(m), notes["model"])
	return b.String()
}

func writeHead(b *strings.Builder, m *Measurements) {
	counts := map[Status]int{}
	for _, p := range m.Points {
		counts[p.Status]++
	}
	var words []string
	for _, s := range []Status{OK, GeneratorBound, Missed, Failed, NotRun} {
		if counts[s] > 0 {
			words = append(words, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	b.WriteString("# How it scales\n\nMade by `make scale` from [scale.json](scale.json); do not edit.\n\n")
	if m.Quick {
		b.WriteString("**A quick run with few clients. It only shows that everything works; do not rely on its figures.**\n\n")
	}
	e := m.Environment
	fmt.Fprintf(b, "%s, pubsubd %s, %s %s/%s, %d cores that the load generator shares with the server, over loopback. "+
		"%d points in %.0f s: %s. Each point has a new server.\n\n",
		m.Started.Format("2 January 2006"), orUnknown(m.Build["version"]), e.GoVersion, e.OS, e.Arch, e.Cores,
		len(m.Points), m.TookS, strings.Join(words, ", "))
	b.WriteString("CPU is the CPU time of the server process, with what the kernel does for it. Over loopback, that includes the\n" +
		"network stack of the receiving side. Resident bytes are those of the process, minus those before the first client.\n" +
		"The first column is with all clients connected, the second after the last message. The kernel's memory does not\n" +
		"count. Latency runs from the planned instant of a burst to each receiver. At points marked *generator-bound*, the\n" +
		"latencies show the limit of the generator; CPU and memory are still those of the server. The charts show these\n" +
		"points hollow. At points marked *missed*, bursts were late or messages were lost. *Missed* and *failed* points count\n" +
		"in no fit.\n")
}

func orUnknown(version string) string {
	if version == "" {
		return "of unknown version"
	}
	return version
}

func writeSeries(b *strings.Builder, s series, points []Measured, note string) {
	fmt.Fprintf(b, "\n## %s\n\n%s %s\n\n", s.title, s.about, constants(points))
	fmt.Fprintf(b, "| %s | CPU µs per delivery | resident bytes per session | at the end | median ms | p99 ms | bytes out per delivery | |\n|--:|--:|--:|--:|--:|--:|--:|---|\n", s.axis)
	for i := range points {
		writeRow(b, &points[i])
	}
	if note != "" {
		fmt.Fprintf(b, "\n%s\n", note)
	}
	b.WriteByte('\n')
	for _, c := range charts(s, points) {
		fmt.Fprintf(b, "![%s](%s)\n", c.chart.Title, c.file)
	}
}

// constants says what all points of a series have in common.
func constants(points []Measured) string {
	var words []string
	same := func(name string, figure func(*Measured) int) {
		first := figure(&points[0])
		if !slices.ContainsFunc(points, func(m Measured) bool { return figure(&m) != first }) {
			words = append(words, thousands(float64(first))+" "+name)
		}
	}
	same("clients", func(m *Measured) int { return m.Clients })
	same("ms from burst to burst", func(m *Measured) int { return m.PeriodMS })
	same("bursts", func(m *Measured) int { return m.Bursts })
	if len(words) == 0 {
		return ""
	}
	return "All points have " + strings.Join(words, ", ") + "."
}

func writeRow(b *strings.Builder, m *Measured) {
	if m.Deliveries == 0 {
		fmt.Fprintf(b, "| %s | | | | | | | %s |\n", thousands(m.X), mark(m))
		return
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", thousands(m.X),
		digits(m.CPUPerDeliveryUS), digits(m.residentPerSession()), digits(m.residentEndPerSession()),
		digits(m.MedianMS), digits(m.P99MS), digits(float64(m.BytesOut)/float64(m.Deliveries)), mark(m))
}

// mark says what is to be known of a point that is not simply well.
func mark(m *Measured) string {
	if m.Status == OK {
		return ""
	}
	reasons := strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(strings.Join(m.Reasons, "; "))
	return fmt.Sprintf("**%s**: %s", m.Status, reasons)
}

func writeModel(b *strings.Builder, m model, note string) {
	b.WriteString("\n## The model\n\nStraight lines through the points above, fitted by least squares of the relative residuals.\n\n" +
		"| what | line | points | residuals: root mean square | largest |\n|---|---|--:|--:|--:|\n")
	writeFit(b, "resident bytes, all connected, by clients", m.connected, "clients")
	writeFit(b, "resident bytes, after the last message, by clients", m.memory, "clients")
	writeFit(b, "resident bytes of a session, by its subscriptions", m.subscriptions, "subscriptions")
	writeFit(b, "resident bytes, by topics", m.topics, "topics")
	writeFit(b, "CPU µs of a delivery, by bytes of payload", m.bytes, "bytes")
	writeFit(b, "CPU µs of a burst to the same clients, by messages published in it", m.publishes, "messages")
	if words := meaning(m); len(words) > 0 {
		fmt.Fprintf(b, "\n%s\n", strings.Join(words, " "))
	}
	if note != "" {
		fmt.Fprintf(b, "\n%s\n", note)
	}
	writePrediction(b, &m)
}

func writeFit(b *strings.Builder, what string, f *fit, x string) {
	if f == nil {
		fmt.Fprintf(b, "| %s | not enough points | | | |\n", what)
		return
	}
	sign, slope := "+", f.slope
	if slope < 0 {
		sign, slope = "−", -slope
	}
	fmt.Fprintf(b, "| %s | %s %s %s · %s | %d | %s | %s |\n", what, digits(f.intercept), sign, digits(slope), x, f.points, percent(f.rms), percent(f.worst))
}

// meaning puts the slopes into words.
func meaning(m model) []string {
	var words []string
	say := func(f *fit, format, unit string, scale float64) {
		if f != nil {
			words = append(words, fmt.Sprintf(format, digits(f.slope*scale)+" "+unit))
		}
	}
	say(m.connected, "One more client takes %s before the first message.", "bytes", 1)
	say(m.memory, "One more client takes %s after the last message.", "bytes", 1)
	say(m.subscriptions, "One more subscription of a session takes %s, with its topic.", "bytes", 1)
	say(m.topics, "One more topic with subscribers takes %s.", "bytes", 1)
	say(m.bytes, "Each KiB of payload adds %s to a delivery.", "µs", 1024)
	say(m.publishes, "Each published message costs %s, in addition to its deliveries.", "µs", 1)
	return words
}

func writePrediction(b *strings.Builder, m *model) {
	const million = 1e6
	n, ok := m.predict(load{million, 1})
	b.WriteString("\n## What it predicts\n\n")
	if !ok {
		b.WriteString("Nothing, because the series over clients was not measured.\n")
		return
	}
	r := m.reference
	fmt.Fprintf(b, "For **1 million clients on one larger machine**, each with one message of 20 short strings per second:\n\n"+
		"- memory: %s to %s GiB; %s GiB of it for the process, the rest for sockets in the kernel\n"+
		"- CPU: %s fully busy cores\n"+
		"- network: %s Gbit/s out, with %s bytes per delivery, not counting the headers of TCP and of the network\n\n",
		digits(n.memoryLow), digits(n.memoryHigh), digits(m.memory.at(million)/gibibyte), digits(n.cores), digits(n.gigabits), digits(m.bytesOut()))
	fmt.Fprintf(b, "Assumptions:\n\n"+
		"- A delivery costs what it cost with %s clients (%s µs, %s), however many clients there are. The work spreads over the cores without loss.\n"+
		"- The memory of the process after messages follows the line above, %s times beyond the last point.\n"+
		"- The kernel takes %s to %s KB per socket. This is from an earlier measurement (lab results, A. Memory), not from this one.\n"+
		"- Every client receives its messages at once. For a slow client, the server also keeps up to `session.unacked` frames.\n"+
		"- The cores are like those of this machine. TLS, if any, ends elsewhere.\n\n",
		thousands(r.X), digits(r.CPUPerDeliveryUS), r.Status, digits(million/r.X), thousands(kernelLow/1000), thousands(kernelHigh/1000))
	writeSpread(b, m)
}

// writeSpread says how many machines a broadcast to ten million takes.
func writeSpread(b *strings.Builder, m *model) {
	on := largerMachine
	fmt.Fprintf(b, "**A broadcast to 10 million clients** on machines with %.0f cores, %.0f GiB and %.0f Gbit/s, of which %s may be in use.\n"+
		"Each message also travels once to each machine, which is not counted.\n\n"+
		"| one message every | by memory | by cores | by network | machines | runs out first |\n|---|--:|--:|--:|--:|---|\n",
		on.cores, on.gibibytes, on.gigabits, thousands(100*on.used)+" %")
	for _, seconds := range []float64{1, 10} {
		n, _ := m.predict(load{1e7, 1 / seconds}) // the caller has seen that it can
		s := spread(n, on)
		fmt.Fprintf(b, "| %.0f s | %s | %s | %s | **%d** | %s |\n", seconds, digits(s.memory), digits(s.cores), digits(s.network), s.machines, s.runsOut())
	}
}

// digits writes a figure with three digits that say something.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	places := max(2-int(math.Floor(math.Log10(math.Abs(v)))), 0)
	if places == 0 {
		return thousands(v)
	}
	return strconv.FormatFloat(v, 'f', places, 64)
}

func thousands(v float64) string { return report.Number(v) }

// percent writes a share; a tenth of a percent is finer than any of them is true.
func percent(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }

// sections returns the parts of a Markdown text by their second-level heading.
func sections(text string) map[string]string {
	all := map[string]string{}
	for _, part := range strings.Split("\n"+text, "\n## ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		all[strings.TrimSpace(name)] = strings.TrimSpace(body)
	}
	return all
}
