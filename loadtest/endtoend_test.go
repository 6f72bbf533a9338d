package loadtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Everything here runs over real loopback connections with few clients. The
// instrument must report exactly what the server does wrong, and nothing when it
// does all right.

func quickly(c *Common, s *fakeServer) {
	c.Target, c.Admin = s.http.URL, s.http.URL
	c.Settle, c.Drain = 0, 500*time.Millisecond
}

// burstPeriod is long enough for a burst on a machine that does much else.
const burstPeriod = 300 * time.Millisecond

func smallBroadcast(s *fakeServer) BroadcastConfig {
	c := DefaultBroadcast()
	quickly(&c.Common, s)
	c.Clients, c.Period, c.Bursts, c.Warmup = 5, burstPeriod, 5, 1
	return c
}

func smallCollab(s *fakeServer) CollabConfig {
	c := DefaultCollab()
	quickly(&c.Common, s)
	c.Topics, c.ClientsPerTopic, c.Delay, c.Rounds, c.RoundTimeout = 4, 3, 5*time.Millisecond, 6, 300*time.Millisecond
	return c
}

func smallSteady(s *fakeServer) SteadyConfig {
	c := DefaultSteady()
	quickly(&c.Common, s)
	c.Topics, c.ClientsPerTopic, c.Period, c.Warmup, c.Duration = 3, 2, 50*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond
	return c
}

func runBroadcast(t *testing.T, c BroadcastConfig) Result {
	t.Helper()
	r, err := RunBroadcast(t.Context(), c, nil)
	require.NoError(t, err)
	return r
}

// forEveryWay runs a test for every mode, with sessions and without, and for the
// portable event loop with one mode of each kind of answer.
func forEveryWay(t *testing.T, test func(t *testing.T, loop newLoop, set func(*Common))) {
	for _, mode := range client.Modes() {
		for _, stateless := range []bool{false, true} {
			set := func(c *Common) { c.Mode, c.Stateless = mode, stateless }
			name := fmt.Sprintf("%s/stateless=%v", mode, stateless)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, eventloop.New, set)
			})
			if mode == client.Batch || mode == client.Stream {
				t.Run("portable/"+name, func(t *testing.T) {
					t.Parallel()
					test(t, eventloop.NewPortable, set)
				})
			}
		}
	}
	for name, set := range pushedWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, eventloop.New, set)
		})
	}
}

// pushedWays are those in which clients of pubsubd are not polled.
var pushedWays = map[string]func(*Common){
	"sse":              func(c *Common) { c.Transport = client.SSE },
	"websocket":        func(c *Common) { c.Transport = client.WebSocket },
	"websocket/binary": func(c *Common) { c.Transport, c.Format = client.WebSocket, client.CBOR },
}

func TestBroadcastOfAGoodServer(t *testing.T) {
	t.Parallel()
	forEveryWay(t, func(t *testing.T, loop newLoop, set func(*Common)) {
		c := smallBroadcast(startFake(t, faults{}))
		c.Period = 30 * time.Millisecond
		set(&c.Common)
		r, err := executeOn(t.Context(), loop, c.Common, newBroadcast(c), nil)
		require.NoError(t, err)
		wantClean(t, r, 6*5)
		require.EqualValues(t, 25, r.Latency.Count, "warm-up is not recorded")
		require.EqualValues(t, 25, r.Generator.Deliveries)
		require.Zero(t, r.Bursts.Incomplete)
		require.EqualValues(t, 5, r.Bursts.Completion.Count)
		require.Len(t, r.Bursts.Completions, 5)
	})
}

func TestCollabOfAGoodServer(t *testing.T) {
	t.Parallel()
	forEveryWay(t, func(t *testing.T, loop newLoop, set func(*Common)) {
		c := smallCollab(startFake(t, faults{}))
		set(&c.Common)
		r, err := executeOn(t.Context(), loop, c.Common, newCollab(c), nil)
		require.NoError(t, err)
		wantClean(t, r, 4*6*3)
		require.EqualValues(t, 4*6*2, r.Latency.Count, "the publisher's own copy is no latency")
		require.Equal(t, Rounds{Total: 24, Complete: 24}, *r.Rounds)
	})
}

