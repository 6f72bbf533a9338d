package loadtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// searched runs the logic of a search against a server that holds so many clients
// while exploring, and so many over all bursts.
func searched(t *testing.T, s *search, explored, confirmed int) []Trial {
	t.Helper()
	for range 100 {
		clients, bursts, done := s.next()
		if done {
			return s.trials
		}
		holds := explored
		if bursts == s.full {
			holds = confirmed
		}
		trial := Trial{Clients: clients, Bursts: bursts, Held: clients <= holds}
		if !trial.Held {
			trial.Reason = "late"
		}
		s.learn(trial)
	}
	require.Fail(t, "the search does not end")
	return nil
}

func TestSearchesFindTheMostThatIsHeld(t *testing.T) {
	for _, c := range []struct {
		name                string
		begin, most, topics int
		explored, confirmed int
		found               int
		limit               string
		trials              []int
	}{
		{"doubles and bisects", 1000, 18000, 1, 5000, 5000, 5000, LimitServer, []int{1000, 2000, 4000, 8000, 6000, 5000, 5500, 5250, 5000}},
		{"halves until one is held", 1000, 18000, 1, 130, 130, 128, LimitServer, []int{1000, 500, 250, 125, 187, 156, 140, 132, 128, 128}},
		{"steps down until it holds for long", 1000, 18000, 1, 5000, 4600, 4512, LimitServer, []int{1000, 2000, 4000, 8000, 6000, 5000, 5500, 5250, 5000, 4750, 4512}},
		{"open files end it", 5000, 18000, 1, 1 << 30, 1 << 30, 18000, LimitOpenFiles, []int{5000, 10000, 18000, 18000}},
		{"open files before the first", 50000, 18000, 1, 1 << 30, 1 << 30, 18000, LimitOpenFiles, []int{18000, 18000}},
		{"as many on each topic", 1000, 18000, 300, 2000, 1999, 1800, LimitServer, []int{900, 1800, 3600, 2700, 2100, 1800}},
		{"fewer than one on each topic to begin with", 10, 18000, 300, 700, 700, 600, LimitServer, []int{300, 600, 1200, 900, 600}},
		{"nothing is held", 8, 18000, 1, 0, 0, 0, LimitServer, []int{8, 4, 2, 1}},
		{"nothing is held for long", 2, 18000, 1, 3, 0, 0, LimitServer, []int{2, 4, 3, 3, 2, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSearch(c.begin, c.most, c.topics, 100)
			trials := searched(t, s, c.explored, c.confirmed)
			p := s.point(time.Second)
			var tried []int
			for i, trial := range trials {
				require.Zero(t, trial.Clients%c.topics)
				if once := i == 0 || trials[i-1].Held || trials[i-1].Clients != trial.Clients; once {
					tried = append(tried, trial.Clients)
				}
			}
			require.Equal(t, c.trials, tried)
			require.Equal(t, c.found, p.Clients)
			require.Equal(t, c.limit, p.LimitedBy)
			require.NotEmpty(t, p.Reason)
		})
	}
}

func TestATrialThatFailsOnceIsMadeAgain(t *testing.T) {
	s := newSearch(1000, 4000, 1, 100)
	for _, held := range []bool{true, false, true, true, true} {
		clients, bursts, done := s.next()
		require.False(t, done)
		s.learn(Trial{Clients: clients, Bursts: bursts, Held: held, Reason: "busy"})
	}
	_, _, done := s.next()
	require.True(t, done)
	p := s.point(time.Second)
	require.Equal(t, 4000, p.Clients)
	require.Equal(t, LimitOpenFiles, p.LimitedBy)
}

// Whatever the server holds: the result was held over all bursts, and what was not
// is at most the precision above it, or one client on each topic.
func TestSearchesAreAsPreciseAsTheySay(t *testing.T) {
	for _, unit := range []int{1, 7, 100} {
		for holds := 1; holds < 20_000; holds = holds*13/10 + 1 {
			s := newSearch(1000, 18_000, unit, 100)
			trials := searched(t, s, holds, holds*9/10)
			if s.held > 0 {
				last := trials[len(trials)-1]
				require.True(t, last.Held)
				require.Equal(t, 100, last.Bursts)
				require.Equal(t, s.held, last.Clients)
			}
			if s.failed > 0 {
				gap := s.failed - s.held
				require.LessOrEqual(t, gap, max(int(searchPrecision*float64(s.failed))+unit, unit), "unit %d, holds %d", unit, holds)
			}
			require.LessOrEqual(t, len(trials), 40)
		}
	}
}

