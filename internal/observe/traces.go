package observe

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// TracesConfig configures traces.
type TracesConfig struct {
	// Endpoint is the base URL of an OpenTelemetry collector that takes OTLP over HTTP, such as
	// http://127.0.0.1:4318. Default empty: no traces.
	Endpoint string

	// Sample traces one of so many publishes that come without a traceparent, chosen at
	// random. 0: none.
	Sample int

	// Slow traces deliveries that took at least this long, from the acceptance of the message
	// to the write. 0: none.
	Slow time.Duration
}

// Traces sends spans of publishes and of slow deliveries to a collector. The span publish has two
// children: "hook publish", the call of the application, and append, which ends when the log has
// the message. A request with many messages has one span publish, and no append. The span
// deliver has a trace of its own.
//
// The sampled flag of traceparent lets clients choose what is traced, so the number of traces a
// second is bounded. Spans wait for the collector in a bounded queue. No request waits for it. All methods may be
// called concurrently. A nil *Traces has no slow deliveries and nothing to close.
type Traces struct {
	// immutable
	cfg      TracesConfig
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	exporter *exporter
	calls    *rate.Limiter // traces of publishes
	slow     *rate.Limiter // traces of deliveries
}

const (
	// maxTraces is how many publishes, and how many deliveries, are traced in a second at most: a
	// span costs a few µs and about 2 KB, and every client that may publish can ask for traces.
	maxTraces = 100

	// queuedSpans bounds the spans that wait for the collector.
	queuedSpans = 2048

	// exportTimeout bounds one attempt to send spans, and closeTimeout the last one.
	exportTimeout = 10 * time.Second
	closeTimeout  = 2 * time.Second
)

// NewTraces returns the traces that cfg asks for, or nil if it has no endpoint. The environment
// variables OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES apply.
// The owner calls Close.
func NewTraces(cfg TracesConfig, m *metrics.Metrics, log *zap.Logger) (*Traces, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	client, err := newCollector(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	to, err := otlptrace.New(context.Background(), client)
	if err != nil {
		return nil, err
	}
	of, err := resource.New(context.Background(), resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "pubsubd"), attribute.String("service.version", m.Version)), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	return newTraces(cfg, to, of, m, log), nil
}

// scope is the instrumentation scope of all spans.
const scope = "github.com/pubsubd/pubsubd"

func newTraces(cfg TracesConfig, to sdktrace.SpanExporter, of *resource.Resource, m *metrics.Metrics, log *zap.Logger) *Traces {
	t := &Traces{
		cfg: cfg, calls: rate.NewLimiter(maxTraces, maxTraces), slow: rate.NewLimiter(maxTraces, maxTraces),
		exporter: &exporter{SpanExporter: to, metrics: m, log: log.Named("traces"), logged: rate.Sometimes{First: 1, Interval: time.Minute}},
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = 1024
	batches := sdktrace.NewBatchSpanProcessor(t.exporter, sdktrace.WithMaxQueueSize(queuedSpans), sdktrace.WithExportTimeout(exportTimeout))
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // begins decides
		sdktrace.WithRawSpanLimits(limits), sdktrace.WithResource(of), sdktrace.WithSpanProcessor(bounded{batches, t.exporter}))
	t.tracer = t.provider.Tracer(scope)
	return t
}

// Close sends the spans that wait, and ends. A collector that does not answer does not delay
// it for long.
func (t *Traces) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.exporter.log.Warn("the last spans were not sent", zap.Error(err))
	}
}

// begins reports whether a trace begins, or continues with the caller's decision.
func (t *Traces) begins(caller trace.SpanContext) bool {
	switch {
	case caller.IsValid() && !caller.IsSampled(), !caller.IsValid() && (t.cfg.Sample < 1 || rand.IntN(t.cfg.Sample) > 0):
		return false
	case !t.calls.Allow():
		t.exporter.metrics.Spans.WithLabelValues(metrics.SpansDropped).Inc()
		return false
	}
	return true
}

// A PublishSpan is the span of a call that publishes.
type PublishSpan struct {
	trace.Span
	appending trace.Span // nil: the call has not reached the broker
}

type publishKey struct{}

// Publish begins the span of a publish to a topic, whose name was checked. It returns nil and
// ctx as it is if the publish is not traced, or if it is one of many.
func (t *Traces) Publish(ctx context.Context, topic string) (context.Context, *PublishSpan) {
	if _, isOneOfMany := ctx.Value(publishKey{}).(*PublishSpan); isOneOfMany || !t.begins(trace.SpanContextFromContext(ctx)) {
		return ctx, nil
	}
	return t.publish(ctx, attribute.String("messaging.destination.name", topic))
}

// PublishMany begins the span of a call that publishes many messages, or returns nil. The
// messages have no spans of their own, whether or not the call is traced.
func (t *Traces) PublishMany(ctx context.Context) (context.Context, *PublishSpan) {
	if !t.begins(trace.SpanContextFromContext(ctx)) {
		return context.WithValue(ctx, publishKey{}, (*PublishSpan)(nil)), nil
	}
	return t.publish(ctx)
}

