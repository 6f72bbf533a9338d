package scenarios

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Result is what became of a Suite. Members of its JSON are added, never changed.
type Result struct {
	Scenario    string               `json:"scenario"` // the Suite's Name
	Title       string               `json:"title"`
	Source      string               `json:"source,omitempty"`
	About       string               `json:"about,omitempty"`
	Theirs      string               `json:"theirs,omitempty"` // in words, of all
	Started     time.Time            `json:"started"`
	Environment loadtest.Environment `json:"environment"`
	Runs        []RunResult          `json:"runs"` // those of the file, in its order
	ExitCode    int                  `json:"exit_code"`
}

// A RunResult is what became of a Run. One that could not be made has an Error and
// no Outcome; one that ended before its time may have both.
type RunResult struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Series  string   `json:"series,omitempty"`
	Course  bool     `json:"course"`
	Theirs  Theirs   `json:"theirs"`
	Changes []Change `json:"changes"` // from what the file says
	Outcome
	Error    string `json:"error,omitempty"`
	ExitCode int    `json:"exit_code"`
}

// An Outcome is one of them, by the kind of the run.
type Outcome struct {
	Result *loadtest.Result       `json:"result,omitempty"`
	Search *loadtest.SearchResult `json:"search,omitempty"`
}

// Run makes all runs of the suite. One that fails does not keep the others from
// being made, but the end of ctx does: the error says so then.
func (s *Suite) Run(ctx context.Context, p loadtest.Progress) (Result, error) {
	result := Result{
		Scenario: s.Name, Title: s.Title, Source: s.Source, About: s.About, Theirs: s.Theirs,
		Started: time.Now(), Environment: loadtest.Here(),
	}
	for i, r := range s.Runs {
		tell(p, i, len(s.Runs), r.Name)
		result.Runs = append(result.Runs, r.made(ctx, p))
	}
	result.ExitCode = worst(result.Runs)
	return result, context.Cause(ctx)
}

func (r *Run) made(ctx context.Context, p loadtest.Progress) RunResult {
	made := RunResult{
		Name: r.Name, Kind: r.Kind, Series: r.Series, Course: r.Course, Theirs: r.Theirs,
		Changes: append([]Change{}, r.changes...), ExitCode: loadtest.ExitFailed,
	}
	if ctx.Err() != nil {
		made.Error = "not started: the test was interrupted"
		return made
	}
	outcome, err := r.test.run(ctx, p)
	made.Outcome = outcome
	if err != nil {
		made.Error = err.Error()
		return made
	}
	made.ExitCode = outcome.exitCode()
	return made
}

func (o *Outcome) exitCode() int {
	switch {
	case o.Result != nil:
		return loadtest.ExitCode(*o.Result)
	case o.Search != nil:
		return o.Search.ExitCode()
	}
	return loadtest.ExitFailed
}

// worst returns the exit code that says most, in the precedence of load tests.
func worst(runs []RunResult) int {
	for _, code := range []int{loadtest.ExitFailed, loadtest.ExitMissed, loadtest.ExitGeneratorBound} {
		for i := range runs {
			if runs[i].ExitCode == code {
				return code
			}
		}
	}
	return loadtest.ExitOK
}

// Change sets a parameter of every run that has it, under the first of the keys
// that the run has.
func (s *Suite) Change(value string, keys ...string) error {
	had := false
	for _, r := range s.Runs {
		for _, key := range keys {
			if r.flags.Lookup(key) == nil {
				continue
			}
			had = true
			if err := r.change(key, value); err != nil {
				return err
			}
			break
		}
	}
	if !had {
		return fmt.Errorf("--%s: no run of %s has this parameter", keys[0], s.Name)
	}
	return nil
}

// Check returns what is wrong with any run, each by its name: after Changes, or
// with a target, what was well may not be.
func (s *Suite) Check() error {
	var faults []error
	for _, r := range s.Runs {
		if err := r.Check(); err != nil {
			faults = append(faults, fault{place: s.Name, key: "run " + r.Name, text: err.Error()})
		}
	}
	return errors.Join(faults...)
}

// tell says which run begins.
func tell(p loadtest.Progress, i, n int, name string) {
	if p != nil {
		p.Notice(fmt.Sprintf("run %d of %d: %s", i+1, n, name))
	}
}