func TestSteadyOfAGoodServer(t *testing.T) {
	t.Parallel()
	forEveryWay(t, func(t *testing.T, loop newLoop, set func(*Common)) {
		c := smallSteady(startFake(t, faults{}))
		set(&c.Common)
		r, err := executeOn(t.Context(), loop, c.Common, newSteady(c), nil)
		require.NoError(t, err)
		wantClean(t, r, 6*6*2)
		require.EqualValues(t, 6*4*2, r.Latency.Count, "warm-up is not recorded, the publisher's own copy is")
	})
}

func wantClean(t *testing.T, r Result, deliveries int64) {
	t.Helper()
	require.Empty(t, r.Errors)
	require.Equal(t, Deliveries{Expected: deliveries, Delivered: deliveries, Gaps: map[string]int64{}}, r.Deliveries)
	require.Empty(t, r.Verdict.Failed)
	require.Positive(t, r.Latency.MeanMS)
	require.Positive(t, r.Publishes.Answer.Count)
	require.NotNil(t, r.Server)
	require.Contains(t, r.Server.CPUNote, "off the ends of a window", "which is a short one")
	require.EqualValues(t, 1_000_000, r.Server.ResidentBeforeBytes)
	require.EqualValues(t, 2_000_000, r.Server.ResidentConnectedBytes)
	require.EqualValues(t, 10, r.Server.BytesIn)
	require.EqualValues(t, 20, r.Server.BytesOut)
	require.Equal(t, map[string]string{"version": "v1", "go": "go1"}, r.Server.Build)
	require.Positive(t, r.Generator.BytesIn)
	require.Positive(t, r.Generator.BytesOut)
}

// at makes a fault of subscriber 2 at offset 3.
func at(fault func(m *wire.Message, line string) []string) faults {
	return faults{lines: func(subscriber int, m *wire.Message, line string) []string {
		if subscriber == 2 && m.Position.Offset == 3 {
			return fault(m, line)
		}
		return []string{line}
	}}
}

func TestALostMessageIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(*wire.Message, string) []string { return nil }))
	r := runBroadcast(t, smallBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 29, Lost: 1, Gaps: map[string]int64{}}, r.Deliveries)
	require.Equal(t, Bursts{Total: 5, InTime: 4, Incomplete: 1}, withoutTimes(r.Bursts))
	require.Equal(t, ExitMissed, ExitCode(r))
	require.Equal(t, []string{"1 of 30 deliveries lost, 0 allowed", "4 of 5 bursts in time"}, r.Failed())
}

func TestAnAllowedLossIsNoFailure(t *testing.T) {
	t.Parallel()
	// The first burst is warm-up: no recorded one is late, but the loss counts.
	s := startFake(t, faults{lines: func(subscriber int, m *wire.Message, line string) []string {
		if subscriber == 1 && m.Position.Offset == 1 {
			return nil
		}
		return []string{line}
	}})
	c := smallBroadcast(s)
	c.MaxLoss = 1
	r := runBroadcast(t, c)
	require.EqualValues(t, 1, r.Deliveries.Lost)
	require.Empty(t, r.Failed())
}

func TestADoubledMessageIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(_ *wire.Message, line string) []string { return []string{line, line} }))
	r := runBroadcast(t, smallBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 30, Duplicates: 1, Gaps: map[string]int64{}}, r.Deliveries)
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestADoubledLastMessageIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{lines: func(subscriber int, m *wire.Message, line string) []string {
		if subscriber == 2 && m.Position.Offset == 6 {
			return []string{line, line}
		}
		return []string{line}
	}})
	require.EqualValues(t, 1, runBroadcast(t, smallBroadcast(s)).Deliveries.Duplicates)
}