func (t *Traces) publish(ctx context.Context, also ...attribute.KeyValue) (context.Context, *PublishSpan) {
	ctx, span := t.tracer.Start(ctx, "publish", trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("messaging.system", "pubsubd"), attribute.String("messaging.operation.name", "publish")))
	span.SetAttributes(also...)
	p := &PublishSpan{Span: span}
	return context.WithValue(ctx, publishKey{}, p), p
}

// Append notes that the broker gets the message of a traced publish. The span append ends with
// the publish.
func (p *PublishSpan) Append(ctx context.Context) {
	_, p.appending = p.TracerProvider().Tracer(scope).Start(ctx, "append")
}

// End ends the span, and names the position of the message.
func (p *PublishSpan) End(published wire.Published, err error) {
	if p.appending != nil {
		p.appending.End()
	}
	if err != nil {
		fail(p.Span, err)
	} else if published.Position.Topic != "" {
		p.SetAttributes(attribute.String("messaging.message.id", published.Position.String()))
	}
	p.Span.End()
}

// fail marks a span as failed. It has the code of a problem, and no text: a text may have
// what the client sent.
func fail(span trace.Span, err error) {
	why := "_OTHER"
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		why = string(p.Code)
	}
	span.SetAttributes(attribute.String("error.type", why))
	span.SetStatus(codes.Error, why)
}

// Delivered makes a span of a delivery if it was slow: it began when the message was
// accepted, and ends now.
func (t *Traces) Delivered(message wire.Position, accepted time.Time, transport string) {
	if t == nil || t.cfg.Slow == 0 {
		return
	}
	now := time.Now()
	if now.Sub(accepted) < t.cfg.Slow {
		return
	}
	if !t.slow.AllowN(now, 1) {
		t.exporter.metrics.Spans.WithLabelValues(metrics.SpansDropped).Inc()
		return
	}
	_, span := t.tracer.Start(context.Background(), "deliver", trace.WithTimestamp(accepted), trace.WithAttributes(
		attribute.String("messaging.system", "pubsubd"), attribute.String("messaging.operation.name", "deliver"),
		attribute.String("messaging.destination.name", message.Topic), attribute.String("messaging.message.id", message.String()),
		attribute.String("pubsubd.transport", transport)))
	span.End(trace.WithTimestamp(now))
}

// Call begins the span of a call of the application, in the trace of ctx. The application
// gets the trace by Inject. Without a span in ctx, it makes none. The caller calls end once.
func Call(ctx context.Context, hook string) (_ context.Context, end func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func(error) {}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, "hook "+hook, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, func(err error) {
		if err != nil {
			fail(span, err)
		}
		span.End()
	}
}

// Within returns life with the trace of ctx: life decides when a call ends.
func Within(life, ctx context.Context) context.Context {
	return trace.ContextWithSpan(life, trace.SpanFromContext(ctx))
}

// Without returns ctx without a trace.
func Without(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.SpanContext{})
}

// Continue returns ctx with the trace that a client's headers name, or ctx as it is if
// traceparent is not valid (W3C Trace Context, section 3.2).
func Continue(ctx context.Context, traceparent, tracestate string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate})
}

// TraceID returns the id of the trace that a traceparent names, or "".
func TraceID(traceparent string) string {
	of := trace.SpanContextFromContext(Continue(context.Background(), traceparent, ""))
	if !of.IsValid() {
		return ""
	}
	return of.TraceID().String()
}

// Inject sets traceparent and tracestate to the trace of ctx, if it has one. A trace of the
// client is passed on also if the daemon makes no traces.
func Inject(ctx context.Context, h http.Header) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
}

// An exporter sends spans, and counts those that it sent and those that it lost.
type exporter struct {
	sdktrace.SpanExporter
	metrics *metrics.Metrics
	log     *zap.Logger
	logged  rate.Sometimes
	waiting atomic.Int64 // spans that have ended and were neither sent nor lost
}

// ExportSpans implements sdktrace.SpanExporter. It returns no error, since the SDK would pass
// that to a handler that all daemons of the process share.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.waiting.Add(-int64(len(spans)))
	if err == nil {
		e.metrics.Spans.WithLabelValues(metrics.SpansSent).Add(float64(len(spans)))
		return nil
	}
	e.metrics.Spans.WithLabelValues(metrics.SpansFailed).Add(float64(len(spans)))
	e.logged.Do(func() {
		e.log.Warn("spans were lost: is the collector of tracing.endpoint running?", zap.Int("spans", len(spans)), zap.Error(err))
	})
	return nil
}

// bounded is a batch processor that counts the spans for which its queue has no space.
type bounded struct {
	sdktrace.SpanProcessor
	exporter *exporter
}

// OnEnd implements sdktrace.SpanProcessor.
func (b bounded) OnEnd(span sdktrace.ReadOnlySpan) {
	if b.exporter.waiting.Add(1) > queuedSpans {
		b.exporter.waiting.Add(-1)
		b.exporter.metrics.Spans.WithLabelValues(metrics.SpansDropped).Inc()
		return
	}
	b.SpanProcessor.OnEnd(span)
}
