package throttle

import (
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// A Result is what a measurement found. Members of its JSON are added, never
// changed.
type Result struct {
	Scenario    string               `json:"scenario"` // throttle
	Started     time.Time            `json:"started"`
	TookS       float64              `json:"took_s"`
	Environment loadtest.Environment `json:"environment"`
	Parameters  Parameters           `json:"parameters"`
	Ideal       Ideal                `json:"ideal"` // without limits
	Rows        []Row                `json:"rows"`
	Verdict     Verdict              `json:"verdict"`
}

// Parameters are what was asked for.
type Parameters struct {
	Target          string  `json:"target,omitempty"` // empty: each run had a server of its own
	Users           int     `json:"users"`
	DurationMS      float64 `json:"duration_ms"`
	CallTimeMS      float64 `json:"call_time_ms"`
	ThinkMS         float64 `json:"think_mean_ms"`
	Step            string  `json:"step,omitempty"`
	CallsPerSession int     `json:"calls_per_session"` // 0: all
	BackendWorkers  int     `json:"backend_workers"`   // 0: as many as there are calls
	WaitMS          float64 `json:"wait_ms"`
	ToleranceMS     float64 `json:"tolerance_ms"`
	PendingSessions int     `json:"pending_sessions"`
	WaitingCalls    int     `json:"waiting_calls"`
	IntervalMS      float64 `json:"interval_ms"` // of a course's points
	MaxMeanMS       float64 `json:"max_mean_ms,omitempty"`
	MaxP95MS        float64 `json:"max_p95_ms,omitempty"`
	Seed            uint64  `json:"seed"`
}

func (c *Config) parameters() Parameters {
	return Parameters{
		Target: c.Target, Users: c.Users, DurationMS: milliseconds(c.Duration), CallTimeMS: milliseconds(c.CallTime),
		ThinkMS: milliseconds(c.Think), Step: c.Step.String(), CallsPerSession: c.CallsPerSession, BackendWorkers: c.BackendWorkers,
		WaitMS: milliseconds(c.Wait), ToleranceMS: milliseconds(c.Tolerance), PendingSessions: c.PendingSessions, WaitingCalls: c.WaitingCalls,
		IntervalMS: milliseconds(c.interval()), MaxMeanMS: milliseconds(c.MaxMean), MaxP95MS: milliseconds(c.MaxP95), Seed: c.Seed,
	}
}

func milliseconds(d time.Duration) float64 { return stats.Milliseconds(d) }

// A Row is one run.
type Row struct {
	Setting
	Most   int     `json:"most_within"` // calls that these limits let through within the run
	Theirs *Theirs `json:"theirs,omitempty"`

	Completed Times `json:"completed"`        // calls whose request was sent within the run
	Within    Times `json:"completed_within"` // those completed within it, too
	Waited    Times `json:"waited"`           // completed calls, until they were let in
	Served    Times `json:"served"`           // from then on

	Unfinished     Times   `json:"unfinished"`           // calls that were not completed: how long they were wanted within the run
	WithUnfinished float64 `json:"with_unfinished_mean"` // ms, over completed calls and the others

	Users    int64   `json:"users_with_a_session"`
	Sessions int64   `json:"sessions_opened"`
	Refused  Refused `json:"refused"`
	Told     Times   `json:"told"`   // refusals, from the request on
	Silent   Times   `json:"silent"` // requests, until they were let in or refused
	Late     int64   `json:"late"`   // of those, after the promised time
	Untold   int64   `json:"untold"` // users that got no answer and no refusal

	Delivered
	Hook Hook `json:"hook"`

	Ends   []stats.Point `json:"course"`        // completed calls by when they were answered
	Begins []stats.Point `json:"course_begins"` // and by when they were wanted

	ServerCPU  bool    `json:"server_cpu_known"`
	ServerS    float64 `json:"server_cpu_s"`
	GeneratorS float64 `json:"generator_cpu_s"`
	Busy       float64 `json:"generator_busy"` // share of the machine's cores
	TookS      float64 `json:"took_s"`
	verdict    Verdict
}

// Times are of some kind of thing, in milliseconds.
type Times struct {
	Count  int64   `json:"count"`
	MeanMS float64 `json:"mean_ms"`
	P95MS  float64 `json:"p95_ms"`
	MaxMS  float64 `json:"max_ms"`
}

func timesOf(l *stats.Latency) Times {
	s := l.Summary()
	return Times{Count: s.Count, MeanMS: s.MeanMS, P95MS: milliseconds(l.Quantile(0.95)), MaxMS: s.MaxMS}
}

// Hook is what the back end noted.
type Hook struct {
	Calls    int64 `json:"calls"`
	Most     int   `json:"most_at_a_time"`
	Unsigned int64 `json:"unsigned"`
	Bypassed int64 `json:"bypassed"` // messages that were taken but did not pass once
	Late     Times `json:"late"`     // by how much its own answers were
}

// Theirs are the article's figures: of 100 users, 60 s and calls of 5 s, with a
// second machine's worth of tools on the same machine.
type Theirs struct {
	Completed int     `json:"completed"`
	MeanS     float64 `json:"mean_s"`
}

var theirs = map[Setting]Theirs{
	{10, 16}:   {106, 32.4},
	{100, 16}:  {164, 26.9},
	{100, 100}: {571, 9.92},
}

// theirs returns the article's figures, if the run is one that it made.
func (c *Config) theirs(s Setting) *Theirs {
	article := Default()
	t, ok := theirs[s]
	if !ok || c.Users != article.Users || c.Duration != article.Duration || c.CallTime != article.CallTime ||
		c.Think > 0 || c.Step.Users > 0 || c.BackendWorkers > 0 {
		return nil
	}
	return &t
}

func newRow(t *trial, b *book, d Delivered, before, after account) Row {
	took := after.at.Sub(before.at)
	r := Row{
		Setting: t.setting, Most: t.cfg.most(t.setting), Theirs: t.cfg.theirs(t.setting),
		Completed: timesOf(b.call), Within: timesOf(b.callWithin), Waited: timesOf(b.waited), Served: timesOf(b.served),
		Unfinished: timesOf(b.unfinished), Users: b.users, Sessions: b.sessions, Refused: b.refused,
		Told: timesOf(b.told), Silent: timesOf(b.silent), Late: b.late.count, Untold: b.untold.count, Delivered: d,
		Ends: b.ends.Points(), Begins: b.begins.Points(),
		ServerCPU: t.pid > 0, ServerS: (after.server - before.server).Seconds(), GeneratorS: (after.own - before.own).Seconds(), TookS: took.Seconds(),
	}
	b.call.Merge(b.unfinished)
	r.WithUnfinished = b.call.Summary().MeanMS
	r.Busy = r.GeneratorS / (took.Seconds() * float64(loadtest.Here().GOMAXPROCS))
	r.judge(t, b)
	return r
}

// Throughput is the calls a second that were completed within the run.
func (r *Row) throughput(c *Config) float64 { return float64(r.Within.Count) / c.Duration.Seconds() }

// named says of which run something is said.
func (r *Row) named(format string, args ...any) string {
	return fmt.Sprintf("%v: %s", r.Setting, fmt.Sprintf(format, args...))
}