// A message that comes again under another position is a duplicate, too.
func TestARenumberedDuplicateIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{step: 2, lines: func(subscriber int, m *wire.Message, line string) []string {
		if subscriber != 2 || m.Position.Offset != 6 {
			return []string{line}
		}
		renumbered := *m
		renumbered.Position.Offset++
		return []string{line, string(wire.AppendMessage(nil, &renumbered))}
	}})
	r := runBroadcast(t, smallBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 30, Duplicates: 1, Gaps: map[string]int64{}}, r.Deliveries)
}

func TestAReorderedMessageIsReported(t *testing.T) {
	t.Parallel()
	held := ""
	s := startFake(t, faults{lines: func(subscriber int, m *wire.Message, line string) []string {
		switch {
		case subscriber == 2 && m.Position.Offset == 3:
			held = line
			return nil
		case subscriber == 2 && m.Position.Offset == 4:
			return []string{line, held}
		}
		return []string{line}
	}})
	r := runBroadcast(t, smallBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 30, Disordered: 1, Gaps: map[string]int64{}}, r.Deliveries)
	require.Equal(t, Bursts{Total: 5, InTime: 4}, withoutTimes(r.Bursts), "the held one was late")
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestAnAnnouncedGapIsReportedWithItsLoss(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(m *wire.Message, _ string) []string {
		before := m.Position
		before.Offset--
		gap := wire.Gap{Topic: m.Position.Topic, Reason: wire.GapSlow, After: before, Position: m.Position}
		return []string{string(wire.AppendGap(nil, &gap))}
	}))
	r := runBroadcast(t, smallBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 29, Lost: 1, Gaps: map[string]int64{"slow": 1}}, r.Deliveries)
}

func TestAChangedEpochIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{lines: func(subscriber int, m *wire.Message, line string) []string {
		if subscriber == 2 && m.Position.Offset >= 3 {
			line = strings.Replace(line, "@"+fakeEpoch+":", "@k4:", 1)
		}
		return []string{line}
	}})
	r := runBroadcast(t, smallBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 30, EpochChanges: 1, Gaps: map[string]int64{}}, r.Deliveries)
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestASlowServerHasLateBursts(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{delay: 2 * burstPeriod})
	c := smallBroadcast(s)
	c.MaxP99, c.Drain = burstPeriod, 5*time.Second
	r := runBroadcast(t, c)
	require.Zero(t, r.Bursts.InTime)
	require.Zero(t, r.Bursts.Incomplete)
	require.GreaterOrEqual(t, r.Latency.MedianMS, 600.0)
	require.Less(t, r.Generator.ScheduleLag.P99MS, 300.0, "it publishes on schedule, not on answer")
	require.Len(t, r.Failed(), 2, "late bursts and latency: %v", r.Failed())
	require.Equal(t, ExitMissed, ExitCode(r))
}

// With one publisher connection and a slow server the publishes queue, and the
// time they queue for is in the latency and in the lag.
func TestWaitingForAConnectionIsLatency(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{delay: 2 * burstPeriod})
	c := smallBroadcast(s)
	c.MaxPublishers, c.Drain = 1, 10*time.Second
	r := runBroadcast(t, c)
	require.EqualValues(t, 5, r.Publishes.Waited)
	require.GreaterOrEqual(t, r.Generator.ScheduleLag.MaxMS, 1500.0, "each of five waits a period longer")
	require.GreaterOrEqual(t, r.Latency.MaxMS, 2100.0, "and is then published for two periods")
	require.True(t, r.GeneratorBound())
}

func TestARefusedPublishFailsTheRun(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{refuse: func(n int) bool { return n == 3 }})
	r := runBroadcast(t, smallBroadcast(s))
	require.EqualValues(t, 1, r.Publishes.Refused)
	require.Equal(t, Deliveries{Expected: 25, Delivered: 25, Gaps: map[string]int64{}}, r.Deliveries)
	require.Len(t, r.Errors, 1)
	require.Contains(t, r.Errors[0].First, "answered 503: overloaded")
	require.Equal(t, ExitFailed, ExitCode(r))
}