// fakeTrials is a server that holds so many clients each millisecond of a period.
func fakeTrials(perMS int, bound bool, log *[]BroadcastConfig) trialRunner {
	return func(_ context.Context, cfg BroadcastConfig, exploring bool, _ Progress) (Result, error) {
		*log = append(*log, cfg)
		r := Result{Scenario: "broadcast", Bursts: &Bursts{Total: cfg.Bursts, InTime: cfg.Bursts}}
		r.Deliveries.Expected = 1
		r.Generator.LagThresholdMS = 1
		if float64(cfg.Clients) > float64(perMS)*stats.Milliseconds(cfg.Period) {
			r.Bursts.InTime--
			if bound {
				r.Generator.Thread.BusyInBursts = 1
			}
		}
		r.judge()
		return r, nil
	}
}

func searchConfig(periods ...time.Duration) SearchConfig {
	c := SearchConfig{Broadcast: DefaultBroadcast(), Periods: periods}
	c.Broadcast.Target, c.Broadcast.Clients = "http://127.0.0.1:1", 1000
	return c
}

func TestASearchGoesThroughItsPeriods(t *testing.T) {
	for limit, bound := range map[string]bool{LimitServer: false, LimitGenerator: true} {
		var log []BroadcastConfig
		r, err := searchAll(t.Context(), searchConfig(100*ms, 200*ms, s1), 18000, silent{}, fakeTrials(50, bound, &log))
		require.NoError(t, err)
		require.Len(t, r.Points, 3)
		for i, want := range []float64{5000, 10000} {
			require.InEpsilon(t, want, float64(r.Points[i].Clients), searchPrecision)
			require.Equal(t, limit, r.Points[i].LimitedBy)
			require.Contains(t, r.Points[i].Reason, "bursts in time")
		}
		require.Equal(t, 18000, r.Points[2].Clients)
		require.Equal(t, LimitOpenFiles, r.Points[2].LimitedBy)
		require.NotNil(t, r.Points[2].Result)
		require.Equal(t, r.Points[0].Clients, r.Points[1].Trials[0].Clients, "begins where the last ended")
		require.Equal(t, map[bool]int{false: ExitOK, true: ExitGeneratorBound}[bound], r.ExitCode())
	}
}

func TestATestThatCannotBeMadeIsNotHeldIfFewerClientsAre(t *testing.T) {
	var log []BroadcastConfig
	good := fakeTrials(1<<20, false, &log)
	refusing := func(ctx context.Context, cfg BroadcastConfig, exploring bool, p Progress) (Result, error) {
		if cfg.Clients > 3000 {
			return Result{}, errors.New("connection refused")
		}
		return good(ctx, cfg, exploring, p)
	}
	r, err := searchAll(t.Context(), searchConfig(s1), 18000, silent{}, refusing)
	require.NoError(t, err)
	require.InEpsilon(t, 3000, r.Points[0].Clients, searchPrecision)
	require.Equal(t, "connection refused", r.Points[0].Reason)

	never := func(context.Context, BroadcastConfig, bool, Progress) (Result, error) {
		return Result{}, errors.New("connection refused")
	}
	_, err = searchAll(t.Context(), searchConfig(s1), 18000, silent{}, never)
	require.ErrorContains(t, err, "period 1s, 1000 clients: connection refused")
}

func TestASearchThatIsInterruptedKeepsWhatItFound(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var log []BroadcastConfig
	good := fakeTrials(50, false, &log)
	r, err := searchAll(ctx, searchConfig(100*ms, s1), 18000, silent{}, func(ctx context.Context, cfg BroadcastConfig, e bool, p Progress) (Result, error) {
		if cfg.Period == s1 {
			cancel()
			return Result{}, ctx.Err()
		}
		return good(ctx, cfg, e, p)
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, r.Points, 1)
}

func TestSearchesAreCheckedWithTheirFlags(t *testing.T) {
	none := searchConfig()
	_, err := none.check()
	require.ErrorContains(t, err, "--period")
	negative := searchConfig(s1, -s1)
	_, err = negative.check()
	require.ErrorContains(t, err, "--period")
	crowded := searchConfig(s1)
	crowded.Broadcast.Topics, crowded.Broadcast.Clients = mostClients, mostClients
	_, err = crowded.check()
	require.ErrorContains(t, err, "--topics")
	good := searchConfig(s1)
	most, err := good.check()
	require.NoError(t, err)
	require.Positive(t, most)
	require.Equal(t, 20_000-spareFiles-spareDescriptors-16, mostWithin(20_000, 16))
	require.Equal(t, mostClients, mostWithin(1<<63, 16))
	require.Zero(t, mostWithin(64, 16))
}

func TestASearchOfARealServer(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{}))
	c.Clients, c.Bursts, c.MaxP99 = 2, 3, time.Microsecond // which nothing holds
	r, err := RunSearch(t.Context(), SearchConfig{Broadcast: c, Periods: []time.Duration{50 * ms}}, nil)
	require.NoError(t, err)
	require.Len(t, r.Points, 1)
	require.Zero(t, r.Points[0].Clients)
	require.Equal(t, ExitMissed, r.ExitCode())
	require.Len(t, r.Points[0].Trials, 4, "each twice")
	require.Regexp(t, "p99|bursts in time", r.Points[0].Reason)
}
