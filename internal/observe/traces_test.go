package observe

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const (
	sampled   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// collect returns Traces, and a function that closes them and returns all spans.
func collect(cfg TracesConfig, m *metrics.Metrics) (*Traces, func() tracetest.SpanStubs) {
	to := &kept{InMemoryExporter: tracetest.NewInMemoryExporter()}
	t := newTraces(cfg, to, resource.Empty(), m, zap.NewNop())
	return t, func() tracetest.SpanStubs { t.Close(); return to.spans }
}

// kept keeps the spans over Shutdown.
type kept struct {
	*tracetest.InMemoryExporter
	spans tracetest.SpanStubs
}

func (k *kept) Shutdown(ctx context.Context) error {
	k.spans = k.GetSpans()
	return k.InMemoryExporter.Shutdown(ctx)
}

func attributes(of tracetest.SpanStub) map[attribute.Key]string {
	all := map[attribute.Key]string{}
	for _, a := range of.Attributes {
		all[a.Key] = a.Value.AsString()
	}
	return all
}

// A client's trace goes through the publish to the application and to the log.
func TestAPublishContinuesTheTraceOfItsClient(t *testing.T) {
	traces, spans := collect(TracesConfig{}, metrics.New("test"))
	ctx, span := traces.Publish(Continue(t.Context(), sampled, "a=b"), "rooms.7")
	require.NotNil(t, span)
	called, end := Call(Within(context.Background(), ctx), "publish")
	toApplication := http.Header{}
	Inject(called, toApplication)
	end(nil)
	span.Append(ctx)
	span.End(wire.Published{Position: wire.Position{Topic: "rooms.7", Epoch: "e", Offset: 3}}, nil)

	got := spans()
	require.Len(t, got, 3)
	hook, broker, publish := got[0], got[1], got[2]
	require.Equal(t, []string{"hook publish", "append", "publish"}, []string{hook.Name, broker.Name, publish.Name})
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", publish.SpanContext.TraceID().String())
	require.Equal(t, "b7ad6b7169203331", publish.Parent.SpanID().String())
	require.Equal(t, publish.SpanContext.SpanID(), hook.Parent.SpanID())
	require.Equal(t, publish.SpanContext.SpanID(), broker.Parent.SpanID())
	require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-"+hook.SpanContext.SpanID().String()+"-01", toApplication.Get("traceparent"))
	require.Equal(t, "a=b", toApplication.Get("tracestate"))
	require.Equal(t, map[attribute.Key]string{
		"messaging.system": "pubsubd", "messaging.operation.name": "publish", "messaging.destination.name": "rooms.7", "messaging.message.id": "rooms.7@e:3",
	}, attributes(publish))
}

func TestAFailedPublishNamesTheCodeAndNoText(t *testing.T) {
	traces, spans := collect(TracesConfig{Sample: 1}, metrics.New("test"))
	_, span := traces.Publish(t.Context(), "a")
	span.End(wire.Published{}, problem.New(wire.CodeForbidden, "", "secret"))
	_, span = traces.Publish(t.Context(), "a")
	span.End(wire.Published{}, errors.New("secret"))
	got := spans()
	require.Equal(t, "forbidden", attributes(got[0])["error.type"])
	require.Equal(t, "_OTHER", attributes(got[1])["error.type"])
	for _, s := range got {
		require.NotContains(t, s.Status.Description, "secret")
		require.Empty(t, s.Events)
	}
}

// The client's flag decides. The share decides for clients without a trace.
func TestWhichPublishesAreTraced(t *testing.T) {
	for _, tt := range []struct {
		traceparent string
		sample      int
		want        bool
	}{
		{sampled, 0, true},
		{unsampled, 1, false},
		{"", 0, false},
		{"", 1, true},
		{"00-0-0-01", 1, true},
		{"00-0-0-01", 0, false},
	} {
		traces, spans := collect(TracesConfig{Sample: tt.sample}, metrics.New("test"))
		ctx, span := traces.Publish(Continue(t.Context(), tt.traceparent, ""), "a")
		require.Equal(t, tt.want, span != nil, "%+v", tt)
		toApplication := http.Header{}
		Inject(ctx, toApplication)
		if tt.traceparent == unsampled {
			require.Equal(t, unsampled, toApplication.Get("traceparent"), "it is passed on as it is")
		}
		if span != nil {
			span.End(wire.Published{}, nil)
		}
		spans()
	}
}

func TestOnlySlowDeliveriesAreTraced(t *testing.T) {
	traces, spans := collect(TracesConfig{Slow: time.Second}, metrics.New("test"))
	at := wire.Position{Topic: "a", Epoch: "e", Offset: 1}
	begun := time.Now()
	traces.Delivered(at, begun.Add(-900*time.Millisecond), "longpoll")
	traces.Delivered(at, begun.Add(-2*time.Second), "longpoll")
	got := spans()
	require.Len(t, got, 1)
	require.Equal(t, "deliver", got[0].Name)
	require.GreaterOrEqual(t, got[0].EndTime.Sub(got[0].StartTime), 2*time.Second)
	require.Equal(t, "longpoll", attributes(got[0])["pubsubd.transport"])
	require.Equal(t, "a@e:1", attributes(got[0])["messaging.message.id"])

	traces, spans = collect(TracesConfig{}, metrics.New("test"))
	traces.Delivered(at, begun.Add(-time.Hour), "longpoll")
	require.Empty(t, spans())
}

func TestTheSampleIsAShareOfThePublishes(t *testing.T) {
	traces, spans := collect(TracesConfig{Sample: 10}, metrics.New("test"))
	traces.calls.SetLimit(1e9)
	traces.calls.SetBurst(1e9)
	const publishes = 5000
	traced := 0
	for range publishes {
		if _, span := traces.Publish(t.Context(), "a"); span != nil {
			traced++
			span.End(wire.Published{}, nil)
		}
	}
	require.InDelta(t, publishes/10, traced, publishes/25)
	require.Len(t, spans(), traced)
}

// Clients ask for traces as fast as they can.
func TestTracesAreBounded(t *testing.T) {
	m := metrics.New("test")
	traces, spans := collect(TracesConfig{Slow: time.Second}, m)
	begun := time.Now()
	for range 10 * maxTraces {
		if _, span := traces.Publish(Continue(t.Context(), sampled, ""), "a"); span != nil {
			span.End(wire.Published{}, nil)
		}
	}
	for range 10 * maxTraces {
		traces.Delivered(wire.Position{Topic: "a"}, begun.Add(-time.Hour), "longpoll")
	}
	most := 2 * (maxTraces + int(time.Since(begun).Seconds()*maxTraces) + 1)
	require.LessOrEqual(t, len(spans()), most)
	dropped := testutil.ToFloat64(m.Spans.WithLabelValues(metrics.SpansDropped))
	require.GreaterOrEqual(t, dropped, float64(20*maxTraces-most))
	require.EqualValues(t, 20*maxTraces-dropped, testutil.ToFloat64(m.Spans.WithLabelValues(metrics.SpansSent)))
}

// The collector hangs. Nobody waits for it: neither calls nor the end of the daemon for long.
func TestSpansAreBoundedIfTheCollectorHangs(t *testing.T) {
	hangs := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	defer server.Close()
	defer close(hangs)
	m := metrics.New("test")
	traces, err := NewTraces(TracesConfig{Endpoint: server.URL}, m, zap.NewNop())
	require.NoError(t, err)
	traces.calls.SetLimit(1e9)
	traces.calls.SetBurst(1e9)
	for range 2 * queuedSpans {
		_, span := traces.Publish(Continue(t.Context(), sampled, ""), "a")
		span.End(wire.Published{}, nil)
	}
	require.EqualValues(t, queuedSpans, testutil.ToFloat64(m.Spans.WithLabelValues(metrics.SpansDropped)))
	begun := time.Now()
	traces.Close()
	require.Less(t, time.Since(begun), 10*closeTimeout)
	require.Zero(t, testutil.ToFloat64(m.Spans.WithLabelValues(metrics.SpansSent)))
}

// Spans that were sent make room for others.
func TestSpansThatWereSentDoNotCount(t *testing.T) {
	m := metrics.New("test")
	traces, spans := collect(TracesConfig{}, m)
	traces.calls.SetLimit(1e9)
	traces.calls.SetBurst(1e9)
	for range 5 {
		for range queuedSpans / 2 {
			_, span := traces.Publish(Continue(t.Context(), sampled, ""), "a")
			span.End(wire.Published{}, nil)
		}
		require.NoError(t, traces.provider.ForceFlush(t.Context()))
	}
	require.Len(t, spans(), 5*queuedSpans/2)
	require.Zero(t, testutil.ToFloat64(m.Spans.WithLabelValues(metrics.SpansDropped)))
}

func TestACallThatFailsNamesTheCode(t *testing.T) {
	traces, spans := collect(TracesConfig{Sample: 1}, metrics.New("test"))
	ctx, span := traces.Publish(t.Context(), "a")
	_, end := Call(ctx, "publish")
	end(errors.New("secret"))
	span.End(wire.Published{}, nil)
	got := spans()[0]
	require.Equal(t, "hook publish", got.Name)
	require.Equal(t, "_OTHER", attributes(got)["error.type"])
	require.NotContains(t, got.Status.Description, "secret")
}

func TestACollectorThatRefusesIsCountedAndLogged(t *testing.T) {
	t.Setenv(headersVariable, "api-key=s%20ecret, Authorization = Bearer abc,")
	var key string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key = r.Header.Get("api-key") + " " + r.Header.Get("Authorization") + " " + r.URL.String()
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	core, logged := observer.New(zap.InfoLevel)
	m := metrics.New("test")
	for _, path := range []string{"", "/", "/v1/traces", "/?", "/v1/traces?"} {
		traces, err := NewTraces(TracesConfig{Endpoint: server.URL + path, Sample: 1}, m, zap.New(core))
		require.NoError(t, err)
		_, span := traces.Publish(t.Context(), "a")
		span.End(wire.Published{}, nil)
		traces.Close()
		require.Equal(t, "s ecret Bearer abc /v1/traces", strings.TrimSuffix(key, "?"))
	}
	require.EqualValues(t, 5, testutil.ToFloat64(m.Spans.WithLabelValues(metrics.SpansFailed)))
	require.Equal(t, 5, logged.FilterMessageSnippet("is the collector").Len())
	require.NotContains(t, logged.All()[0].ContextMap()["error"], "ecret")
}

func TestHeadersThatCannotBeReadAreRefusedWithoutTheirText(t *testing.T) {
	t.Setenv(headersVariable, "secret")
	_, err := NewTraces(TracesConfig{Endpoint: "http://127.0.0.1:1"}, metrics.New("test"), zap.NewNop())
	require.ErrorContains(t, err, headersVariable)
	require.NotContains(t, err.Error(), "secret")
}

func TestWithoutTracesACallAllocatesNothing(t *testing.T) {
	var traces *Traces
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = Continue(ctx, "", "")
		traces.Delivered(wire.Position{}, time.Time{}, "longpoll")
	}))
}
