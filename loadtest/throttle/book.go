package throttle

import (
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// A book is what one user noted, or all of them together. It belongs to one
// goroutine.
type book struct {
	promise time.Duration // within which a request is let in or refused

	call       *stats.Latency // of calls that were completed, from when they were wanted
	callWithin *stats.Latency // those of them that were within the run
	waited     *stats.Latency // until they were let in
	served     *stats.Latency // from then on
	unfinished *stats.Latency // how long those that were not completed were wanted within the run

	ends, begins *stats.Series // of completed calls, when they were answered, and when wanted

	sessions, users int64 // opened; that had one
	refused         Refused
	told, silent    *stats.Latency // until refused; until refused or let in
	late, untold    faults
	hook            faults // messages that were taken but did not pass it once
	failed          faults
}

// Refused is how often users were told to come again.
type Refused struct {
	Sessions int64 `json:"sessions"`
	Calls    int64 `json:"calls"`
	Other    int64 `json:"other"` // ends of sessions
}

func newBook(promise, interval time.Duration) *book {
	return &book{
		promise: promise,
		call:    stats.NewLatency(), callWithin: stats.NewLatency(), waited: stats.NewLatency(), served: stats.NewLatency(),
		unfinished: stats.NewLatency(), told: stats.NewLatency(), silent: stats.NewLatency(),
		ends: stats.NewSeries(interval), begins: stats.NewSeries(interval),
	}
}

// merge adds all that another noted.
func (b *book) merge(o *book) {
	for _, pair := range [][2]*stats.Latency{
		{b.call, o.call},
		{b.callWithin, o.callWithin},
		{b.waited, o.waited},
		{b.served, o.served},
		{b.unfinished, o.unfinished},
		{b.told, o.told},
		{b.silent, o.silent},
	} {
		pair[0].Merge(pair[1])
	}
	b.ends.Merge(o.ends)
	b.begins.Merge(o.begins)
	b.sessions += o.sessions
	b.users += min(o.sessions, 1)
	b.refused.Sessions += o.refused.Sessions
	b.refused.Calls += o.refused.Calls
	b.refused.Other += o.refused.Other
	for _, pair := range [][2]*faults{{&b.late, &o.late}, {&b.untold, &o.untold}, {&b.hook, &o.hook}, {&b.failed, &o.failed}} {
		pair[0].merge(*pair[1])
	}
}

// quiet notes for how long a user had heard nothing when it was told, or let in.
func (b *book) quiet(what string, d time.Duration) {
	b.silent.Record(d)
	if d > b.promise {
		b.late.note(fmt.Errorf("%s after %v", what, d.Round(time.Millisecond)))
	}
}

// refusal notes that a user was told to come again.
func (b *book) refusal(count *int64, took time.Duration) {
	*count++
	b.told.Record(took)
	b.quiet("refused", took)
}

// A finished is a call that was completed.
type finished struct{ wanted, sent, letIn, answered time.Time }

// finish notes a call of a run of the given begin and end.
func (b *book) finish(c finished, begin, end time.Time) {
	took := c.answered.Sub(c.wanted)
	b.call.Record(took)
	b.waited.Record(c.letIn.Sub(c.wanted))
	b.served.Record(c.answered.Sub(c.letIn))
	b.ends.Record(c.answered.Sub(begin), took)
	b.begins.Record(c.wanted.Sub(begin), took)
	if c.answered.Before(end) {
		b.callWithin.Record(took)
	}
}
