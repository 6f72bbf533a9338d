package pubsub

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A jumpingClock is a wall clock that is set, or that has counted a suspend which the monotonic
// clock has not.
type jumpingClock struct {
	mu  sync.Mutex
	off time.Duration
}

func (j *jumpingClock) jump(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.off += d
}

func (j *jumpingClock) now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Now().Round(0).Add(j.off)
}

func (j *jumpingClock) option() Option {
	return func(c *Client) error {
		c.clock.wall = j.now
		return nil
	}
}

func TestADurationIsTheLargerOfTwoClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for jump, want := range map[time.Duration]time.Duration{0: time.Second, -time.Hour: time.Second, time.Hour: time.Hour + time.Second} {
			var wall jumpingClock
			c := clock{wall.now}
			began := c.now()
			wall.jump(jump)
			time.Sleep(time.Second)
			require.Equal(t, want, c.since(began))
		}
	})
}

// An alarm rings in time when the clock was set back, and soon after a suspend.
func TestAnAlarmKnowsBothClocks(t *testing.T) {
	for jump, want := range map[time.Duration]time.Duration{
		0:                10 * time.Minute,
		-time.Hour:       10 * time.Minute,
		10 * time.Minute: lookInterval,
		5 * time.Minute:  5 * time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			var wall jumpingClock
			c := clock{wall.now}
			rang := make(chan time.Time, 2)
			a := c.alarm(func() { rang <- time.Now() })
			began := time.Now()
			a.Reset(time.Hour)
			a.Reset(10 * time.Minute)
			wall.jump(jump)
			require.Equal(t, want, (<-rang).Sub(began), jump)

			a.Reset(time.Minute)
			a.Stop()
			wall.jump(time.Hour)
			time.Sleep(time.Hour)
			require.Empty(t, rang)
		})
	}
}

// While the machine slept, the connection went silent. And the clock may be set back at that
// moment, which hides nothing.
func TestASilentConnectionIsNoticedByBothClocks(t *testing.T) {
	for jump, within := range map[time.Duration]time.Duration{10 * time.Minute: 2 * lookInterval, -10 * time.Minute: time.Minute} {
		inEveryWay(t, func(t *testing.T, w way) {
			f := newFake()
			var wall jumpingClock
			c := serveFake(t, f, wall.option())
			var waited waits
			s := subscribe(t, c, []wire.Start{FromNow("a")}, append(w.options, waited.notify())...)
			f.publish("a", 1)
			wantNext(t, s, "a@k3:1")
			synctest.Wait()
			f.mute()
			wall.jump(jump)
			time.Sleep(within)
			errs, _ := waited.seen()
			require.NotEmpty(t, errs)
			require.ErrorIs(t, errs[0], errSilent)
		})
	}
}

// A subscription that waits for its next attempt during a suspend does not wait on after it.
func TestASuspendEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var wall jumpingClock
		c := serveFake(t, f, wall.option())
		overloaded := problem.New(wire.CodeOverloaded, "", "too much")
		overloaded.RetryAfterMS = 600_000
		refuseOnce(f, changes, overloaded)
		s := subscribe(t, c, []wire.Start{FromPosition(position(t, "a@k3:0"))}, Stateless())
		synctest.Wait()
		began := time.Now()
		f.publish("a", 1)
		wall.jump(10 * time.Minute)
		wantNext(t, s, "a@k3:1")
		require.LessOrEqual(t, time.Since(began), lookInterval)
	})
}

// The token would have been renewed during the suspend. It is renewed soon after, and not only
// when the daemon refuses it.
func TestATokenIsRenewedAfterASuspend(t *testing.T) {
	for jump, within := range map[time.Duration]time.Duration{time.Hour: 2 * lookInterval, -time.Hour: time.Hour} {
		inEveryWay(t, func(t *testing.T, w way) {
			f := newFake()
			f.expires = time.Hour.Milliseconds()
			f.limits.HeartbeatMS, f.limits.PollTimeoutMS = maxLimitMS, maxLimitMS // no watchdog comes before it
			var wall jumpingClock
			c := serveFake(t, f, wall.option(), tokensInTurn("1", "2"))
			subscribe(t, c, []wire.Start{FromNow("a")}, w.options...)
			wall.jump(jump)
			time.Sleep(within)
			synctest.Wait()
			if !w.isStateless() { // polls have the token of their time
				token, err := c.tokens.get(t.Context(), "")
				require.NoError(t, err)
				require.Equal(t, "2", token)
			}
		})
	}
}
