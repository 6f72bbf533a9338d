package throttle

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// sent notes messages that came, by their numbers.
func sent(t *testing.T, l *ledger, numbers ...int) {
	t.Helper()
	for i, n := range numbers {
		at := wire.Position{Topic: l.topic, Epoch: "e", Offset: uint64(i + 1)}
		require.NoError(t, l.message(&wire.Message{Position: at, Data: fmt.Appendf(nil, `{"n":%d}`, n)}))
	}
}

func TestLedgersTellWhatBecameOfMessages(t *testing.T) {
	for name, c := range map[string]struct {
		taken int
		came  []int
		want  Delivered
	}{
		"all":        {3, []int{1, 2, 3}, Delivered{Delivered: 3}},
		"lost":       {3, []int{1, 3}, Delivered{Delivered: 2, Lost: 1}},
		"duplicate":  {2, []int{1, 2, 1, 2}, Delivered{Delivered: 2, Duplicates: 2}},
		"disordered": {3, []int{1, 3, 2}, Delivered{Delivered: 3, Disordered: 1}},
		"surplus":    {1, []int{1, 2}, Delivered{Delivered: 2, Surplus: 1}}, // refused, and published all the same
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger("a.b")
			for range c.taken {
				l.took()
			}
			sent(t, l, c.came...)
			got := l.close()
			require.Equal(t, c.want, got)
			require.Equal(t, c.want != Delivered{Delivered: int64(c.taken)}, got.accidents() > 0)
		})
	}
}

func TestLedgersRefuseWhatTheirUserDidNotPublish(t *testing.T) {
	l := newLedger("a.b")
	require.Error(t, l.message(&wire.Message{Position: wire.Position{Topic: "a.c", Epoch: "e", Offset: 1}, Data: []byte(`{"n":1}`)}))
	require.Error(t, l.message(&wire.Message{Position: wire.Position{Topic: "a.b", Epoch: "e", Offset: 1}, Data: []byte(`"n"`)}))
}

// Sessions go on where the one before ended, also if nothing came in it.
func TestLedgersKnowWhereToGoOn(t *testing.T) {
	l := newLedger("a.b")
	require.Equal(t, "a.b", l.start().String())
	l.opened(wire.Position{Topic: "a.b", Epoch: "e", Offset: 7})
	require.Equal(t, "a.b@e:7", l.start().String())
	l.gap(&wire.Gap{Position: wire.Position{Topic: "a.b", Epoch: "e", Offset: 9}})
	l.opened(wire.Position{Topic: "a.b", Epoch: "e", Offset: 7})
	require.Equal(t, "a.b@e:9", l.start().String())
	require.EqualValues(t, 1, l.close().Gaps)
}

func TestLedgersWaitForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger("a.b")
		l.took()
		begun := time.Now()
		go func() { sleep(context.Background(), time.Second); sent(t, l, 1) }()
		l.await(t.Context(), time.Minute)
		require.Equal(t, time.Second, time.Since(begun))
		l.took()
		l.await(t.Context(), time.Minute)
		require.Equal(t, time.Minute+time.Second, time.Since(begun), "in vain")
	})
}
