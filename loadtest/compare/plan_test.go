package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/loadtest"
)

func planOf(t *testing.T, list string, rounds int) []string {
	t.Helper()
	s, c, err := only(list, scenarios(false), contenders(programs{baseline: "old"}))
	require.NoError(t, err)
	var got []string
	for _, step := range plan(s, c, rounds) {
		got = append(got, fmt.Sprintf("%s %d %s", step.scenario.name, step.round, step.contender.name))
	}
	return got
}

func TestRoundsAreInterleavedAndRotated(t *testing.T) {
	require.Equal(t, []string{
		"long-poll-5000 1 floor", "long-poll-5000 1 pubsubd", "long-poll-5000 1 nchan",
		"long-poll-5000 2 pubsubd", "long-poll-5000 2 nchan", "long-poll-5000 2 floor",
	}, planOf(t, "long-poll-5000,floor,pubsubd,nchan", 2))
}

func TestWhoTakesPart(t *testing.T) {
	for scenario, want := range map[string]string{
		"long-poll-1000": "floor pubsubd pubsubd-channel nchan",
		"long-poll-5000": "floor pubsubd pubsubd-channel pubsubd-nethttp pubsubd-limits baseline nchan",
		"stream-10000":   "floor pubsubd pubsubd-channel pubsubd-sse pubsubd-ws nchan-sse nchan-ws centrifugo-sse centrifugo-stream centrifugo-ws mercure",
		"stream-5000":    "floor pubsubd pubsubd-channel pubsubd-nethttp pubsubd-limits pubsubd-sse pubsubd-ws pubsubd-ws-cbor pubsubd-cbor baseline nchan-sse nchan-ws centrifugo-sse centrifugo-stream centrifugo-ws mercure",
		"memory-stream":  "floor pubsubd pubsubd-channel pubsubd-nethttp pubsubd-limits pubsubd-sse pubsubd-ws pubsubd-ws-cbor pubsubd-cbor baseline nchan-sse nchan-ws centrifugo-sse centrifugo-stream centrifugo-ws mercure",
		"collab":         "floor pubsubd pubsubd-channel pubsubd-nethttp pubsubd-limits pubsubd-ws pubsubd-ws-cbor pubsubd-ws-duplex baseline nchan nchan-ws centrifugo-sse centrifugo-ws mercure",
	} {
		t.Run(scenario, func(t *testing.T) {
			var who []string
			for _, line := range planOf(t, scenario, 1) {
				who = append(who, strings.Fields(line)[2])
			}
			require.Equal(t, want, strings.Join(who, " "))
		})
	}
}

func TestAQuickRunHasEveryWay(t *testing.T) {
	all := contenders(programs{baseline: "old"})
	had := map[string]bool{}
	for _, s := range plan(scenarios(true), all, 1) {
		had[s.contender.name] = true
	}
	for _, c := range all {
		require.True(t, had[c.name], c.name)
	}
}

func TestRoundsOfAScenarioAreItsMost(t *testing.T) {
	require.Len(t, planOf(t, "long-poll-5000,floor", 9), 4)
	require.Len(t, planOf(t, "memory-stream,floor", 9), 1)
}

// The 95th percentile of bursts at 5000 wants a hundred of them.
func TestBurstsSufficeForTheirPercentile(t *testing.T) {
	s := scenarios(false)[1]
	require.Equal(t, "long-poll-5000", s.name)
	require.Contains(t, strings.Join(s.args, " "), "--bursts 25 ")
	require.GreaterOrEqual(t, 25*s.rounds, 100)
}

func TestArgumentsSayWhatIsMeasured(t *testing.T) {
	s, c := scenarios(false), contenders(programs{})
	require.Equal(t, "broadcast --clients 5000 --period 300ms --bursts 25 --warmup-bursts 2 --settle 500ms --dialect pubsubd --mode stream",
		strings.Join(step{scenario: s[4], contender: c[1]}.args(), " "))
}

// Every way in which pubsubd is used must be one that the load generator knows.
func TestPubsubdIsSpokenToAsItCanBe(t *testing.T) {
	for _, c := range contenders(programs{}) {
		for m, flags := range c.speaks {
			cfg := loadtest.DefaultSteady()
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			loadtest.BindCommon(f, &cfg.Common)
			loadtest.BindVoices(f, &cfg.Common)
			require.NoError(t, f.Parse(append(slices.Clone(flags), "--target", "http://127.0.0.1:1", "--token", "t")), c.name)
			require.NoError(t, cfg.Check(), c.name)
			require.Equal(t, cfg.Voices, c.name == "pubsubd-ws-duplex" && m == inCollab)
		}
	}
}

func TestOnlyWhatThereIs(t *testing.T) {
	_, _, err := only("floor,nobody", scenarios(false), contenders(programs{}))
	require.ErrorContains(t, err, `"nobody" is neither`)
}

func TestTheWholeTakesLessThanAnHour(t *testing.T) {
	var total time.Duration
	for _, s := range plan(scenarios(false), contenders(programs{}), 4) {
		total += s.scenario.lasts
	}
	require.Less(t, total, 55*time.Minute)
	t.Logf("%v", total)
}
