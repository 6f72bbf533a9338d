package throttle

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// Run measures every setting, one after the other. It returns when everything has
// stopped that it has started. A ConfigError means that it could not begin as it was
// asked for; with any other, the result has what was measured before, if it has rows.
func Run(ctx context.Context, cfg Config, p loadtest.Progress) (Result, error) {
	if err := cfg.ready(); err != nil {
		return Result{}, err
	}
	r := Result{
		Scenario: "throttle", Started: time.Now(), Environment: loadtest.Here(), Parameters: cfg.parameters(), Ideal: cfg.ideal(),
		Verdict: Verdict{Failed: []string{}, Missed: []string{}, GeneratorBound: []string{}},
	}
	for _, s := range cfg.Settings {
		row, err := measure(ctx, &cfg, s, p)
		if err != nil {
			return r, err
		}
		row.verdict.Missed = append(row.verdict.Missed, row.objectives(&cfg, "calls", row.Completed)...)
		r.Rows = append(r.Rows, row)
		r.Verdict.add(row.verdict)
		r.Verdict.conclude()
		r.TookS = time.Since(r.Started).Seconds()
	}
	return r, nil
}

// connectionsOfUser are its own two, and one of the server's to the back end, of
// which either end is in one of two processes with a limit each.
const connectionsOfUser = 3

// ready checks the Config, and what it needs of this machine.
func (c *Config) ready() error {
	if err := c.check(); err != nil {
		return err
	}
	return loadtest.CheckOpenFiles(connectionsOfUser * c.Users)
}

// measure makes one run.
func measure(ctx context.Context, cfg *Config, s Setting, p loadtest.Progress) (Row, error) {
	t, stop, err := startTrial(ctx, cfg, s, p)
	if err != nil {
		return Row{}, err
	}
	row := t.run(ctx, p)
	if ended := stop(); ended != nil {
		row.verdict.Failed = append(row.verdict.Failed, row.named("%v", ended))
	}
	return row, context.Cause(ctx)
}
