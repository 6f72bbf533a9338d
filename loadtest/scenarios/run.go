package scenarios

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Run is one load test of a Suite.
type Run struct {
	Name   string // unique in its suite
	Kind   string // one of Kinds
	Series string // runs of one series are one line in charts; may be empty
	Course bool   // the latency over the run is drawn
	Theirs Theirs

	test    test
	flags   *pflag.FlagSet // what test binds
	changes []Change
}

// Theirs is what another system had in the same experiment. What is nil is not
// known.
type Theirs struct {
	MeanMS   *float64 `json:"mean_ms,omitempty"`
	MedianMS *float64 `json:"median_ms,omitempty"`
	StdevMS  *float64 `json:"stdev_ms,omitempty"`
	Clients  *float64 `json:"clients,omitempty"` // a search's
	Words    string   `json:"words,omitempty"`
}

// A Change is a parameter that is not as the file has it.
type Change struct {
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
}

// String says both values.
func (c Change) String() string { return fmt.Sprintf("%s %s instead of %s", c.Key, c.To, c.From) }

func newRun(kind string) *Run {
	r := &Run{Kind: kind, test: newTest(kind), flags: pflag.NewFlagSet(kind, pflag.ContinueOnError)}
	r.test.bind(r.flags)
	loadtest.BindCommon(r.flags, r.test.common())
	return r
}

// Common returns what the run has in common with all kinds, to be set before Run.
func (r *Run) Common() *loadtest.Common { return r.test.common() }

// change sets a parameter that the run has, and remembers if it was another.
func (r *Run) change(key, value string) error {
	f := r.flags.Lookup(key)
	before := f.Value.String()
	if err := r.flags.Set(key, value); err != nil {
		return fmt.Errorf("--%s: %q: want %s", key, value, want(f))
	}
	if after := f.Value.String(); after != before {
		r.changes = append(r.changes, Change{Key: key, From: before, To: after})
	}
	return nil
}

// Check returns what is wrong with the parameters, as the command line says it.
func (r *Run) Check() error { return r.test.check() }
