package request

import (
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestAPublishIsReadFromQueryAndHeaders(t *testing.T) {
	m, err := MessageOf(Head{
		Topic: "a", Query: "client=a.b:c-d_e&key=k&ttl=2", ContentType: Header{"text/plain", 1}, IdempotencyKey: Header{`"i d"`, 1},
	})
	require.NoError(t, err)
	require.Equal(t, wire.Message{Position: wire.Position{Topic: "a"}, Type: "text/plain", Client: "a.b:c-d_e", Key: "k", ID: "i d"}, m.Message)
	require.Equal(t, 2*time.Second, m.TTL)
}

// The member publish of a command in CBOR is case-sensitive: encoding/json would ignore case.
func TestAPublishCommandInCBORIsCaseSensitive(t *testing.T) {
	publish := map[string]any{"topic": "a", "data": 1}
	for _, command := range []map[string]any{{"Publish": publish}, {"publish": publish, "Publish": publish}} {
		command["ref"] = 7
		item, err := cbor.Marshal(command)
		require.NoError(t, err)
		read, err := CommandOf(item, true, 9, 9)
		require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeInvalidRequest})
		require.Equal(t, uint64(7), *read.Ref)
	}
}

func TestAMessageChangedByTheHookIsValidated(t *testing.T) {
	large := strings.Repeat("x", 64<<10)
	for name, item := range map[string]*wire.PublishItem{
		"no payload":  {Key: "x"},
		"two":         {Data: []byte("1"), Type: "text/plain", Text: new("")},
		"a long key":  {Data: []byte("1"), Key: strings.Repeat("x", 256)},
		"no ttl":      {Data: []byte("1"), TTL: new(uint64)},
		"too large":   {Type: "text/plain", Text: new(large + "x")},
		"twice":       {Data: []byte(`{"a":1,"a":2}`)},
		"a bad type":  {Type: "; text", Text: new("")},
		"a form":      {Type: "application/x-www-form-urlencoded", Text: new("")},
		"broken CBOR": {Type: wire.CBORType, Base64: new([]byte{0x82})},
	} {
		m := (&Message{Message: wire.Message{Position: wire.Position{Topic: "a"}}})
		m.Data, m.Client, m.TTL = []byte("1"), "c", time.Second
		before := *m
		require.Error(t, m.Become(item, len(large)), name)
		require.Equal(t, before, *m, name)
	}
	m := (&Message{Message: wire.Message{Position: wire.Position{Topic: "a"}}})
	m.Client, m.ID = "c", "k"
	require.NoError(t, m.Become(&wire.PublishItem{Type: "text/plain", Text: &large}, len(large)))
	require.Equal(t, []string{"a", "c", "k"}, []string{m.Position.Topic, m.Client, m.ID}, "these stay")
}
