package soak

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestSettingsCountForAsLongAsTheyHeld(t *testing.T) {
	var r retentions
	for i, messages := range []int{10, 20, 30} {
		r.add(int32(i*100), Retention{Messages: messages})
	}
	during := func(from, to int32) (seen []int) {
		r.during(from, to, func(r Retention) { seen = append(seen, r.Messages) })
		return seen
	}
	require.Equal(t, []int{10}, during(0, 50))
	require.Equal(t, []int{10, 20}, during(50, 150))
	require.Equal(t, []int{20}, during(110, 120))
	require.Equal(t, []int{30}, during(210, 9000))
	require.Equal(t, []int{10, 20, 30}, during(0, 9000))
}

// A message is pushed out by bytes, too, and those of messages that nobody saw
// count in favour of the daemon.
func TestAMessageIsPushedOutByBytes(t *testing.T) {
	c := newCourt(t)
	c.retentions = &retentions{}
	c.published("e1", 1, 8, 0)
	b := c.ledger.close(0)[0]
	held := int(b.held[8])
	p := past{retentions: c.retentions}
	c.retentions.add(0, Retention{Messages: 1000, Bytes: held, Age: time.Hour})
	require.Zero(t, p.lost(b, 0, 5000), "all fit exactly")
	p.unseen = 1
	require.Equal(t, byOthers, p.lost(b, 0, 5000))
	require.Zero(t, p.lost(b, 7, 5000), "the newest stays")
}

func TestABookKnowsWhatLiesBetween(t *testing.T) {
	c := newCourt(t)
	c.published("e1", 1, 3, 0)
	c.published("e1", 600, 601, 100)
	b := c.ledger.close(0)[0]
	for _, w := range []struct {
		after, upTo uint64
		offsets     []uint64
	}{
		{0, 2, []uint64{1, 2}}, {2, 600, []uint64{3, 600}}, {3, 599, []uint64{}}, {601, 9999, []uint64{}}, {5, 2, []uint64{}},
	} {
		i, j := b.between(w.after, w.upTo)
		require.Equal(t, w.offsets, b.offsets[i:j])
	}
	require.Equal(t, 2, b.newestAt(99))
	require.Equal(t, -1, b.newestAt(-1))
	i, j := (*book)(nil).between(0, 9)
	require.Equal(t, i, j)
	require.Equal(t, wire.Position{}, (&trail{}).position())
}
