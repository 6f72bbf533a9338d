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

// How long what is to come may take on a machine that does much else, which nobody
// waits for, and what never comes is waited for.
const (
	patience = 30 * time.Second
	inVain   = 5 * time.Second
)

func quickly(c *Common, s *fakeServer) {
	c.Target, c.Admin = s.http.URL, s.http.URL
	c.Settle, c.Drain = 0, patience
}

// burstPeriod is long enough for most bursts.
const burstPeriod = 300 * time.Millisecond

func smallBroadcast(s *fakeServer) BroadcastConfig {
	c := DefaultBroadcast()
	quickly(&c.Common, s)
	c.Clients, c.Period, c.Bursts, c.Warmup = 5, burstPeriod, 5, 1
	return c
}

// faultyBroadcast is of a server that misbehaves at a certain message: one connection
// publishes all, so that offsets are those of the schedule however late a burst is.
func faultyBroadcast(s *fakeServer) BroadcastConfig {
	c := smallBroadcast(s)
	c.MaxPublishers, c.Drain = 1, inVain
	return c
}

func smallCollab(s *fakeServer) CollabConfig {
	c := DefaultCollab()
	quickly(&c.Common, s)
	c.Topics, c.ClientsPerTopic, c.Delay, c.Rounds, c.RoundTimeout = 4, 3, 5*time.Millisecond, 6, patience
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
		wantWithin(t, r, 25, 30)
		wantBursts(t, r, 0)
		require.EqualValues(t, 5, r.Bursts.Completion.Count)
	})
}

// wantWithin holds if the window has what belongs to it; a warm-up that is late may
// come in it, too.
func wantWithin(t *testing.T, r Result, recorded, all int64) {
	t.Helper()
	require.GreaterOrEqual(t, r.Generator.Deliveries, recorded)
	require.LessOrEqual(t, r.Generator.Deliveries, all)
}

// wantBursts holds if as many bursts are in time as were complete within a period: how
// many those are is up to the machine.
func wantBursts(t *testing.T, r Result, incomplete int) {
	t.Helper()
	require.Len(t, r.Bursts.Completions, 5-incomplete)
	inTime := 0
	for _, took := range r.Bursts.Completions {
		if took < r.Parameters.PeriodMS {
			inTime++
		}
	}
	require.Equal(t, Bursts{Total: 5, InTime: inTime, Incomplete: incomplete}, withoutTimes(r.Bursts))
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
	if r.Server.CPUNote != "" { // of so short a window
		require.Contains(t, r.Server.CPUNote, "too early or too late for a window")
	}
	require.EqualValues(t, 1_000_000, r.Server.ResidentBeforeBytes)
	require.EqualValues(t, 2_000_000, r.Server.ResidentConnectedBytes)
	scrapes := r.Server.ResidentEndBytes / 1_000_000 // of which the third begins the window
	require.Equal(t, 10*(scrapes-3), r.Server.BytesIn)
	require.Equal(t, 2*r.Server.BytesIn, r.Server.BytesOut)
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
	r := runBroadcast(t, faultyBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 29, Lost: 1, Gaps: map[string]int64{}}, r.Deliveries)
	wantBursts(t, r, 1)
	require.Equal(t, ExitMissed, ExitCode(r))
	require.Equal(t, []string{"1 of 30 deliveries were lost; the limit is 0", fmt.Sprintf("only %d of 5 bursts in time", r.Bursts.InTime)}, r.Failed())
}

func TestAnAllowedLossIsNoFailure(t *testing.T) {
	t.Parallel()
	// The first burst is warm-up: no recorded one is late by it, but the loss counts.
	s := startFake(t, faults{lines: func(subscriber int, m *wire.Message, line string) []string {
		if subscriber == 1 && m.Position.Offset == 1 {
			return nil
		}
		return []string{line}
	}})
	c := faultyBroadcast(s)
	c.MaxLoss = 1
	r := runBroadcast(t, c)
	require.EqualValues(t, 1, r.Deliveries.Lost)
	wantBursts(t, r, 0)
	require.NotContains(t, strings.Join(r.Failed(), "\n"), "lost")
	require.Empty(t, r.Verdict.Failed)
}

