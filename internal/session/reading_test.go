package session

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Twenty want to read, again and again; every other one gives up early. One at a time reads, and
// nobody who is patient waits for ever: then the bubble would be stuck.
func TestOneAtATimeReads(t *testing.T) {
	const readers, rounds = 20, 50
	synctest.Test(t, func(t *testing.T) {
		var r reading
		inside, took, gaveUp := 0, 0, atomic.Int64{} // r guards the first two
		takes := func(ctx context.Context) bool {
			for released := r.released(); !r.tryTake(); {
				select {
				case <-released:
				case <-ctx.Done():
					gaveUp.Add(1)
					return false
				}
			}
			return true
		}
		var all sync.WaitGroup
		for i := range readers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				for range rounds {
					ctx, cancel := t.Context(), func() {}
					if i%2 == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(readers))*time.Millisecond)
					}
					if takes(ctx) {
						inside++
						require.Equal(t, 1, inside)
						time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
						inside--
						took++
						r.release()
					}
					cancel()
				}
			})
		}
		all.Wait()
		require.True(t, r.tryTake(), "it is free")
		require.EqualValues(t, readers*rounds, took+int(gaveUp.Load()))
		require.NotZero(t, gaveUp.Load())
	})
}
