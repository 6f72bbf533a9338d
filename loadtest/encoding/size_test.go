package encoding

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheSizeTableHasEveryShapeInEveryForm(t *testing.T) {
	table, err := measureShapes(t.Context(), 3, effortOf(time.Microsecond))
	require.NoError(t, err)
	again, err := measureShapes(t.Context(), 3, effortOf(time.Microsecond))
	require.NoError(t, err)
	for i := range table {
		s := &table[i]
		for _, form := range []string{JSON, GzipJSON, CBOR, GzipCBOR} {
			f := s.Form(form)
			require.Positive(t, f.Bytes, s.Name)
			require.Equal(t, f.Bytes, again[i].Form(form).Bytes, "the same seed makes the same")
			require.Positive(t, f.Both(), s.Name)
		}
		require.Zero(t, s.Form(JSON).CompressNS)
		require.Less(t, s.Form(GzipJSON).Bytes, s.Form(JSON).Bytes)
	}
}

// A letter of two bytes is never cut in two.
func TestProseIsText(t *testing.T) {
	for seed := range uint64(50) {
		_, err := newWork(shapeOf("prose", prose(newRandom(seed, 0), 200)))
		require.NoError(t, err, "seed %d", seed)
	}
}

func TestAnInterruptedSizeTableIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := measureShapes(ctx, 1, effortOf(time.Microsecond))
	require.ErrorIs(t, err, context.Canceled)
}

func TestMedian(t *testing.T) {
	require.InDelta(t, 2, median([]float64{9, 1, 2}), 0)
	require.InDelta(t, 1.5, median([]float64{2, 1}), 0)
}

func TestAShortTestTakesLessEffort(t *testing.T) {
	require.Equal(t, effort{7, 10 * time.Millisecond}, effortOf(2*time.Second))
	require.Equal(t, effort{1, 500 * time.Microsecond}, effortOf(100*time.Millisecond))
	require.Equal(t, effort{1, 0}, effortOf(1))
}
