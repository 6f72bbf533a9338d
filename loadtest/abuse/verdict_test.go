package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/stats"
)

// wellServed are victims who all had what they should, as fast as is said.
func wellServed(p99 time.Duration) Victims {
	v := Victims{Deliveries: Deliveries{Expected: 100, Delivered: 100}, Latency: stats.NewLatency(), Lag: stats.NewLatency()}
	for range 90 {
		v.Latency.Record(p99 / 2)
	}
	for range 10 {
		v.Latency.Record(p99)
	}
	return v
}

// goodRun is one in which nobody noticed anything.
func goodRun() *Result {
	phase := func(p99 time.Duration) Phase {
		return Phase{
			Raid:    Raid{Seconds: 15, Operations: 1500, PerSecond: 100, Connections: 10, MostOpen: 5, Answers: map[string]int64{"404": 20, "429": 1480}},
			Victims: wellServed(p99),
			Server: Server{
				CPUSeconds: 1.5, ResidentBytes: 100 << 20, AccountedBytes: 20 << 20, SocketBytes: 5 << 20,
				Refused: map[string]int64{"limited": 1480}, Limited: map[string]int64{"rates.misses.address": 1480}, Ended: map[string]int64{"refused": 3},
			},
		}
	}
	r := &Result{
		Finished: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Build: "v1", Cores: 2, Victims: 10, AttackS: 15,
		BudgetBytes: 256 << 20, MemoryLimit: 512 << 20,
		Attacks: []Attacked{
			{Name: "guesses", What: "guessed ids", Sink: phase(10 * time.Millisecond), Live: phase(15 * time.Millisecond)},
			{Name: "topics", What: "new topics", Sink: phase(10 * time.Millisecond), Live: phase(12 * time.Millisecond)},
		},
	}
	return r.judged()
}

func (r *Result) judged() *Result {
	live, sink := r.overallLatency()
	r.OverallRatio = ratio(live, sink)
	r.Verdicts = judge(r)
	return r
}

func TestARunInWhichNobodyNoticedAnythingPasses(t *testing.T) {
	r := goodRun()
	require.True(t, r.passed(), "%v", r.Verdicts)
	require.Len(t, r.Verdicts, 4)
	require.False(t, (&Result{}).passed(), "a run of nothing")
	require.False(t, (&Result{}).judged().passed(), "a run of nothing")
}

func TestWhatMakesARunFail(t *testing.T) {
	for name, spoil := range map[string]func(a *Attacked){
		"a message lost":                            func(a *Attacked) { a.Live.Victims.Lost, a.Live.Victims.Delivered = 1, 99 },
		"a message lost without being noticed":      func(a *Attacked) { a.Live.Victims.Delivered = 99 },
		"a message lost while the sink is attacked": func(a *Attacked) { a.Sink.Victims.Lost = 1 },
		"a duplicate":                               func(a *Attacked) { a.Live.Victims.Duplicates = 1 },
		"a gap":                                     func(a *Attacked) { a.Live.Victims.Gaps = 1 },
		"a session lost":                            func(a *Attacked) { a.Live.Victims.SessionsLost = 1 },
		"a publish refused":                         func(a *Attacked) { a.Live.Victims.Refused = 1 },
		"a p99 over twice":                          func(a *Attacked) { a.Live.Victims = wellServed(21 * time.Millisecond) },
		"nothing measured":                          func(a *Attacked) { a.Live.Victims.Latency = stats.NewLatency() },
		"nothing to compare with":                   func(a *Attacked) { a.Sink.Victims.Latency = stats.NewLatency() },
		"more accounted than budget":                func(a *Attacked) { a.Live.Server.AccountedBytes = 257 << 20 },
		"more resident than limit":                  func(a *Attacked) { a.Live.Server.ResidentBytes = 513 << 20 },
		"an attack that was none":                   func(a *Attacked) { a.Live.Raid = Raid{} },
		"a sink that nobody reached":                func(a *Attacked) { a.Sink.Raid.Connections = 0 },
		"an attack that never began":                func(a *Attacked) { a.Live.Raid.NotBegun = "refused" },
	} {
		t.Run(name, func(t *testing.T) {
			r := goodRun()
			spoil(&r.Attacks[1])
			missed := 0
			for _, v := range r.judged().Verdicts {
				if !v.Met {
					missed++
					require.Contains(t, v.Found+v.Demand, map[bool]string{true: "topics", false: "MiB"}[!(name == "more accounted than budget" || name == "more resident than limit")])
				}
			}
			require.Equal(t, 1, missed, "%v", r.Verdicts)
			require.False(t, r.passed())
		})
	}
}

func TestAPollThatAnAbandonedOneReplacedMakesARunFail(t *testing.T) {
	r := goodRun()
	r.Attacks[1].Name = racing
	require.True(t, r.judged().passed(), "%v", r.Verdicts)
	r.Attacks[1].Live.Raid.Answers["409"] = 1
	require.False(t, r.judged().passed())
	require.Equal(t, "1 of 1500 polls", r.Verdicts[4].Found)
}

// Each attack may be within the bound, and all of them together not: the slowest
// of all deliveries may be those of one run.
func TestOverallCountsToo(t *testing.T) {
	r := goodRun()
	r.judged()
	r.OverallRatio = 2.1
	require.False(t, r.fastEnough().Met)
}

func TestTheReport(t *testing.T) {
	r := goodRun()
	r.Attacks[1].Live.Victims.Lost, r.Attacks[1].Live.Victims.FirstError = 2, "refused"
	got := r.judged().report()
	path := filepath.Join("testdata", "report.txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "run with -update if it is meant")
}
