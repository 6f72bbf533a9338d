package wire

import (
	"testing"

	fxcbor "github.com/fxamacker/cbor/v2"

	"github.com/stretchr/testify/require"
)

func TestReplies(t *testing.T) {
	ref := uint64(7)
	problem := NewProblem(CodeOverloaded, "later", "too much")
	for _, tt := range []struct {
		reply Reply
		line  string
	}{
		{Reply{}, `{"reply":{}}`},
		{Reply{Ref: &ref}, `{"reply":{"ref":7}}`},
		{Reply{Ref: new(uint64)}, `{"reply":{"ref":0}}`},
		{Reply{Ref: &ref, Positions: []Position{someTopic, {"c", "k3", 0}}}, `{"reply":{"ref":7,"positions":["a.b@k3:18","c@k3:0"]}}`},
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

// A member that is not there yet is no reason to refuse a reply.
func TestReplyWithAnUnknownMember(t *testing.T) {
	c, err := ParseLine([]byte(`{"reply":{"ref":1,"more":2}}`))
	require.NoError(t, err)
	require.EqualValues(t, 1, *c.Reply.Ref)
	_, err = ParseLine([]byte(`{"reply":{},"end":{}}`))
	require.Error(t, err)
}
