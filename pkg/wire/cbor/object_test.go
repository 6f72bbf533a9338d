package cbor

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMapToJSONReadsABoundedNumberOfMembers(t *testing.T) {
	for n, want := range map[int]error{MaxMembers: errDuplicate, MaxMembers + 1: errMembers} {
		item := append(AppendHead(nil, Map, uint64(n)), bytes.Repeat([]byte{0x61, 'a', 0}, n)...)
		_, _, err := MapToJSON(item)
		require.ErrorIs(t, err, want, "%d members", n)
	}
}
