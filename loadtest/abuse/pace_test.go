package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAPaceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.InDelta(t, 5000, taken(t, 1000), 20)
		require.InDelta(t, 35, taken(t, 7), 1)
	})
}

func TestWhoIsLateDoesNotCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPace(1000)
		go p.run(ctx, 1000)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Len(t, p.tickets, 1000/moment, "of five seconds, a moment's worth is left")
		cancel()
	})
}

// taken returns how many operations one worker begins in five seconds.
func taken(t *testing.T, perSecond int) int {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	p := newPace(perSecond)
	var pacing sync.WaitGroup
	pacing.Go(func() { p.run(ctx, perSecond) })
	n := 0
	for p.next(ctx) {
		n++
	}
	pacing.Wait()
	return n
}
