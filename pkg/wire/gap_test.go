package wire

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func someGap(reason GapReason) *Gap {
	return &Gap{Topic: "a.b", Reason: reason, After: Position{"a.b", "k2", 9}, Position: Position{"a.b", "k3", 19}}
}

func TestGapRoundTrip(t *testing.T) {
	for _, reason := range GapReasons() {
		line := appendGap([]byte("before"), someGap(reason))
		require.Equal(t, `before{"gap":{"topic":"a.b","reason":"`+string(reason)+`","after":"a.b@k2:9","position":"a.b@k3:19"}}`+"\n", string(line))
		c, err := ParseLine(line[len("before"):])
		require.NoError(t, err)
		require.Equal(t, Content{Gap: someGap(reason)}, c)
	}
}

// A reason that only a newer daemon knows is read, and can be written again.
func TestGapReasonToCome(t *testing.T) {
	for _, reason := range []GapReason{"tired", "quote\"backslash\\", "line\nend"} {
		c, err := ParseLine(appendGap(nil, someGap(reason)))
		require.NoError(t, err)
		require.Equal(t, reason, c.Gap.Reason)
	}
}

func TestGapThatContradictsItself(t *testing.T) {
	for name, change := range map[string]func(*Gap){
		"no reason":                func(g *Gap) { g.Reason = "" },
		"no topic":                 func(g *Gap) { g.Topic = "" },
		"after of another topic":   func(g *Gap) { g.After.Topic = "c" },
		"goes on at another topic": func(g *Gap) { g.Position.Topic = "c" },
		"no after":                 func(g *Gap) { g.After = Position{} },
	} {
		g := someGap(GapSlow)
		change(g)
		_, err := ParseLine(appendGap(nil, g))
		require.Error(t, err, name)
	}
}

func TestHelloRoundTrip(t *testing.T) {
	for _, h := range []*Hello{
		{Positions: []Position{}},
		{Positions: []Position{someTopic, {"c", "k3", 0}}},
		{Positions: []Position{someTopic}, Session: "<id>\"\n", Limits: &Limits{PollTimeoutMS: 25_000, HeartbeatMS: 15_000, Queue: 32}},
	} {
		c, err := ParseLine(Content{Hello: h}.AppendJSON(nil))
		require.NoError(t, err)
		require.Equal(t, Content{Hello: h}, c)
		require.False(t, c.Counts())
	}
	l := Limits{PollTimeoutMS: 25_000, HeartbeatMS: 1500}
	require.Equal(t, "25s", l.PollTimeout().String())
	require.Equal(t, "1.5s", l.Heartbeat().String())
}

// Every bound of the contract has its name in the JSON.
func TestLimitsMembers(t *testing.T) {
	encoded, err := json.Marshal(Limits{})
	require.NoError(t, err)
	require.JSONEq(t, `{"poll_timeout_ms":0,"heartbeat_ms":0,"inactivity_timeout_ms":0,"max_output_delay_ms":0,"answer_frames":0,
		"answer_bytes":0,"queue":0,"unacked":0,"subscriptions":0,"message_bytes":0}`, string(encoded))
}
