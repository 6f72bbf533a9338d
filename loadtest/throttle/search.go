package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// searchPrecision is by which share less throughput than the best still is the best,
// since fewer calls at a time then do as well; and how near to each other the calls
// that meet the objective and those that do not must come.
const searchPrecision = 0.05

// A SearchResult is what limits.calls should be. Members of its JSON are added, never
// changed.
type SearchResult struct {
	Scenario    string               `json:"scenario"` // throttle-search
	Started     time.Time            `json:"started"`
	TookS       float64              `json:"took_s"`
	Environment loadtest.Environment `json:"environment"`
	Parameters  Parameters           `json:"parameters"`
	Precision   float64              `json:"precision"`
	Calls       int                  `json:"calls"`  // the fewest with the best throughput under the objective; 0: none meet it
	Trials      []Trial              `json:"trials"` // in the order they were made
	Verdict     Verdict              `json:"verdict"`
}

// A Trial is one run of a search.
type Trial struct {
	Calls     int     `json:"calls"`      // limits.calls
	PerSecond float64 `json:"per_second"` // calls completed within the run
	Held      bool    `json:"held"`       // the objective was met, and no promise broken
	Reason    string  `json:"reason,omitempty"`
	Row       Row     `json:"row"`
}

// Search finds the limits.calls with the best throughput under the objective, which
// is for the time in which calls are served: how long users wait before that follows
// from how many they are. Each trial has a server of its own, and a session for each
// user. The error says why it is incomplete; what was tried until then is in the
// result.
func Search(ctx context.Context, cfg Config, p loadtest.Progress) (SearchResult, error) {
	cfg.Settings = []Setting{{cfg.Users, cfg.Users}}
	if err := cfg.checkSearch(); err != nil {
		return SearchResult{}, err
	}
	if err := cfg.ready(); err != nil {
		return SearchResult{}, err
	}
	return search(ctx, cfg, p, measure)
}

func (c *Config) checkSearch() error {
	err := errors.Join(
		unless(c.Target == "", "--search: starts servers with other limits, so it does not work with --target"),
		unless(c.MaxMean > 0 || c.MaxP95 > 0, "--search: needs an objective, --max-mean or --max-p95"),
	)
	if err != nil {
		return ConfigError{err}
	}
	return nil
}

// A measurer makes one run. It is replaced by tests.
type measurer func(ctx context.Context, cfg *Config, s Setting, p loadtest.Progress) (Row, error)

func search(ctx context.Context, cfg Config, p loadtest.Progress, measure measurer) (SearchResult, error) {
	r := SearchResult{
		Scenario: "throttle-search", Started: time.Now(), Environment: loadtest.Here(), Parameters: cfg.parameters(),
		Precision: searchPrecision, Trials: []Trial{}, Verdict: Verdict{Failed: []string{}, Missed: []string{}, GeneratorBound: []string{}},
	}
	s := quest{most: cfg.Users}
	for calls := s.next(); calls > 0; calls = s.next() {
		t, err := try(ctx, &cfg, calls, p, measure)
		if err != nil {
			return r, fmt.Errorf("%d calls: %w", calls, err)
		}
		p.Notice(fmt.Sprintf("%d calls: %s", calls, t.outcome()))
		s.trials = append(s.trials, t)
		r.Trials, r.TookS = s.trials, time.Since(r.Started).Seconds()
	}
	r.conclude(&s)
	return r, nil
}

func try(ctx context.Context, cfg *Config, calls int, p loadtest.Progress, measure measurer) (Trial, error) {
	row, err := measure(ctx, cfg, Setting{cfg.Users, calls}, p)
	if err != nil {
		return Trial{}, err
	}
	reasons := slices.Concat(row.verdict.Failed, row.verdict.Missed, row.objectives(cfg, "the service of calls", row.Served))
	t := Trial{Calls: calls, PerSecond: row.throughput(cfg), Held: len(reasons) == 0, Row: row}
	if !t.Held {
		t.Reason = reasons[0]
	}
	return t, nil
}

func (t *Trial) outcome() string {
	if t.Held {
		return fmt.Sprintf("%.2f/s, served in %.0f ms on average, p95 %.0f ms", t.PerSecond, t.Row.Served.MeanMS, t.Row.Served.P95MS)
	}
	return "missed the objective: " + t.Reason
}

// conclude says what was found, and whether it can be believed.
func (r *SearchResult) conclude(q *quest) {
	best, _, found := q.best()
	if !found {
		r.Verdict.Missed = append(r.Verdict.Missed, "no value of limits.calls meets the objective: "+q.trials[len(q.trials)-1].Reason)
		r.Verdict.conclude()
		return
	}
	r.Calls = best.Calls
	for i := range r.Trials {
		r.Verdict.GeneratorBound = append(r.Verdict.GeneratorBound, r.Trials[i].Row.verdict.GeneratorBound...)
	}
	r.Verdict.conclude()
}

// A quest says which limits to try. It doubles them while throughput grows and the
// objective is met; bisects where it is no more; and then looks how few calls at a time
// have the best throughput. It does no I/O.
type quest struct {
	most   int
	trials []Trial // in any order
}

// firstShare is of what is tried first.
const firstShare = 16

// next returns the calls to try, or 0 if that would tell nothing new.
func (q *quest) next() int {
	if len(q.trials) == 0 {
		return max(q.most/firstShare, 1)
	}
	held, failed := q.border()
	switch {
	case held == nil:
		return failed.Calls / 2
	case failed != nil && !near(held.Calls, failed.Calls):
		return (held.Calls + failed.Calls) / 2
	case failed == nil && held.Calls < q.most && q.grows(held):
		return min(2*held.Calls, q.most)
	}
	best, below, _ := q.best()
	if near(below, best.Calls) {
		return 0
	}
	return (below + best.Calls) / 2
}

// near reports whether there is nothing to look for between two limits.
func near(low, high int) bool {
	return high-low <= 1 || float64(high-low) <= searchPrecision*float64(high)
}

// border returns the fewest calls that were not held, and the most below that were.
// Either may be missing, but not both.
func (q *quest) border() (held, failed *Trial) {
	for i := range q.trials {
		if t := &q.trials[i]; !t.Held && (failed == nil || t.Calls < failed.Calls) {
			failed = t
		}
	}
	for i := range q.trials {
		t := &q.trials[i]
		if t.Held && (failed == nil || t.Calls < failed.Calls) && (held == nil || t.Calls > held.Calls) {
			held = t
		}
	}
	return held, failed
}

// grows reports whether a trial's throughput is more than that of all with fewer
// calls.
func (q *quest) grows(t *Trial) bool {
	for _, other := range q.trials {
		if other.Calls < t.Calls && t.PerSecond < (1+searchPrecision)*other.PerSecond {
			return false
		}
	}
	return true
}

// best returns the held trial with the fewest calls that are as good as the best,
// and the most calls below it that were tried, 0 if none.
func (q *quest) best() (best Trial, below int, found bool) {
	sorted := slices.SortedFunc(slices.Values(q.trials), func(a, b Trial) int { return cmp.Compare(a.Calls, b.Calls) })
	most := 0.0
	for _, t := range sorted {
		if t.Held {
			most = max(most, t.PerSecond)
		}
	}
	for _, t := range sorted {
		if t.Held && t.PerSecond >= (1-searchPrecision)*most {
			return t, below, true
		}
		below = t.Calls
	}
	return Trial{}, 0, false
}
