package soak

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/loadtest/child"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// newPressed is a world with a daemon that answers the n-th publish, from 1 on, as
// answer says: nil is taken.
func newPressed(t *testing.T, answer func(n int64) *wire.Problem) *world {
	var published atomic.Int64
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := published.Add(1)
		p := answer(n)
		if p == nil {
			_ = json.NewEncoder(w).Encode(wire.Published{Position: wire.Position{Topic: "t.0", Epoch: "e1", Offset: uint64(n)}, Time: time.Now().UnixMilli()})
			return
		}
		w.Header().Set("Content-Type", wire.ProblemType)
		w.WriteHeader(p.Status)
		_ = json.NewEncoder(w).Encode(p)
	}))
	t.Cleanup(daemon.Close)
	ports, err := newPorts(1)
	require.NoError(t, err)
	t.Cleanup(ports.close)
	ports.calm()
	ports.lead(child.Addresses{Public: strings.TrimPrefix(daemon.URL, "http://")})
	payloads := newPayloads(1, 200)
	return &world{payloads: payloads, ledger: newLedger([]string{"t.0", "t.1"}, payloads, newFaults(), time.Now()), ports: ports, reign: &reign{}}
}

func (w *world) eager(t *testing.T) *eager {
	e, err := newEager(w, 0)
	require.NoError(t, err)
	t.Cleanup(e.transport.CloseIdleConnections)
	return e
}

func comeLater(code wire.Code, after int64) *wire.Problem {
	p := problem.New(code, "wait", "too much")
	p.RetryAfterMS = after
	return p
}

// An eager publisher stops when it is told to, comes back as told, and is served.
func TestWhoIsEagerHeedsWhatItIsTold(t *testing.T) {
	w := newPressed(t, func(n int64) *wire.Problem {
		switch n {
		case 6:
			return comeLater(wire.CodeLimited, 600)
		case 7:
			return comeLater(wire.CodeOverloaded, 600)
		}
		return nil
	})
	e := w.eager(t)
	err := e.rush(t.Context(), 0)
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeLimited})
	told := time.Now()
	e.insist(t.Context(), 0, err)
	require.GreaterOrEqual(t, time.Since(told), 1200*time.Millisecond, "more than who is not told waits")
	require.Equal(t, []int64{6, 2, 1, 1, 1}, []int64{
		w.published.accepted.Load(), w.published.refused.Load(),
		w.published.limited.Load(), w.published.overloaded.Load(), w.published.heeded.Load(),
	})
	require.Zero(t, w.ledger.faults.total(), w.ledger.faults.kept)
}

func TestARateThatIsNotHeldIsAFault(t *testing.T) {
	w := newPressed(t, func(int64) *wire.Problem { return nil })
	require.NoError(t, w.eager(t).rush(t.Context(), 0))
	require.Equal(t, map[Kind]int{Limit: 1}, w.ledger.faults.count, w.ledger.faults.kept)
	var taken, most int
	var took string
	_, err := fmt.Sscanf(w.ledger.faults.kept[0].Detail, "%d messages were accepted within %s the limit is %d", &taken, &took, &most)
	require.NoError(t, err)
	rushed, err := time.ParseDuration(strings.TrimSuffix(took, ";"))
	require.NoError(t, err)
	require.Equal(t, longestRush, taken)
	require.Equal(t, 11+int(rushed/(100*time.Millisecond)), most, "a burst of 10, and 10 a second")
}

func TestWhoHeedsARefusalAndIsNotServedIsAFault(t *testing.T) {
	for after, want := range map[int64]string{1: "as told", 0: "without a time to retry"} {
		w := newPressed(t, func(n int64) *wire.Problem {
			if after == 0 && n > 1 {
				return nil
			}
			return comeLater(wire.CodeLimited, after)
		})
		e := w.eager(t)
		e.insist(t.Context(), 0, e.rush(t.Context(), 0))
		require.Equal(t, map[Kind]int{Limit: 1}, w.ledger.faults.count, w.ledger.faults.kept)
		require.Contains(t, w.ledger.faults.kept[0].Detail, want)
	}
}

// What no limit says is for another try: nobody may be there.
func TestWhoFindsNobodyComesAgain(t *testing.T) {
	w := newPressed(t, func(n int64) *wire.Problem {
		if n <= mostRefusals/5 {
			return problem.New(wire.CodeDraining, "elsewhere", "going away")
		}
		return nil
	})
	e := w.eager(t)
	e.insist(t.Context(), 0, e.offer(t.Context(), 0))
	require.Equal(t, int64(1), w.published.accepted.Load())
	require.Zero(t, w.published.heeded.Load())
	require.Zero(t, w.ledger.faults.total(), w.ledger.faults.kept)
}

// The rates are those of the eager publishers' topics, and the crowd publishes to others.
func TestLimitsAreForWhoIsEager(t *testing.T) {
	cfg := Default()
	flags := strings.Join(limitFlags(cfg, topicNamesOf("a.", eagerTopics)), " ")
	require.Contains(t, flags, "--topics=eager1.pattern=a.1")
	require.Contains(t, flags, "--topics=eager1.rate=10/s burst 10")
	w := newPressed(t, nil)
	w.ledger.names = topicNamesOf("a.", eagerTopics+3)
	p, err := newPublisher(w, 0)
	require.NoError(t, err)
	drawn := map[int]bool{}
	for range 200 {
		drawn[p.drawTopic()] = true
	}
	require.Equal(t, map[int]bool{eagerTopics: true, eagerTopics + 1: true, eagerTopics + 2: true}, drawn)
	for topic := range eagerTopics {
		require.False(t, hooked(topic))
	}
}

func topicNamesOf(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + string(rune('0'+i))
	}
	return names
}

// The application thinks of what hurried publishers publish for longer than others wait,
// and not for too long.
func TestTheHurriedAreMoreThanTheApplicationTakes(t *testing.T) {
	p := newPayloads(1, 200)
	for n := range hurriedPublishers {
		o, thinks := p.opinionOf(newIdentity(hookedFirst, firstHurried+n, 7))
		require.Equal(t, lets, o)
		require.Greater(t, thinks, limitsWait)
		require.Less(t, thinks, hookTimeout/2)
	}
	require.Greater(t, hurriedPublishers, 2*hookCalls, "or the application would not notice")
	require.False(t, isHurried(probePublisher))
	require.False(t, isHurried(firstEager+eagerTopics-1))
}