func TestAGarbledAnswerToAPublishFailsTheRun(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(wire.Published) string{
		"a page":        func(wire.Published) string { return "<html>" },
		"nothing":       func(wire.Published) string { return "{}" },
		"another topic": func(p wire.Published) string { return `{"position":"a@k3:1","time":1}` },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runBroadcast(t, smallBroadcast(startFake(t, faults{answer: answer})))
			require.NotEmpty(t, r.Errors)
			require.Equal(t, "publisher's connection", r.Errors[0].Kind)
			require.EqualValues(t, 6, r.Errors[0].Count)
			require.Zero(t, r.Deliveries.Lost)
			require.Equal(t, ExitFailed, ExitCode(r))
		})
	}
}

func TestAClosedConnectionFailsTheRun(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{hangUp: func(subscriber, poll int) bool { return subscriber == 2 && poll == 3 }})
	r := runBroadcast(t, smallBroadcast(s))
	require.EqualValues(t, 3, r.Deliveries.Lost)
	require.Len(t, r.Errors, 1)
	require.Equal(t, "client's connection", r.Errors[0].Kind)
	require.Equal(t, ExitFailed, ExitCode(r))
}

func TestAnOddFrameFailsTheRun(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]string{
		"malformed":      "{\"position\":\n",
		"another's data": "{\"position\":\"%s\",\"time\":1,\"data\":[\"#000099\"]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startFake(t, at(func(m *wire.Message, _ string) []string {
				return []string{strings.Replace(odd, "%s", m.Position.String(), 1)}
			}))
			r := runBroadcast(t, smallBroadcast(s))
			require.Len(t, r.Errors, 1)
			require.Equal(t, ExitFailed, ExitCode(r))
		})
	}
}

func TestALostRoundIsGivenUpAndTheCycleGoesOn(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(*wire.Message, string) []string { return nil }))
	c := smallCollab(s)
	r, err := RunCollab(t.Context(), c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Deliveries.Lost)
	require.Equal(t, int64(24), r.Rounds.Complete+r.Rounds.TimedOut)
	require.LessOrEqual(t, r.Rounds.TimedOut, int64(1), "none, if the lost copy was the publisher's own")
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestALateRoundIsLost(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{delay: 200 * time.Millisecond})
	c := smallCollab(s)
	c.Rounds, c.Delay, c.RoundTimeout = 2, 150*time.Millisecond, 100*time.Millisecond
	r, err := RunCollab(t.Context(), c, nil)
	require.NoError(t, err)
	require.Equal(t, Deliveries{Expected: 24, Delivered: 8, Lost: 16, Late: 16, Gaps: map[string]int64{}}, r.Deliveries)
	require.Equal(t, Rounds{Total: 8, TimedOut: 8}, *r.Rounds)
	require.Zero(t, r.Latency.Count)
}

func TestALostSteadyMessageIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(*wire.Message, string) []string { return nil }))
	r, err := RunSteady(t.Context(), smallSteady(s), nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Deliveries.Lost)
}

func TestNoServerIsAnError(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{})
	c := smallBroadcast(s)
	c.Admin = ""
	s.http.Close()
	_, err := RunBroadcast(t.Context(), c, nil)
	require.ErrorContains(t, err, "connection refused")
}

func TestACancelledRunEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	c := smallBroadcast(startFake(t, faults{}))
	c.Bursts = 10_000
	r, err := RunBroadcast(ctx, c, progressFunc(func(s Status) {
		if s.Phase == "broadcast" && s.Elapsed > time.Second {
			cancel(nil)
		}
	}))
	require.ErrorIs(t, err, context.Canceled)
	wantEndedEarly(t, r)
	require.Positive(t, r.Generator.WindowS)
	require.Positive(t, r.Generator.Deliveries)
}

func TestARunCancelledBeforeItsWindowHasNone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := smallBroadcast(startFake(t, faults{}))
	c.Warmup = 10_000
	r, err := RunBroadcast(ctx, c, progressFunc(func(s Status) {
		if s.Phase == "broadcast" {
			cancel()
		}
	}))
	require.ErrorContains(t, err, "interrupted")
	wantEndedEarly(t, r)
	require.Equal(t, Generator{LagThresholdMS: 10}, r.Generator)
}

