package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// report is the result for people.
func (r *Result) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pubsubd %s under attack, %d cores, %s\n", r.Build, r.Cores, r.Finished.Format(time.DateOnly))
	fmt.Fprintf(&b, "%d victims get a message every second. Each attack runs for %.0f s against a sink (\"sink\"), then for %.0f s against the daemon (\"live\").\n\n",
		r.Victims, r.AttackS, r.AttackS)
	r.table(&b, "latency of the victims, ms", r.latencies)
	r.table(&b, "what the attackers achieved", r.raids)
	r.table(&b, "what the daemon used", r.servers)
	r.refusals(&b)
	b.WriteString(r.instrument())
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "%-6s %s: %s\n", map[bool]string{true: "met", false: "MISSED"}[v.Met], v.Demand, v.Found)
	}
	return b.String()
}

// table aligns rows, whose cells are separated by tabs.
func (r *Result) table(b *strings.Builder, title string, rows func() []string) {
	b.WriteString(title + "\n\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows() {
		fmt.Fprintln(w, row+"\t")
	}
	_ = w.Flush() // into memory
	b.WriteString("\n")
}

func (r *Result) latencies() []string {
	rows := []string{"attack\tp50 live\tsink\tp99 live\tsink\tmax live\tsink\tratio\tlost\tduplicates\tsessions lost"}
	for _, a := range r.Attacks {
		live, sink := &a.Live.Victims, &a.Sink.Victims
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%d", waits(a.Name, live.Latency, sink.Latency),
			live.Lost+sink.Lost, live.Duplicates+sink.Duplicates, live.SessionsLost+sink.SessionsLost))
	}
	live, sink := r.overallLatency()
	return append(rows, waits("all", live, sink)+"\t\t\t")
}

func waits(name string, live, sink *stats.Latency) string {
	l, s := live.Summary(), sink.Summary()
	return fmt.Sprintf("%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f",
		name, l.MedianMS, s.MedianMS, l.P99MS, s.P99MS, l.MaxMS, s.MaxMS, ratio(live, sink))
}

func (r *Result) raids() []string {
	rows := []string{"attack\toperations/s live\tsink\tconnections live\tsink\topen at once live\tsink\tcut off live\tno answer\tno connection"}
	for _, a := range r.Attacks {
		live, sink := a.Live.Raid, a.Sink.Raid
		rows = append(rows, fmt.Sprintf("%s\t%.0f\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t%d", a.Name, live.PerSecond, sink.PerSecond,
			live.Connections, sink.Connections, live.MostOpen, sink.MostOpen, live.Cut, live.Unanswered, live.NotConnected))
	}
	return rows
}

func (r *Result) servers() []string {
	rows := []string{"attack\tCPU s live\tsink\tresident MiB\taccounted MiB\tkernel sockets MiB live\tsink\tpressure"}
	for _, a := range r.Attacks {
		live := a.Live.Server
		rows = append(rows, fmt.Sprintf("%s\t%.2f\t%.2f\t%.0f\t%.1f\t%.0f\t%.0f\t%d", a.Name, live.CPUSeconds, a.Sink.Server.CPUSeconds,
			float64(live.ResidentBytes)/(1<<20), float64(live.AccountedBytes)/(1<<20),
			float64(live.SocketBytes)/(1<<20), float64(a.Sink.Server.SocketBytes)/(1<<20), live.Pressure))
	}
	return rows
}

// instrument says what the measuring itself was short of.
func (r *Result) instrument() string {
	late := stats.NewLatency()
	var worked, waited time.Duration
	for _, a := range r.Attacks {
		for _, v := range []*Victims{&a.Live.Victims, &a.Sink.Victims} {
			late.Merge(v.Lag)
			worked += v.LoopCPU
			waited += v.WaitedForCore
		}
	}
	measured := max(2*r.AttackS*float64(len(r.Attacks)), 1)
	return fmt.Sprintf("the measuring thread was busy %.1f %% of the time and waited %.1f %% for a core; messages were sent at most %.1f ms late\n\n",
		100*worked.Seconds()/measured, 100*waited.Seconds()/measured, late.Summary().MaxMS)
}

// refusals describes each attack, and how the daemon answered it.
func (r *Result) refusals(b *strings.Builder) {
	b.WriteString("how the daemon answered the attackers\n\n")
	for _, a := range r.Attacks {
		fmt.Fprintf(b, "  %s: %s\n", a.Name, a.What)
		for _, line := range []struct {
			what string
			by   map[string]int64
		}{
			{"answers by status", a.Live.Raid.Answers}, {"refused by code", a.Live.Server.Refused},
			{"refused by limit", a.Live.Server.Limited}, {"connections ended", a.Live.Server.Ended},
		} {
			if len(line.by) > 0 {
				fmt.Fprintf(b, "    %s: %s\n", line.what, listed(line.by))
			}
		}
		if e := a.Live.Victims.FirstError; e != "" {
			fmt.Fprintf(b, "    victims' first error: %s\n", e)
		}
	}
	b.WriteString("\n")
}

func listed(by map[string]int64) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(by)) {
		all = append(all, fmt.Sprintf("%s %d", key, by[key]))
	}
	return strings.Join(all, ", ")
}