func TestADoubledMessageIsReported(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(_ *wire.Message, line string) []string { return []string{line, line} }))
	r := runBroadcast(t, faultyBroadcast(s))
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
	require.EqualValues(t, 1, runBroadcast(t, faultyBroadcast(s)).Deliveries.Duplicates)
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
		return []string{line, string(wire.Content{Message: &renumbered}.AppendJSON(nil))}
	}})
	r := runBroadcast(t, faultyBroadcast(s))
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
	r := runBroadcast(t, faultyBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 30, Disordered: 1, Gaps: map[string]int64{}}, r.Deliveries)
	wantBursts(t, r, 0)
	require.Less(t, r.Bursts.InTime, 5, "the held one was late")
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestAnAnnouncedGapIsReportedWithItsLoss(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(m *wire.Message, _ string) []string {
		before := m.Position
		before.Offset--
		gap := wire.Gap{Topic: m.Position.Topic, Reason: wire.GapSlow, After: before, Position: m.Position}
		return []string{string(wire.Content{Gap: &gap}.AppendJSON(nil))}
	}))
	r := runBroadcast(t, faultyBroadcast(s))
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
	r := runBroadcast(t, faultyBroadcast(s))
	require.Equal(t, Deliveries{Expected: 30, Delivered: 30, EpochChanges: 1, Gaps: map[string]int64{}}, r.Deliveries)
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestASlowServerHasLateBursts(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{delay: 2 * burstPeriod})
	c := smallBroadcast(s)
	c.MaxP99 = burstPeriod
	r := runBroadcast(t, c)
	require.Zero(t, r.Bursts.InTime)
	require.Zero(t, r.Bursts.Incomplete)
	require.GreaterOrEqual(t, r.Latency.MedianMS, 600.0)
	require.Greater(t, s.mostAtOnce(), 1, "it publishes on schedule, not on answer")
	require.Len(t, r.Failed(), 2, "late bursts and latency: %v", r.Failed())
	require.Equal(t, ExitMissed, ExitCode(r))
}

// With one publisher connection and a slow server the publishes queue, and the
// time they queue for is in the latency and in the lag.
func TestWaitingForAConnectionIsLatency(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{delay: 2 * burstPeriod})
	c := smallBroadcast(s)
	c.MaxPublishers = 1
	r := runBroadcast(t, c)
	require.Positive(t, r.Publishes.Waited)
	require.LessOrEqual(t, r.Publishes.Waited, int64(5), "the first does not")
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
	c := faultyBroadcast(s)
	c.Mode = client.Single // each poll acks one message
	r := runBroadcast(t, c)
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
			r := runBroadcast(t, faultyBroadcast(s))
			require.Len(t, r.Errors, 1)
			require.Equal(t, ExitFailed, ExitCode(r))
		})
	}
}

func TestALostRoundIsGivenUpAndTheCycleGoesOn(t *testing.T) {
	t.Parallel()
	s := startFake(t, at(func(*wire.Message, string) []string { return nil }))
	c := smallCollab(s)
	c.RoundTimeout, c.Drain = inVain, inVain
	r, err := RunCollab(t.Context(), c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Deliveries.Lost)
	require.Equal(t, int64(24), r.Rounds.Complete+r.Rounds.TimedOut)
	require.LessOrEqual(t, r.Rounds.TimedOut, int64(1), "none, if the lost copy was the publisher's own")
	require.Equal(t, ExitMissed, ExitCode(r))
}

func TestALateRoundIsLost(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{delay: inVain}) // much longer than rounds are waited for
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
	c := smallSteady(s)
	c.Drain = inVain
	r, err := RunSteady(t.Context(), c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Deliveries.Lost)
}

