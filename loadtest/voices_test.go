package loadtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest/client"
	"github.com/pubsubd/pubsubd/loadtest/eventloop"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// What is wrong is counted over every transport: a loss, a doubled message, one that
// comes after the next, and a gap.
func TestFaultsAreCountedOverEveryTransport(t *testing.T) {
	t.Parallel()
	for name, set := range pushedWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held := ""
			c := faultyBroadcast(startFake(t, faults{lines: func(subscriber int, m *wire.Message, line string) []string {
				switch offset := m.Position.Offset; {
				case subscriber == 0 && offset == 3:
					return nil
				case subscriber == 1 && offset == 3:
					return []string{line, line}
				case subscriber == 2 && offset == 3:
					held = line
					return nil
				case subscriber == 2 && offset == 4:
					return []string{line, held}
				case subscriber == 3 && offset == 3:
					before := m.Position
					before.Offset--
					gap := wire.Gap{Topic: m.Position.Topic, Reason: wire.GapSlow, After: before, Position: m.Position}
					return []string{string(wire.Content{Gap: &gap}.AppendJSON(nil))}
				}
				return []string{line}
			}}))
			set(&c.Common)
			r := runBroadcast(t, c)
			require.Equal(t, Deliveries{
				Expected: 30, Delivered: 28, Lost: 2, Duplicates: 1, Disordered: 1, Gaps: map[string]int64{"slow": 1},
			}, r.Deliveries)
			require.Empty(t, r.Errors)
			require.Equal(t, ExitMissed, ExitCode(r))
		})
	}
}

func TestAServerThatEndsAPushFailsTheRun(t *testing.T) {
	t.Parallel()
	for name, set := range pushedWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := faultyBroadcast(startFake(t, at(func(*wire.Message, string) []string {
				return []string{`{"end":{"status":503,"code":"draining"}}` + "\n"}
			})))
			set(&c.Common)
			r := runBroadcast(t, c)
			require.Len(t, r.Errors, 1)
			require.Contains(t, r.Errors[0].First, "the server is draining")
			require.Equal(t, ExitFailed, ExitCode(r))
		})
	}
}

// onSockets has clients publish on their own connections.
func onSockets(c *Common, format client.Format) {
	c.Transport, c.Format, c.Voices = client.WebSocket, format, true
}

func TestClientsPublishOnTheirOwnConnections(t *testing.T) {
	t.Parallel()
	for _, format := range client.Formats() {
		for name, loop := range map[string]newLoop{"": eventloop.New, "portable/": eventloop.NewPortable} {
			t.Run(name+string(format), func(t *testing.T) {
				t.Parallel()
				served := startFake(t, faults{})
				c := smallCollab(served)
				onSockets(&c.Common, format)
				r, err := executeOn(t.Context(), loop, c.Common, newCollab(c), nil)
				require.NoError(t, err)
				wantClean(t, r, 4*6*3)
				require.Equal(t, Rounds{Total: 24, Complete: 24}, *r.Rounds)
				require.Zero(t, r.Parameters.Publishers)
				wantSpoken(t, served, 12, 2)

				served = startFake(t, faults{})
				s := smallSteady(served)
				onSockets(&s.Common, format)
				r, err = executeOn(t.Context(), loop, s.Common, newSteady(s), nil)
				require.NoError(t, err)
				wantClean(t, r, 6*6*2)
				require.True(t, r.Parameters.OnSocket)
				wantSpoken(t, served, 6, 6)
			})
		}
	}
}

// wantSpoken holds if every client has published its share.
func wantSpoken(t *testing.T, s *fakeServer, clients, each int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.spoken, clients)
	for _, n := range s.spoken {
		require.Equal(t, each, n)
	}
}

// A client's next message waits for the answer to the one before, which is latency.
func TestAVoiceWaitsForItsAnswer(t *testing.T) {
	t.Parallel()
	c := smallSteady(startFake(t, faults{delay: 120 * time.Millisecond}))
	onSockets(&c.Common, client.JSON)
	r, err := RunSteady(t.Context(), c, nil)
	require.NoError(t, err)
	require.Positive(t, r.Publishes.Waited)
	require.GreaterOrEqual(t, r.Generator.ScheduleLag.MaxMS, 70.0)
	require.Empty(t, r.Errors)
	require.Zero(t, r.Deliveries.Lost)
	require.EqualValues(t, 36, r.Publishes.Sent)
}

func TestARefusalOnASocketFailsTheRun(t *testing.T) {
	t.Parallel()
	c := smallSteady(startFake(t, faults{refuse: func(n int) bool { return n == 3 }}))
	onSockets(&c.Common, client.CBOR)
	r, err := RunSteady(t.Context(), c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Publishes.Refused)
	require.Equal(t, Deliveries{Expected: 70, Delivered: 70, Gaps: map[string]int64{}}, r.Deliveries)
	require.Contains(t, r.Errors[0].First, "overloaded")
	require.Equal(t, ExitFailed, ExitCode(r))
}

// What a client had to publish when its connection ended is refused, not lost; of
// what was on its way nobody knows.
func TestAVoiceThatEndsFailsTheRun(t *testing.T) {
	t.Parallel()
	c := smallSteady(startFake(t, faults{hangUp: func(subscriber, nth int) bool { return subscriber == 2 && nth == 1 }}))
	onSockets(&c.Common, client.JSON)
	c.Drain = inVain
	r, err := RunSteady(t.Context(), c, nil)
	require.NoError(t, err)
	kinds := map[string]int64{}
	for _, e := range r.Errors {
		kinds[e.Kind] = e.Count
	}
	require.Equal(t, map[string]int64{"client's connection": 1, "publisher's connection": 1, "publish refused": 4}, kinds)
	require.EqualValues(t, 4, r.Publishes.Refused)
	require.Equal(t, ExitFailed, ExitCode(r))
}

func TestWhatWaitsForAVoiceThatEndsIsRefused(t *testing.T) {
	t.Parallel()
	c := smallSteady(startFake(t, faults{
		delay:  120 * time.Millisecond, // more than a period: the next is due before the answer
		hangUp: func(subscriber, nth int) bool { return subscriber == 2 && nth == 1 },
	}))
	onSockets(&c.Common, client.JSON)
	c.Drain = inVain
	r, err := RunSteady(t.Context(), c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 4, r.Publishes.Refused)
	for _, e := range r.Errors {
		require.NotEqual(t, "publish unanswered", e.Kind)
	}
}
