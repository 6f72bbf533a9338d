package soak

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestIdentitiesComeBackFromTheirTenLetters(t *testing.T) {
	for _, id := range []identity{
		newIdentity(0, 0, 0), newIdentity(1, 2, 3), newIdentity(mostTopics-1, probePublisher, sequencesInSix-1),
	} {
		letters := id.appendTo(nil)
		require.Len(t, letters, identityBytes)
		got, err := parseIdentity(letters)
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	id := newIdentity(7, 8, 9)
	require.Equal(t, []any{7, 8, uint64(9)}, []any{id.topic(), id.publisher(), id.sequence()})
	for _, bad := range []string{"", "012345678", "01234567-9", "ABCDEFGHIJ"} {
		_, err := parseIdentity([]byte(bad))
		require.ErrorIs(t, err, errNoIdentity, bad)
	}
}

// Payloads are of every size and type, the same for the same seed, and any change
// to one is noticed.
func TestAPayloadIsKnownByItsIdentity(t *testing.T) {
	p, same := newPayloads(1, 64<<10), newPayloads(1, 64<<10)
	smallest, largest := 1<<20, 0
	types, lives := map[string]bool{}, map[bool]bool{}
	for n := range uint64(3000) {
		id := newIdentity(3, 4, n)
		f := p.formOf(id)
		body := p.body(id, f)
		require.Len(t, body, f.size)
		require.Equal(t, body, same.body(id, same.formOf(id)))
		smallest, largest = min(smallest, len(body)), max(largest, len(body))
		types[f.mediaType], lives[f.ttl > 0] = true, true
		got, err := p.read(&wire.Message{Type: f.mediaType, Data: body})
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	require.Equal(t, smallestPayload, smallest)
	require.Greater(t, largest, 48<<10)
	require.LessOrEqual(t, largest, 64<<10)
	require.Len(t, types, 3)
	require.Len(t, lives, 2)
}

func TestAChangedPayloadIsNoticed(t *testing.T) {
	p := newPayloads(1, 1000)
	id := newIdentity(0, 0, 2)
	f := p.formOf(id)
	for p.formOf(id).size < 50 || f.mediaType != "text/plain" {
		id++
		f = p.formOf(id)
	}
	body := p.body(id, f)
	changed := append([]byte{}, body...)
	changed[30] ^= 1
	for _, m := range []wire.Message{
		{Type: f.mediaType, Data: changed},
		{Type: f.mediaType, Data: body[:len(body)-1]},
		{Type: f.mediaType, Data: append(append([]byte{}, body...), 'x')},
		{Type: "application/octet-stream", Data: body},
		{Type: f.mediaType},
		{Data: []byte("7")},
	} {
		_, err := p.read(&m)
		require.Error(t, err)
	}
}
