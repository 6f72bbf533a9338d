package soak

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A Result is what a soak staged and found.
type Result struct {
	Seed        uint64  `json:"seed"`
	Seconds     float64 `json:"seconds"`
	Interrupted bool    `json:"interrupted,omitempty"` // it ended early; what it found holds
	Settled     bool    `json:"settled"`               // at the end every subscriber had everything in time

	Staged    []Count  `json:"staged"`
	NotStaged []string `json:"not_staged,omitempty"` // what the daemon does not offer
	Found     []Count  `json:"found"`

	Faults     map[Kind]int `json:"faults"`      // how many of each kind
	FirstFault []Fault      `json:"first_fault"` // the first of them, at most 20
}

// A Count is a number of a report.
type Count struct {
	What string `json:"what"`
	N    int64  `json:"n"`
}

// Exit codes of a soak: what the process that ran it should end with.
const (
	ExitOK     = 0
	ExitFailed = 1 // it could not be run to its end
	ExitFault  = 3 // a promise was not kept
)

// ExitCode is what the process should end with.
func (r *Result) ExitCode() int {
	if len(r.Faults) > 0 {
		return ExitFault
	}
	return ExitOK
}

func (w *world) result(cfg Config, took time.Duration, interrupted bool) *Result {
	r := &Result{
		Seed: cfg.Seed, Seconds: took.Seconds(), Interrupted: interrupted, Settled: w.settled.Load(),
		Staged: w.countStaged(), Found: w.countFound(),
		Faults: maps.Clone(w.ledger.faults.count), FirstFault: slices.Clone(w.ledger.faults.kept),
	}
	if !w.reign.state && w.reign.store == "" {
		r.NotStaged = append(r.NotStaged, "restarts that keep the epoch: this serve has no --store-sync=stop")
	}
	r.NotStaged = append(r.NotStaged, w.features.missing()...)
	return r
}

func (w *world) countStaged() []Count {
	s, p, k := &w.staged, &w.published, w.reign.staged
	counts := []Count{
		{"messages published", p.accepted.Load()},
		{"bursts", p.bursts.Load()},
		{"publishes refused with a time to retry", p.refused.Load()},
		{"refusals that eager publishers heeded, 429", p.limited.Load()},
		{"refusals that hurried publishers heeded, 503", p.overloaded.Load()},
		{"who came when they were told to, and were served", p.heeded.Load()},
		{"publishes that the application refused", p.forbidden.Load()},
		{"publishes whose answer was lost", p.unknown.Load()},
		{"restarts with the state file", int64(k[kept])},
		{"restarts without", int64(k[planned])},
		{"kills", int64(k[killed] + 2*k[stillborn])},
		{"of these, while it started", int64(k[stillborn])},
		{"connections", w.ports.http.accepted.Load()},
		{"connections without HTTP", w.ports.bare.accepted.Load()},
	}
	for what := closed; what < misfortunes; what++ {
		counts = append(counts, Count{"connections " + misfortuneNames[what], w.ports.befell(what)})
	}
	for o, name := range opinionNames {
		counts = append(counts, Count{"messages that the application " + name, w.hook.said[o].Load()})
	}
	for form := range subscriberForms {
		counts = append(counts, Count{"subscribers, " + formName(form), s.subscribers[form].Load()})
	}
	return append(counts,
		Count{"subscribers that left", s.left.Load()},
		Count{"subscribers that went on in another way", s.resumed.Load()},
		Count{"readers that paused", s.pauses.Load()},
		Count{"changes of topics", s.changes.Load()},
		Count{"changes whose answer was lost", s.uncertain.Load()},
		Count{"deletions of topics", s.deletions.Load()},
		Count{"subscribers by a pattern", s.patterns.Load()},
		Count{"subscribers without their own messages", s.strangers.Load()},
		Count{"sessions by hand", s.sessions.Load()},
		Count{"polls by hand", s.polls.Load()},
		Count{"acks below what was had", s.earlierAcks.Load()},
		Count{"acks that must be refused", s.impossibleAck.Load()},
	)
}

func (w *world) countFound() []Count {
	s := &w.staged
	messages, gaps := w.seen()
	counts := []Count{
		{"deliveries checked", messages},
		{"trails of a subscriber through a topic", w.countTrails()},
		{"frames repeated by ack", s.repeats.Load()},
		{"of these, become gaps", s.became.Load()},
		{"polls replaced", s.replaced.Load()},
		{"halves of requests answered 400", s.halfRequests.Load()},
		{"answers cut, to polls by hand", s.cutAnswers.Load()},
		{"attempts again, of the Go client", s.reconnects.Load()},
		{"messages that nobody saw, perhaps never taken", w.countUnknown()},
	}
	for _, reason := range wire.GapReasons() {
		counts = append(counts, Count{"gaps " + string(reason), gaps[reason]})
	}
	return counts
}

func (w *world) countTrails() (n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, trails := range w.trails {
		n += int64(len(trails))
	}
	return n
}

func (w *world) countUnknown() (n int64) {
	for i := range w.ledger.topics {
		t := &w.ledger.topics[i]
		t.mu.Lock()
		n += int64(len(t.unknown))
		t.mu.Unlock()
	}
	return n
}

// Text writes the result for people.
func (r *Result) Text(out io.Writer) error {
	p := &printer{out: out}
	p.line("soak of %.0f s with --seed %d%s", r.Seconds, r.Seed, map[bool]string{true: ", interrupted"}[r.Interrupted])
	p.line("\nstaged")
	p.counts(r.Staged)
	for _, what := range r.NotStaged {
		p.line("  %10s  %s", "not staged", what)
	}
	p.line("\nfound")
	p.counts(r.Found)
	p.line("  %10t  all subscribers received everything by the end", r.Settled)
	p.faults(r)
	return p.err
}

// A printer keeps the first error of writing.
type printer struct {
	out io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format+"\n", args...)
	}
}

func (p *printer) counts(counts []Count) {
	for _, c := range counts {
		p.line("  %10d  %s", c.N, cmp.Or(inText[c.What], c.What))
	}
}

// inText has what people read in place of some counts' names. The names stay in JSON, where
// programs know a count by its name.
var inText = map[string]string{
	"refusals that eager publishers heeded, 429":       "refusals with 429 after which eager publishers waited as told",
	"refusals that hurried publishers heeded, 503":     "refusals with 503 after which hurried publishers waited as told",
	"who came when they were told to, and were served": "publishes accepted after such a wait",
	"restarts with the state file":                     "restarts with the topics kept",
	"restarts without":                                 "restarts without them",
	"of these, while it started":                       "of these kills, while the server started",
	"subscribers that went on in another way":          "subscribers that resumed with another transport or mode",
	"subscribers without their own messages":           "subscribers that left out their own messages",
	"acks below what was had":                          "acks below the newest received frame",
	"trails of a subscriber through a topic":           "pairs of a subscriber and a topic checked",
	"of these, become gaps":                            "of these, repeated as gaps",
	"halves of requests answered 400":                  "half requests answered with 400",
	"answers cut, to polls by hand":                    "answers to polls by hand that were cut off",
	"attempts again, of the Go client":                 "reconnects of the Go client",
	"messages that nobody saw, perhaps never taken":    "messages that no subscriber saw, perhaps never accepted",
}

func (p *printer) faults(r *Result) {
	if len(r.Faults) == 0 {
		p.line("\nverdict  ok")
		return
	}
	p.line("\nfaults")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		p.line("  %10d  %s", r.Faults[kind], kind)
	}
	p.line("")
	for _, f := range r.FirstFault {
		p.line("  %v", f)
	}
	p.line("\nverdict  FAULT")
}
