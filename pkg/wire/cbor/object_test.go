package cbor

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMapToJSONKeepsOrSkipsMembers(t *testing.T) {
	item := AppendFromJSON(nil, []byte(`{"a":[1],"b":"x","c":{"d":2}}`))
	object, kept, err := MapToJSON(item, "a")
	require.NoError(t, err)
	require.Equal(t, `{"b":"x","c":{"d":2}}`, string(object))
	require.Equal(t, map[string][]byte{"a": {0x81, 1}}, kept)
	object, err = MembersToJSON(item, "b", "none")
	require.NoError(t, err)
	require.Equal(t, `{"b":"x"}`, string(object))
}

func TestMapToJSONReadsABoundedNumberOfMembers(t *testing.T) {
	for n, want := range map[int]error{MaxMembers: errDuplicate, MaxMembers + 1: errMembers} {
		item := append(AppendHead(nil, Map, uint64(n)), bytes.Repeat([]byte{0x61, 'a', 0}, n)...)
		_, _, err := MapToJSON(item)
		require.ErrorIs(t, err, want, "%d members", n)
	}
}
