// Package hook asks an application about events in the daemon, over HTTP. There is one
// hook: the application may change or refuse a message before it is published. HOOKS.md
// describes it for authors of applications.
package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Config configures the calls to the application.
type Config struct {
	// URL is the application, over HTTP or HTTPS. Empty: no hook.
	URL string

	// Secret signs the requests; see KeyOf. Required with URL. Never log it.
	Secret string

	// Timeout bounds one call, from connecting to the last byte of the answer.
	// Default 5 s.
	Timeout time.Duration

	// Calls bounds the connections to the application. Slots bounds the calls in flight.
	// Default 100.
	Calls int

	// MessageBytes is the largest payload of a message. An answer may have twice that plus
	// 64 KiB, because base64 and JSON escapes are longer. Default 64 KiB.
	MessageBytes int
}

// Defaults of Config.
const (
	DefaultTimeout = 5 * time.Second
	DefaultCalls   = 100

	defaultMessageBytes = 64 << 10
)

// Slots bounds the calls in flight.
type Slots interface {
	// Enter waits, in order, for a slot, for a limited time or until ctx ends. The
	// error is a *wire.Problem or that of ctx. Without an error, call Leave.
	Enter(ctx context.Context) error
	Leave()
}

// A Hook asks an application. All methods may be called concurrently. Its owner calls
// Close at the end.
type Hook struct {
	// immutable
	slots   Slots
	metrics *metrics.Hook   // of the publish hook
	log     *zap.Logger     // of failed calls; publishers do not get the reasons
	logged  rate.Sometimes  // limits the log, since clients can make calls fail
	dial    dialer          // of all connections
	life    context.Context // of all calls; ended by Close
	end     context.CancelFunc

	inForce atomic.Pointer[application] // until the next Reload
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a hook. Each call takes a slot. cfg must have been validated.
func New(cfg Config, slots Slots, m *metrics.Metrics, log *zap.Logger) *Hook {
	return newHook(cfg, slots, m, log, new(net.Dialer).DialContext)
}

func newHook(cfg Config, slots Slots, m *metrics.Metrics, log *zap.Logger, dial dialer) *Hook {
	h := &Hook{slots: slots, metrics: m.Hook(wire.HookPublish, outcomes...), log: log.Named("hook"), logged: rate.Sometimes{First: loggedAtFirst, Interval: time.Second}, dial: dial}
	h.life, h.end = context.WithCancel(context.Background())
	h.inForce.Store(newApplication(cfg, dial))
	return h
}

// Reload applies cfg to later calls. Without a change, connections stay open.
func (h *Hook) Reload(cfg Config) {
	was, app := h.inForce.Load(), newApplication(cfg, h.dial)
	if was.Config != app.Config {
		h.inForce.Store(app)
		was.network.CloseIdleConnections() // those of calls in flight close after idleTimeout
	}
}

// Close cancels the calls in flight and those to come. Their publishes fail.
func (h *Hook) Close() {
	h.end()
	h.inForce.Load().network.CloseIdleConnections()
}

// Outcomes of calls, as metrics label them.
const (
	passed     = "passed" // the message is published unchanged
	changed    = "changed"
	refused    = "refused"
	failed     = "failed"  // no answer, or one that cannot be used
	timeout    = "timeout" // no answer in time
	overloaded = "overloaded"
)

var outcomes = []string{passed, changed, refused, failed, timeout, overloaded}

// Publish asks the application about m, which principal wants to publish. It calls take if
// the application changed m. Without an error, publish m. The error is a *wire.Problem
// (forbidden, hook_failed or that of Slots), or that of ctx if ctx ended before a slot was
// free. After the call to the application has begun, ctx has no effect: a message that the
// application allows is published even if its publisher has left.
func (h *Hook) Publish(ctx context.Context, principal string, m *wire.Message, ttl time.Duration, take func(*wire.PublishItem) error) error {
	app := h.inForce.Load()
	if app.URL == "" {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.slots.Enter(ctx); err != nil {
		if _, ok := errors.AsType[*wire.Problem](err); ok {
			h.metrics.Called(overloaded)
		}
		return err
	}
	defer h.slots.Leave()
	begun := time.Now()
	answer, err := app.ask(h.life, appendQuestion(nil, principal, m, ttl))
	h.metrics.Took(time.Since(begun))
	outcome, err := h.judge(answer, err, m, take)
	h.metrics.Called(outcome)
	return err
}

// judge turns an answer into an outcome and the error for the publisher.
func (h *Hook) judge(answer wire.HookAnswer, err error, m *wire.Message, take func(*wire.PublishItem) error) (outcome string, _ error) {
	switch {
	case err != nil:
	case answer.Refuse != nil:
		detail := cmp.Or(answer.Refuse.Detail, "the application refuses the message")
		return refused, wire.NewProblem(wire.CodeForbidden, "change the message", "%.*s", maxDetail, detail)
	case answer.Message == nil:
		return passed, nil
	default:
		if err = checkUnchanged(answer.Message, m); err == nil {
			err = take(answer.Message)
		}
		if err == nil {
			return changed, nil
		}
		err = fmt.Errorf("its message cannot be published: %w", err)
	}
	outcome, detail := failed, "the application did not give a valid answer"
	if errors.Is(err, context.DeadlineExceeded) {
		outcome, detail = timeout, "the application did not answer in time"
	}
	h.logged.Do(func() {
		h.log.Warn("the publish hook failed", zap.String("outcome", outcome), zap.Error(err))
	})
	return outcome, wire.NewProblem(wire.CodeHookFailed, "publish it again after retry_after_ms", "%s", detail).Retry(retryAfter)
}

const (
	retryAfter = time.Second

	// maxDetail bounds the application's detail for the publisher, in characters.
	maxDetail = 1000

	// loggedAtFirst is how many failures are logged before the log is limited to one each
	// second.
	loggedAtFirst = 20
)

// checkUnchanged returns an error if item changes what an application cannot change.
func checkUnchanged(item *wire.PublishItem, m *wire.Message) error {
	switch {
	case item.Topic != "" && item.Topic != m.Position.Topic:
		return errors.New("it changes the topic")
	case item.Client != nil && *item.Client != m.Client:
		return errors.New("it changes the client")
	case item.ID != nil && *item.ID != m.ID:
		return errors.New("it changes the id")
	}
	return nil
}
