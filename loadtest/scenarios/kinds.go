package scenarios

import (
	"context"
	"time"

	"github.com/spf13/pflag"

	"github.com/pubsubd/pubsubd/loadtest"
)

// Kinds of runs.
const (
	Broadcast       = "broadcast"
	BroadcastSearch = "broadcast-search"
	Collab          = "collab"
	Steady          = "steady"
)

// Kinds returns what a run may be.
func Kinds() []string { return []string{Broadcast, BroadcastSearch, Collab, Steady} }

// A test is a run's configuration, whatever its kind.
type test interface {
	// bind binds what may be set, but for what every kind has.
	bind(f *pflag.FlagSet)
	common() *loadtest.Common
	check() error
	run(ctx context.Context, p loadtest.Progress) (Outcome, error)
}

func newTest(kind string) test {
	switch kind {
	case Broadcast:
		return &broadcastTest{loadtest.DefaultBroadcast()}
	case BroadcastSearch:
		return &searchTest{loadtest.SearchConfig{Broadcast: loadtest.DefaultBroadcast()}}
	case Collab:
		return &collabTest{loadtest.DefaultCollab()}
	case Steady:
		return &steadyTest{loadtest.DefaultSteady()}
	}
	return nil
}

type broadcastTest struct{ cfg loadtest.BroadcastConfig }

func (t *broadcastTest) bind(f *pflag.FlagSet) {
	loadtest.BindBroadcast(f, &t.cfg)
	f.DurationVar(&t.cfg.Period, "period", t.cfg.Period, "time from one burst to the next")
}

func (t *broadcastTest) common() *loadtest.Common { return &t.cfg.Common }
func (t *broadcastTest) check() error             { return t.cfg.Check() }

func (t *broadcastTest) run(ctx context.Context, p loadtest.Progress) (Outcome, error) {
	return single(loadtest.RunBroadcast(ctx, t.cfg, p))
}

type searchTest struct{ cfg loadtest.SearchConfig }

func (t *searchTest) bind(f *pflag.FlagSet) {
	loadtest.BindBroadcast(f, &t.cfg.Broadcast)
	f.DurationSliceVar(&t.cfg.Periods, "period", []time.Duration{t.cfg.Broadcast.Period}, "times from one burst to the next")
}

func (t *searchTest) common() *loadtest.Common { return &t.cfg.Broadcast.Common }
func (t *searchTest) check() error             { return t.cfg.Check() }

func (t *searchTest) run(ctx context.Context, p loadtest.Progress) (Outcome, error) {
	found, err := loadtest.RunSearch(ctx, t.cfg, p)
	if len(found.Points) == 0 {
		return Outcome{}, err
	}
	return Outcome{Search: &found}, err
}

type collabTest struct{ cfg loadtest.CollabConfig }

func (t *collabTest) bind(f *pflag.FlagSet) {
	loadtest.BindTopics(f, &t.cfg.Topics, &t.cfg.ClientsPerTopic)
	loadtest.BindRounds(f, &t.cfg)
	loadtest.BindVoices(f, &t.cfg.Common)
}

func (t *collabTest) common() *loadtest.Common { return &t.cfg.Common }
func (t *collabTest) check() error             { return t.cfg.Check() }

func (t *collabTest) run(ctx context.Context, p loadtest.Progress) (Outcome, error) {
	return single(loadtest.RunCollab(ctx, t.cfg, p))
}

type steadyTest struct{ cfg loadtest.SteadyConfig }

func (t *steadyTest) bind(f *pflag.FlagSet) {
	loadtest.BindTopics(f, &t.cfg.Topics, &t.cfg.ClientsPerTopic)
	loadtest.BindSteady(f, &t.cfg)
	loadtest.BindVoices(f, &t.cfg.Common)
}

func (t *steadyTest) common() *loadtest.Common { return &t.cfg.Common }
func (t *steadyTest) check() error             { return t.cfg.Check() }

func (t *steadyTest) run(ctx context.Context, p loadtest.Progress) (Outcome, error) {
	return single(loadtest.RunSteady(ctx, t.cfg, p))
}

// single is the Outcome of one test; empty if it could not be made.
func single(r loadtest.Result, err error) (Outcome, error) {
	if r.Scenario == "" {
		return Outcome{}, err
	}
	return Outcome{Result: &r}, err
}
