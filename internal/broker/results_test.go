package broker

import (
	"context"
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

func newTestResults(cfg Config) *Results { return newResults(cfg.withDefaults(), metrics.New("test")) }

// counted is a counter's value, of those with the label's value if there is one.
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

// at is a result to be had with the scope n.
func at(n byte, now time.Time) (asked Result, published wire.Published) {
	return Result{Scope: Digest{n}}, wire.Published{Position: wire.Position{Topic: "a", Offset: uint64(n)}, Time: now.UnixMilli()}
}

// fill remembers a result with the scope n.
func fill(t *testing.T, r *Results, n byte, now time.Time) {
	t.Helper()
	asked, published := at(n, now)
	_, err := r.do(untilDone(t.Context()), asked, now, func() (wire.Published, error) { return published, nil })
	require.NoError(t, err)
}

// scopes are the first bytes of what is held, and checks that nothing else is.
func scopes(t *testing.T, r *Results) []byte {
	t.Helper()
	held := []byte{}
	r.Each(func(x Result) { held = append(held, x.Scope[0]) })
	require.Equal(t, len(held), r.count())
	require.Equal(t, len(held), len(r.byScope))
	if len(held) == 0 {
		require.Nil(t, r.newest)
	}
	return held
}

// Ten ask for the same at once: the first publishes; all are told what it is told.
func TestWhoComesDuringAPublishWaitsForItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestResults(Config{})
		asked, published := at(1, time.Now())
		var done sync.WaitGroup
		calls := 0
		for range 10 {
			done.Go(func() {
				got, err := r.do(untilDone(t.Context()), asked, time.Now(), func() (wire.Published, error) {
					calls++
					time.Sleep(time.Second)
					return published, nil
				})
				require.NoError(t, err)
				require.Equal(t, published, got)
			})
		}
		synctest.Wait()
		require.Zero(t, r.count(), "none is over")
		done.Wait()
		require.Equal(t, 1, calls)
		require.Equal(t, 9, counted(t, r.metrics, "idempotency_results_total", "repeated"))
	})
}

// The one that waits for a publish that fails tries it itself, also another message:
// the key was not used.
func TestWhoWaitedForAFailureTriesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestResults(Config{})
		asked, published := at(1, time.Now())
		failed := errors.New("overloaded")
		var done sync.WaitGroup
		done.Go(func() {
			_, err := r.do(untilDone(t.Context()), asked, time.Now(), func() (wire.Published, error) {
				time.Sleep(time.Second)
				return wire.Published{}, failed
			})
			require.ErrorIs(t, err, failed)
		})
		synctest.Wait()
		other := asked
		other.Fingerprint = Digest{9}
		got, err := r.do(untilDone(t.Context()), other, time.Now(), func() (wire.Published, error) { return published, nil })
		require.NoError(t, err)
		require.Equal(t, published, got)
		done.Wait()
	})
}

// A publish that panics leaves nobody waiting.
func TestAPublishThatPanicsIsOver(t *testing.T) {
	r := newTestResults(Config{})
	asked, _ := at(1, time.Now())
	require.Panics(t, func() {
		_, _ = r.do(untilDone(t.Context()), asked, time.Now(), func() (wire.Published, error) { panic("BUG") })
	})
	require.Empty(t, scopes(t, r))
	fill(t, r, 1, time.Now())
}

// The lane cannot wait: it is told at once, and nothing is changed.
func TestWhoCannotWaitIsToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestResults(Config{})
		asked, published := at(1, time.Now())
		go func() {
			_, _ = r.do(untilDone(t.Context()), asked, time.Now(), func() (wire.Published, error) {
				time.Sleep(time.Second)
				return published, nil
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := r.do(untilDone(ctx), asked, time.Now(), func() (wire.Published, error) { panic("published") })
		require.ErrorIs(t, err, context.Canceled)
		time.Sleep(time.Second)
		synctest.Wait()
		got, err := r.do(untilDone(ctx), asked, time.Now(), func() (wire.Published, error) { panic("published") })
		require.NoError(t, err, "what is over needs no wait")
		require.Equal(t, published, got)
	})
}

