package observe

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func newLog(every int) (*AccessLog, *observer.ObservedLogs, *metrics.Metrics) {
	core, logged := observer.New(zap.InfoLevel)
	m := metrics.New("test")
	return NewAccessLog(every, zap.New(core), m), logged, m
}

// ended is a context that has ended: Run writes what waits, and returns.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestTheAccessLogIsASample(t *testing.T) {
	l, logged, _ := newLog(10)
	const requests = 5000
	for range requests {
		l.Begin().End()
	}
	require.Zero(t, logged.Len(), "nobody writes to the log but Run")
	l.Run(ended())
	require.InDelta(t, requests/10, logged.Len(), requests/25)

	l.Reload(0)
	require.Nil(t, l.Begin())
	l.Reload(1)
	require.NotNil(t, l.Begin())
	var none *AccessLog
	require.Nil(t, none.Begin())
}

func TestAnEntryHasOnlyWhatApplies(t *testing.T) {
	l, logged, _ := newLog(1)
	l.Begin().End()
	e := l.Begin()
	e.Method, e.Route, e.Client, e.Agent = "GET", "/v1/sessions/{id}/poll", "192.0.2.1", strings.Repeat("é", 1000)+"\xff"
	e.Wrote(7)
	e.Refused(problem.New(wire.CodeStaleAck, "", ""))
	e.End()
	l.Run(ended())
	none, all := logged.All()[0].ContextMap(), logged.All()[1].ContextMap()
	for _, m := range []map[string]any{none, all} {
		require.Contains(t, m, "begun")
		require.Contains(t, m, "took")
		delete(m, "begun")
		delete(m, "took")
	}
	require.Equal(t, map[string]any{"status": int64(0), "bytes": int64(0)}, none)
	require.Equal(t, map[string]any{
		"method": "GET", "route": "/v1/sessions/{id}/poll", "client": "192.0.2.1", "agent": strings.Repeat("é", maxTextBytes/2),
		"status": int64(409), "code": "stale_ack", "bytes": int64(7),
	}, all)
}

// The log's disk hangs. Requests do not wait for it: later entries are dropped and counted.
func TestEntriesAreDroppedIfTheLogIsSlow(t *testing.T) {
	l, logged, m := newLog(1)
	for range queuedEntries + 5 {
		l.Begin().End()
	}
	require.EqualValues(t, 5, testutil.ToFloat64(m.AccessLogDropped))
	l.Run(ended())
	require.Equal(t, queuedEntries, logged.Len())
}

func TestRequestIDs(t *testing.T) {
	for _, id := range []string{"a", "7f3b-9", strings.Repeat("x", 128), `"quoted"`, "~!"} {
		require.Equal(t, id, RequestID(id))
	}
	for _, values := range [][]string{{}, {""}, {"a", "b"}, {strings.Repeat("x", 129)}, {"a b"}, {"a\r\nSet-Cookie: x"}, {"é"}, {"\x7f"}} {
		require.Empty(t, RequestID(values...), "%q", values)
	}
}

func TestARequestThatIsNotLoggedCostsNothing(t *testing.T) {
	l, _, _ := newLog(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		e := l.Begin()
		e.Wrote(1)
		e.End()
	}))
}

func BenchmarkBeginOff(b *testing.B) {
	l, _, _ := newLog(0)
	for b.Loop() {
		l.Begin().End()
	}
}
