package wire

import (
	"encoding/json"
	"fmt"
	"testing"

	fxcbor "github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
)

func someGap(reason GapReason) *Gap {
	return &Gap{Topic: "a.b", Reason: reason, After: Position{"a.b", "k2", 9}, Position: Position{"a.b", "k3", 19}}
}

func TestGapRoundTrip(t *testing.T) {
	leftOut := someGap(GapUnfollowed)
	require.False(t, leftOut.IsLeftOut())
	leftOut.After = leftOut.Position
	require.True(t, leftOut.IsLeftOut())
	require.Equal(t, "the session has no room for all topics that its patterns match; nothing of a.b after a.b@k3:19 follows", leftOut.String())
	for _, reason := range GapReasons() {
		line := appendGap([]byte("before"), someGap(reason))
		require.Equal(t, `before{"gap":{"topic":"a.b","reason":"`+string(reason)+`","after":"a.b@k2:9","position":"a.b@k3:19"}}`+"\n", string(line))
		c, err := ParseLine(line[len("before"):])
		require.NoError(t, err)
		require.Equal(t, Content{Gap: someGap(reason)}, c)
	}
}

func TestAGapSaysWhatIsMissing(t *testing.T) {
	for _, reason := range GapReasons() {
		want := "the messages after a.b@k2:9 up to a.b@k3:19 are lost"
		switch reason {
		case GapRestarted:
			want = "the server restarted; messages after a.b@k2:9 may be missing"
		case GapLost:
			want = "the server's machine crashed; messages after a.b@k2:9 up to a.b@k3:19 may be missing"
		case GapForbidden:
			want = "subscribing to a.b is not permitted any more; no message after a.b@k2:9 follows"
		}
		require.Equal(t, want, fmt.Sprint(someGap(reason)))
	}
	g := someGap(GapForbidden)
	g.Detail = "spam"
	require.Equal(t, "subscribing to a.b is not permitted any more; no message after a.b@k2:9 follows: spam", fmt.Sprint(g))
}

// A reason of a newer daemon can be read and written.
func TestUnknownGapReason(t *testing.T) {
	for _, reason := range []GapReason{"tired", "quote\"backslash\\", "line\nend"} {
		c, err := ParseLine(appendGap(nil, someGap(reason)))
		require.NoError(t, err)
		require.Equal(t, reason, c.Gap.Reason)
	}
}

func TestGapThatContradictsItself(t *testing.T) {
	for name, change := range map[string]func(*Gap){
		"no reason":                 func(g *Gap) { g.Reason = "" },
		"no topic":                  func(g *Gap) { g.Topic = "" },
		"after of another topic":    func(g *Gap) { g.After.Topic = "c" },
		"position of another topic": func(g *Gap) { g.Position.Topic = "c" },
		"no after":                  func(g *Gap) { g.After = Position{} },
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

// The JSON has every bound of the protocol.
func TestLimitsMembers(t *testing.T) {
	encoded, err := json.Marshal(Limits{})
	require.NoError(t, err)
	require.JSONEq(t, `{"poll_timeout_ms":0,"heartbeat_ms":0,"inactivity_timeout_ms":0,"max_output_delay_ms":0,"answer_frames":0,
		"answer_bytes":0,"queue":0,"unacked":0,"subscriptions":0,"message_bytes":0}`, string(encoded))
}

func TestReplies(t *testing.T) {
	ref := uint64(7)
	problem := &Problem{Title: "Service Unavailable", Status: 503, Code: CodeOverloaded, Detail: "too much", Remedy: "later"}
	for _, tt := range []struct {
		reply Reply
		line  string
	}{
		{Reply{}, `{"reply":{}}`},
		{Reply{Ref: &ref}, `{"reply":{"ref":7}}`},
		{Reply{Ref: new(uint64)}, `{"reply":{"ref":0}}`},
		{Reply{Ref: &ref, Positions: []Position{someTopic, {"c", "k3", 0}}}, `{"reply":{"ref":7,"positions":["a.b@k3:18","c@k3:0"]}}`},
		{Reply{Ref: &ref, Positions: []Position{someTopic}, Unfollowed: 2}, `{"reply":{"ref":7,"positions":["a.b@k3:18"],"unfollowed":2}}`},
		{Reply{Ref: &ref, Position: &someTopic, Time: 1700000000000}, `{"reply":{"ref":7,"position":"a.b@k3:18","time":1700000000000}}`},
		{Reply{Problem: problem}, `{"reply":{"problem":{"title":"Service Unavailable","status":503,"code":"overloaded","detail":"too much","remedy":"later"}}}`},
	} {
		line := appendReply([]byte("before"), &tt.reply)
		require.Equal(t, "before"+tt.line+"\n", string(line))
		inJSON, err := ParseLine(line[len("before"):])
		require.NoError(t, err)
		require.Equal(t, &tt.reply, inJSON.Reply)
		require.False(t, inJSON.Counts())

		item := appendReplyCBOR([]byte("before"), &tt.reply)
		inCBOR, n, err := ParseItem(item[len("before"):])
		require.NoError(t, err)
		require.Equal(t, len(item)-len("before"), n)
		require.Equal(t, inJSON, inCBOR)
		var theirs any
		require.NoError(t, fxcbor.Unmarshal(item[len("before"):], &theirs))
	}
}

// A newer daemon may send more members.
func TestReplyWithAnUnknownMember(t *testing.T) {
	c, err := ParseLine([]byte(`{"reply":{"ref":1,"more":2}}`))
	require.NoError(t, err)
	require.EqualValues(t, 1, *c.Reply.Ref)
	_, err = ParseLine([]byte(`{"reply":{},"end":{}}`))
	require.Error(t, err)
}

// encoding/json reads null as the zero Position, which has no text.
func TestPositionsAreNotNull(t *testing.T) {
	for _, line := range []string{
		`{"hello":{"positions":[null]}}`, `{"end":{"positions":["a.b@k3:18",null]}}`, `{"reply":{"positions":[null]}}`, `{"done":{"position":null}}`, `{"reply":{"problem":{"positions":[null]}}}`,
	} {
		_, err := ParseLine([]byte(line))
		require.ErrorContains(t, err, "a position is null", line)
	}
	_, _, err := ParseItem([]byte("\x82\x02\xa1ipositions\x81\xf6"))
	require.ErrorContains(t, err, "a position is null")
}