func TestTheOldestResultsMakeRoom(t *testing.T) {
	r := newTestResults(Config{IdempotencyKeys: 3})
	for n := range byte(5) {
		fill(t, r, n, time.Now())
	}
	require.Equal(t, []byte{2, 3, 4}, scopes(t, r))
	require.Equal(t, 2, counted(t, r.metrics, "idempotency_results_total", "evicted"))
	fill(t, r, 2, time.Now())
	require.Equal(t, []byte{2, 3, 4}, scopes(t, r), "a repeat makes nothing newer")
	fill(t, r, 0, time.Now())
	require.Equal(t, []byte{3, 4, 0}, scopes(t, r))
}

func TestASweepForgetsWhatIsPastTheWindow(t *testing.T) {
	begun := time.UnixMilli(1_700_000_000_000)
	r := newTestResults(Config{IdempotencyWindow: time.Minute})
	for n := range byte(3) {
		fill(t, r, n, begun.Add(time.Duration(n)*time.Second))
	}
	r.sweep(begun.Add(61*time.Second - time.Millisecond))
	require.Equal(t, []byte{1, 2}, scopes(t, r))
	r.sweep(begun.Add(time.Hour))
	require.Empty(t, scopes(t, r))
	require.Zero(t, counted(t, r.metrics, "idempotency_results_total", "evicted"), "it was their time")
	fill(t, r, 7, begun)
	require.Equal(t, []byte{7}, scopes(t, r))
}

func TestASweepOfManyLeavesNone(t *testing.T) {
	r := newTestResults(Config{})
	for n := range 2*sweepTurn + 1 {
		asked := Result{Scope: digestOf([]byte(fmt.Sprint(n)))}
		_, err := r.do(untilDone(t.Context()), asked, time.UnixMilli(1), func() (wire.Published, error) { return wire.Published{Time: 1}, nil })
		require.NoError(t, err)
	}
	require.Equal(t, 2*sweepTurn+1, r.count())
	r.sweep(time.Now())
	require.Empty(t, scopes(t, r))
}

// A daemon that is restarted with what another told repeats its results.
func TestResultsAreRestored(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	before, after := newTestResults(Config{}), newTestResults(Config{IdempotencyKeys: 2})
	for n := range byte(3) {
		fill(t, before, n, now)
	}
	before.Each(after.Add)
	require.Equal(t, []byte{1, 2}, scopes(t, after), "the newest, as many as may be")
	asked, published := at(1, now)
	got, err := after.do(untilDone(t.Context()), asked, now, func() (wire.Published, error) { panic("published") })
	require.NoError(t, err)
	require.Equal(t, published, got)

	asked.Fingerprint = Digest{1}
	after.Add(asked)
	require.Equal(t, []byte{1, 2}, scopes(t, after), "what is there stays as it is")
	_, err = after.do(untilDone(t.Context()), asked, now, func() (wire.Published, error) { panic("published") })
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
}

// A reload that leaves room for fewer takes the oldest at once, and its window counts
// for those that are held.
func TestResultsGoByWhatIsReloaded(t *testing.T) {
	b := New(Config{}, metrics.New("test"), time.Now())
	now := time.Now()
	for n := range byte(5) {
		fill(t, b.results, n, now)
	}
	b.Reload(Config{IdempotencyKeys: 2, IdempotencyWindow: time.Second}, now)
	require.Equal(t, []byte{3, 4}, scopes(t, b.results))
	fill(t, b.results, 5, now)
	require.Equal(t, []byte{4, 5}, scopes(t, b.results))
	b.results.sweep(now.Add(time.Second))
	require.Empty(t, scopes(t, b.results))
}
