package soak

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// The application has every opinion, of few topics' messages, and the same each time.
func TestTheApplicationHasEveryOpinion(t *testing.T) {
	p, same, had := newPayloads(7, 200), newPayloads(7, 200), map[opinion]int{}
	for n := range uint64(3000) {
		id := newIdentity(hookedFirst, 3, n)
		o, thinks := p.opinionOf(id)
		had[o]++
		again, alike := same.opinionOf(id)
		require.Equal(t, []any{o, thinks}, []any{again, alike})
		require.Equal(t, o == dawdles, thinks > hookTimeout)
		require.Equal(t, o != refuses, o.again().consents(), "what fails goes when it is asked about again")
		for _, free := range []identity{newIdentity(hookedFirst-1, 3, n), newIdentity(hookedFirst, probePublisher, n)} {
			o, thinks := p.opinionOf(free)
			require.Equal(t, lets, o)
			require.Zero(t, thinks)
		}
	}
	require.Len(t, had, int(opinions))
	require.Greater(t, had[lets], had[changes])
	require.Greater(t, had[changes], had[refuses])
}

// A setting takes 100 topics.
func TestNoMoreTopicsAreHookedThanASettingTakes(t *testing.T) {
	n := 0
	for topic := range mostTopics {
		if hooked(topic) {
			n++
		}
	}
	require.LessOrEqual(t, n, 100)
}

// Of a message that is changed, what was published is as wrong as anything else.
func TestAChangedMessageIsDeliveredChanged(t *testing.T) {
	p, lives := newPayloads(1, 1000), map[time.Duration]bool{}
	for n := range uint64(2000) {
		id := newIdentity(hookedFirst, 0, n)
		as, was := p.formOf(id), p.offered(id)
		o, _ := p.opinionOf(id)
		_, err := p.read(&wire.Message{Type: as.mediaType, Data: p.body(id, as)})
		require.NoError(t, err)
		_, err = p.read(&wire.Message{Type: was.mediaType, Data: p.body(id, was)})
		if o == changes && was.size > smallestPayload+8 {
			require.Error(t, err)
			lives[as.ttl] = true
		} else if o != changes {
			require.NoError(t, err)
		}
	}
	require.Greater(t, len(lives), 1, "its life is changed, too")
}