// nobody listens there: the port is not one that the kernel gives to others meanwhile.
const nobody = "http://127.0.0.1:1"

func TestNoServerIsAnError(t *testing.T) {
	t.Parallel()
	c := smallBroadcast(startFake(t, faults{}))
	c.Target, c.Admin = nobody, ""
	_, err := RunBroadcast(t.Context(), c, nil)
	require.ErrorContains(t, err, "connection refused")
}

func TestACancelledRunEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	c := smallBroadcast(startFake(t, faults{}))
	c.Bursts = 10_000
	r, err := RunBroadcast(ctx, c, progressFunc(func(s Status) {
		if s.Phase == "broadcast" && s.Deliveries > 5 { // more than the warm-up's
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
		if s.Phase == "broadcast" && s.Done > 0 {
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
	c := smallBroadcast(s)
	c.Drain = inVain
	r := runBroadcast(t, c)
	require.Len(t, r.Errors, 1)
	require.Equal(t, "publish unanswered", r.Errors[0].Kind)
	require.EqualValues(t, 6, r.Errors[0].Count)
	require.EqualValues(t, 5, r.Deliveries.Lost, "five connections are busy, and the sixth message waits")
	require.Equal(t, ExitFailed, ExitCode(r))
}

func TestTheLastAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := startFake(t, faults{answer: func(p wire.Published) string {
		if p.Position.Offset == 6 {
			<-time.After(inVain)
		}
		return fmt.Sprintf(`{"position":%q,"time":1}`, p.Position)
	}})
	c := faultyBroadcast(s)
	c.Drain = patience
	r := runBroadcast(t, c)
	require.Empty(t, r.Errors)
	require.EqualValues(t, 5, r.Publishes.Answer.Count)
	require.Less(t, r.Generator.WindowS, (4*burstPeriod + inVain).Seconds(), "it ends with the last delivery")
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
	c := faultyBroadcast(s)
	c.Drain = 2 * inVain
	r := runFor(t, c)
	end := r.sampler.taken[windowEnds].asked
	require.EqualValues(t, 1, r.verifier.missing())
	require.GreaterOrEqual(t, r.sampler.taken[windowBegins].asked, r.watch.began.at)
	require.Less(t, r.sampler.taken[windowNears].asked, r.watch.ended.at)
	require.GreaterOrEqual(t, end, r.watch.ended.at+linger)
	require.Less(t, end, r.watch.ended.at+linger+c.Drain/2)
	require.Less(t, r.watch.ended.at-r.watch.began.at, 4*burstPeriod+c.Drain/2)
}

// What came before the window is not in its figures, and what comes after it is waited
// for.
func TestAWindowCountsItsOwnDeliveries(t *testing.T) {
	b := newBroadcast(DefaultBroadcast())
	b.start(0)
	r := newRun(t.Context(), defaultCommon(), b, &dialled{}, "h")
	r.reporter = startReporter(silent{})
	defer r.reporter.stop()
	r.verifier.delivered = 7
	r.approachWindow(b.window() - ms)
	r.verifier.delivered += 2
	r.approachWindow(b.window())
	r.verifier.delivered += 5
	r.drain(b.window() + s1)
	r.sampler.pending.Wait()
	require.EqualValues(t, 5, r.watch.generator().Deliveries)
	require.InDelta(t, 1, r.watch.generator().WindowS, 1e-9)

	end := b.window() + s1
	r.lingered(end + linger - 1)
	require.Equal(t, lingering, r.phase, "for duplicates")
	r.lingered(end + linger)
	r.sampler.pending.Wait() // the closing sample
	r.lingered(end + linger)
	require.Equal(t, over, r.phase)
}

type progressFunc func(Status)

func (progressFunc) Notice(string)     {}
func (f progressFunc) Update(s Status) { f(s) }

func withoutTimes(b *Bursts) Bursts {
	return Bursts{Total: b.Total, InTime: b.InTime, Incomplete: b.Incomplete}
}
