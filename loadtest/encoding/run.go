package encoding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// Progress is told how the test gets on. Its calls come one at a time.
type Progress func(line string)

// Run measures everything. It returns when all has stopped that it has started. A
// Result may come with an error: the test ended before its time, and holds what
// was measured until then. A ConfigError is of a test that could not begin.
func Run(ctx context.Context, cfg Config, say Progress) (*Result, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s, err := newServer(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer s.end()
	if s.child != nil {
		say(fmt.Sprintf("started a server as process %d at %s; it is stopped after the test", s.pid, s.target))
	}
	r := newResult(&cfg, s)
	err = measure(ctx, &cfg, s, r, say)
	if f, ok := errors.AsType[*fault](err); ok && ctx.Err() == nil {
		r.Faults, err = append(r.Faults, f.Error()), nil
	}
	err = s.ending(ctx, err)
	r.conclude(err)
	return r, err
}

// measure fills r: first the loads, in rounds, then the sizes.
func measure(ctx context.Context, cfg *Config, s *server, r *Result, say Progress) error {
	offered, err := probe(ctx, cfg, s, r)
	if err != nil {
		return err
	}
	for round := range cfg.Rounds {
		say(fmt.Sprintf("round %d of %d: %d loads of %v", round+1, cfg.Rounds, len(offered)*len(cfg.Objects), cfg.Duration))
		if err := measureRound(ctx, cfg, s, r, turn(offered, round)); err != nil {
			return err
		}
	}
	say("the size table")
	r.Shapes, err = measureShapes(ctx, cfg.Seed, effortOf(cfg.Duration))
	return err
}

// probe finds out by one client's first trips what the server does not offer, which
// is then left out, and said.
func probe(ctx context.Context, cfg *Config, s *server, r *Result) (offered []codec, err error) {
	for _, c := range codecs() {
		err := probeOne(ctx, cfg, s, c)
		switch {
		case notOffered(err):
			r.Missing = append(r.Missing, Missing{Encoding: c.name, Reason: err.Error()})
		case err != nil:
			return nil, fmt.Errorf("%s: %w", c.name, err)
		default:
			offered = append(offered, c)
		}
	}
	return offered, nil
}

func probeOne(ctx context.Context, cfg *Config, s *server, c codec) error {
	for _, objects := range cfg.Objects {
		l, err := newLoad(ctx, s, c, 1, objects, cfg.Seed)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, l.cut)()
		e := l.clients[0]
		e.setDeadline(time.Now().Add(patience))
		if err := errors.Join(e.trip(), e.close()); err != nil {
			return err
		}
	}
	return nil
}

// turn is the order of a round: who is first in one is last in the next.
func turn(all []codec, round int) []codec {
	n := round % max(len(all), 1)
	return slices.Concat(all[n:], all[:n])
}

func measureRound(ctx context.Context, cfg *Config, s *server, r *Result, order []codec) error {
	for _, objects := range cfg.Objects {
		for _, c := range order {
			l, err := newLoad(ctx, s, c, cfg.Clients, objects, cfg.Seed)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			sum, err := l.run(ctx, warmup(cfg.Duration), cfg.Duration)
			if err != nil {
				return fmt.Errorf("%d objects in %s: %w", objects, c.name, err)
			}
			r.row(objects, c.name).add(sum)
		}
	}
	return nil
}

// warmup is what is left out of a load before it is recorded.
func warmup(duration time.Duration) time.Duration {
	return min(duration/4, time.Second)
}

// cores is how many the clients, and a server on this machine, have.
func cores() int { return loadtest.Here().Cores }
