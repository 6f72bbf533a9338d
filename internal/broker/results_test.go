package broker

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func newTestKeys(cfg Config) *keys { return newKeys(cfg.WithDefaults(), metrics.New("test"), "local") }

// counted returns the value of a counter, with the given label if there is one.
func counted(t *testing.T, m *metrics.Metrics, name string, label ...string) (n int) {
	t.Helper()
	families, err := m.Registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			if family.GetName() == "pubsubd_"+name && (len(label) == 0 || sample.GetLabel()[0].GetValue() == label[0]) {
				n += int(sample.GetCounter().GetValue())
			}
		}
	}
	return n
}

// used returns a key with the scope n, and the result of its publish.
func used(n byte, now time.Time) (key Key, published wire.Published) {
	return Key{Scope: Digest{n}}, wire.Published{Position: wire.Position{Topic: "a", Offset: uint64(n)}, Time: now.UnixMilli()}
}

// applying returns a publish that is applied.
func (k *keys) applying(published wire.Published) func(Claim) Result {
	return func(c Claim) Result {
		k.applied(c.key, published, time.UnixMilli(published.Time))
		return Result{Published: published}
	}
}

// noPublish must not be called.
func noPublish(Claim) Result { panic("published") }

// do publishes with a key, after other publishes with the same key.
func (k *keys) do(key Key, now time.Time, publish func(Claim) Result) (wire.Published, error) {
	for {
		c, r, underWay := k.claim(key, now)
		switch {
		case underWay != nil:
			<-underWay
			continue
		case c.IsHeld():
			r = k.end(c, publish(c))
		}
		return r.Published, r.Err
	}
}

// fill uses the key with the scope n.
func fill(t *testing.T, k *keys, n byte, now time.Time) {
	t.Helper()
	key, published := used(n, now)
	_, err := k.do(key, now, k.applying(published))
	require.NoError(t, err)
}

// scopes returns the first bytes of the scopes of all keys, and checks the counters.
func scopes(t *testing.T, r *keys) []byte {
	t.Helper()
	held := []byte{}
	for _, key := range r.logged() {
		held = append(held, key.Scope[0])
	}
	require.Equal(t, len(held), r.count())
	require.Equal(t, len(held), len(r.byScope))
	return held
}

// Ten publishes have the same key: the first publishes, and all get its result.
func TestAPublishWithTheSameKeyWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestKeys(Config{})
		asked, published := used(1, time.Now())
		var done sync.WaitGroup
		calls := 0
		for range 10 {
			done.Go(func() {
				got, err := r.do(asked, time.Now(), func(c Claim) Result {
					calls++
					time.Sleep(time.Second)
					return r.applying(published)(c)
				})
				require.NoError(t, err)
				require.Equal(t, published, got)
			})
		}
		synctest.Wait()
		require.Zero(t, r.count(), "the publish is under way")
		done.Wait()
		require.Equal(t, 1, calls)
		require.Equal(t, 9, counted(t, r.metrics, "idempotency_results_total", "repeated"))
	})
}

// If the first publish fails, the one that waits publishes, even another message: the key
// was not used.
func TestAfterAFailureTheWaitingPublishPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestKeys(Config{})
		asked, published := used(1, time.Now())
		failed := errors.New("overloaded")
		var done sync.WaitGroup
		done.Go(func() {
			_, err := r.do(asked, time.Now(), func(Claim) Result {
				time.Sleep(time.Second)
				return Result{Err: failed}
			})
			require.ErrorIs(t, err, failed)
		})
		synctest.Wait()
		other := asked
		other.Print = Digest{9}
		got, err := r.do(other, time.Now(), r.applying(published))
		require.NoError(t, err)
		require.Equal(t, published, got)
		done.Wait()
	})
}

func TestTheOldestResultsAreEvicted(t *testing.T) {
	r := newTestKeys(Config{IdempotencyKeys: 3})
	for n := range byte(5) {
		fill(t, r, n, time.Now())
	}
	require.Equal(t, []byte{2, 3, 4}, scopes(t, r))
	require.Equal(t, 2, counted(t, r.metrics, "idempotency_results_total", "evicted"))
	fill(t, r, 2, time.Now())
	require.Equal(t, []byte{2, 3, 4}, scopes(t, r), "a repeat does not renew a key")
	fill(t, r, 0, time.Now())
	require.Equal(t, []byte{3, 4, 0}, scopes(t, r))
}

func TestASweepDropsKeysPastTheWindow(t *testing.T) {
	begun := time.UnixMilli(1_700_000_000_000)
	r := newTestKeys(Config{IdempotencyWindow: time.Minute})
	for n := range byte(3) {
		fill(t, r, n, begun.Add(time.Duration(n)*time.Second))
	}
	r.sweep(begun.Add(61*time.Second - time.Millisecond))
	require.Equal(t, []byte{1, 2}, scopes(t, r))
	r.sweep(begun.Add(time.Hour))
	require.Empty(t, scopes(t, r))
	require.Zero(t, counted(t, r.metrics, "idempotency_results_total", "evicted"), "expired keys do not count as evicted")
	fill(t, r, 7, begun)
	require.Equal(t, []byte{7}, scopes(t, r))
}

func TestASweepDropsManyKeys(t *testing.T) {
	r := newTestKeys(Config{})
	for n := range 2*sweepTurn + 1 {
		asked := Key{Scope: digestOf([]byte(fmt.Sprint(n)))}
		_, err := r.do(asked, time.UnixMilli(1), r.applying(wire.Published{Time: 1}))
		require.NoError(t, err)
	}
	require.Equal(t, 2*sweepTurn+1, r.count())
	r.sweep(time.Now())
	require.Empty(t, scopes(t, r))
}

// A restarted daemon returns the results of its predecessor.
func TestResultsAreRestored(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	before, after := newTestKeys(Config{}), newTestKeys(Config{IdempotencyKeys: 2})
	for n := range byte(3) {
		fill(t, before, n, now)
	}
	for _, key := range before.logged() {
		after.applied(key.Key, key.Published, now)
	}
	require.Equal(t, []byte{1, 2}, scopes(t, after), "the newest, up to the limit")
	asked, published := used(1, now)
	got, err := after.do(asked, now, noPublish)
	require.NoError(t, err)
	require.Equal(t, published, got)

	asked.Print = Digest{1}
	after.applied(asked, published, now)
	require.Equal(t, []byte{1, 2}, scopes(t, after), "a known key does not change")
	_, err = after.do(asked, now, noPublish)
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
}

// A reload with a lower limit evicts the oldest keys at once. A new window applies to all
// keys.
func TestAReloadAppliesToExistingKeys(t *testing.T) {
	b := New(Config{}, metrics.New("test"), time.Now())
	now := time.Now()
	for n := range byte(5) {
		fill(t, b.keys, n, now)
	}
	b.Reload(Config{IdempotencyKeys: 2, IdempotencyWindow: time.Second}, now)
	require.Equal(t, []byte{3, 4}, scopes(t, b.keys))
	fill(t, b.keys, 5, now)
	require.Equal(t, []byte{4, 5}, scopes(t, b.keys))
	b.keys.sweep(now.Add(time.Second))
	require.Empty(t, scopes(t, b.keys))
}
