package pubsub

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestBackoffDoublesWithJitterUpToItsBound(t *testing.T) {
	bounds := []time.Duration{200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000}
	seen := map[time.Duration]bool{}
	for range 200 {
		b := backoff{max: 10 * time.Second}
		for i, bound := range bounds {
			bound *= time.Millisecond
			wait := b.next(0)
			require.GreaterOrEqual(t, wait, bound/2, "failure %d", i+1)
			require.LessOrEqual(t, wait, bound, "failure %d", i+1)
			seen[wait] = true
		}
	}
	require.Greater(t, len(seen), 1000, "waits are spread")
}

func TestBackoffIsBoundedAfterAnyNumberOfFailures(t *testing.T) {
	b := backoff{failures: 1 << 30, max: time.Minute}
	require.LessOrEqual(t, b.next(0), time.Minute)
	b = backoff{max: time.Millisecond}
	require.LessOrEqual(t, b.next(0), time.Millisecond)
}

func TestBackoffWaitsAsLongAsAsked(t *testing.T) {
	b := backoff{max: time.Second}
	require.Equal(t, time.Minute, b.next(time.Minute))
	require.LessOrEqual(t, b.next(time.Millisecond), 400*time.Millisecond)
	b.reset()
	require.LessOrEqual(t, b.next(0), firstBackoff)
}

func TestRetryAfterIsBounded(t *testing.T) {
	require.Equal(t, 1500*time.Millisecond, retryAfter(&wire.Problem{RetryAfterMS: 1500}))
	require.Equal(t, maxRetryAfter, retryAfter(&wire.Problem{RetryAfterMS: 1 << 62}))
	require.Zero(t, retryAfter(&wire.Problem{RetryAfterMS: -1}))
	require.Zero(t, retryAfter(errCut))
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		require.NoError(t, newClock().sleep(ctx, time.Second/2))
		require.ErrorIs(t, newClock().sleep(ctx, time.Hour), why)
		require.Equal(t, time.Second, time.Since(began))
	})
}