func TestARunCancelledWhileConnectingHasNoResult(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := smallBroadcast(startFake(t, faults{}))
	c.Settle = time.Minute
	r, err := RunBroadcast(ctx, c, progressFunc(func(Status) { cancel() }))
	require.ErrorContains(t, err, "interrupted")
	require.Zero(t, r)
}

// wantEndedEarly: the verdict is that of the process, and no objective was judged.
func wantEndedEarly(t *testing.T, r Result) {
	t.Helper()
	require.True(t, r.EndedEarly())
	require.Equal(t, ExitFailed, r.Verdict.ExitCode)
	require.Equal(t, []string{"ended early: interrupted: context canceled"}, r.Verdict.Failed)
	require.Empty(t, r.Verdict.Missed)
	require.Empty(t, r.Verdict.GeneratorBound)
	require.Nil(t, r.Server)
}

func TestPublishesNeverAnsweredFailTheRun(t *testing.T) {
	t.Parallel()
	silence := make(chan struct{})
	s := startFake(t, faults{answer: func(wire.Published) string { <-silence; return "" }})
	t.Cleanup(func() { close(silence) })
	r := runBroadcast(t, smallBroadcast(s))
	require.Len(t, r.Errors, 1)
	require.Equal(t, "publish unanswered", r.Errors[0].Kind)
	require.EqualValues(t, 6, r.Errors[0].Count)
	require.EqualValues(t, 5, r.Deliveries.Lost, "five connections are busy, and the sixth message waits")
	require.Equal(t, ExitFailed, ExitCode(r))
}

func TestTheLastAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{answer: func(p wire.Published) string {
		<-time.After(400 * time.Millisecond)
		return fmt.Sprintf(`{"position":%q,"time":1}`, p.Position)
	}})
	r := runBroadcast(t, smallBroadcast(s))
	require.Empty(t, r.Errors)
	require.EqualValues(t, 5, r.Publishes.Answer.Count)
	require.Less(t, r.Generator.WindowS, 4*burstPeriod.Seconds()+0.3, "it ends with the last delivery")
}

// runFor runs a broadcast and returns what carried it.
func runFor(t *testing.T, c BroadcastConfig) *run {
	t.Helper()
	address, authority, err := resolve(t.Context(), c.Target)
	require.NoError(t, err)
	loop, err := eventloop.New(eventloop.Config{Target: address})
	require.NoError(t, err)
	defer loop.Close()
	r := newRun(t.Context(), c.Common, newBroadcast(c), loop, authority)
	r.reporter = startReporter(silent{})
	require.NoError(t, loop.Run(t.Context(), r))
	r.reporter.stop()
	r.sampler.pending.Wait()
	return r
}

// With a loss the drain time is waited for in vain. Neither it nor what came
// before the window is in the figures; the last burst's polls are.
func TestSamplesAreTakenWhereTheWindowIs(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(*wire.Message, string) []string { return nil }))
	c := smallBroadcast(s)
	c.Drain = time.Second
	r := runFor(t, c)
	end := r.sampler.taken[windowEnds].asked
	require.EqualValues(t, 1, r.verifier.missing())
	require.GreaterOrEqual(t, r.sampler.taken[windowBegins].asked, r.watch.began.at)
	require.Less(t, r.sampler.taken[windowNears].asked, r.watch.began.at)
	require.GreaterOrEqual(t, end, r.watch.ended.at+linger)
	require.Less(t, end, r.watch.ended.at+linger+c.Drain/2)
	require.Less(t, r.watch.ended.at-r.watch.began.at, 4*burstPeriod+c.Drain/2)
}

type progressFunc func(Status)

func (progressFunc) Notice(string)     {}
func (f progressFunc) Update(s Status) { f(s) }

func withoutTimes(b *Bursts) Bursts {
	return Bursts{Total: b.Total, InTime: b.InTime, Incomplete: b.Incomplete}
}
