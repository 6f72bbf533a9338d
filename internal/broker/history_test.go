package broker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// frameAt returns a message. Every third one has a TTL.
func frameAt(offset uint64) *frame.Frame {
	var ttl time.Duration
	if offset%3 == 0 {
		ttl = time.Second
	}
	return frame.New(&wire.Message{Position: wire.Position{Topic: "a", Epoch: "e", Offset: offset}}, time.Time{}, ttl, nil)
}

// The ring behaves as a slice, for random pushes and pops of offsets that skip numbers.
func TestAHistoryBehavesAsASlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h history
	var model []uint64
	offset, size := uint64(0), frameAt(1).Size()
	for i := range 20_000 / exhaustive.Step(5) {
		pushes := 70 // of 100 steps
		if i/500%2 == 1 {
			pushes = 35 // the history shrinks, and rarely to nothing
		}
		if rng.IntN(100) < pushes || len(model) == 0 {
			offset += 1 + rng.Uint64N(3)
			h.push(frameAt(offset))
			model = append(model, offset)
		} else {
			h.pop(wire.GapEvicted)
			require.Equal(t, model[0], h.lost)
			model = model[1:]
		}
		require.Equal(t, len(model), h.count)
		require.Equal(t, len(model)*size, h.bytes)
		probe := rng.Uint64N(offset + 2)
		checkAgainst(t, &h, model, probe)
		require.LessOrEqual(t, len(h.ring), max(16, 4*len(model)+4), "a ring shrinks with its content")
	}
}

func checkAgainst(t *testing.T, h *history, model []uint64, probe uint64) {
	var want []uint64
	held, withTTL := false, 0
	for _, offset := range model {
		if offset%3 == 0 {
			withTTL++
		}
		held = held || offset == probe
		if offset > probe {
			want = append(want, offset)
		}
	}
	var got []uint64
	for i := h.after(probe); i < h.count; i++ {
		got = append(got, h.at(i).Position().Offset)
	}
	require.Equal(t, want, got)
	require.Equal(t, held, h.get(probe) != nil)
	require.Equal(t, withTTL, h.withTTL)
}
