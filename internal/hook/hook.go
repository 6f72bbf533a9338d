// Package hook asks the application about what happens in the daemon, over HTTP.
// There is one hook: a message is shown to the application before it is published,
// which may change or refuse it. HOOKS.md is for who writes the application.
package hook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Config says whom to ask, and about what.
type Config struct {
	// URL is where the application is asked, over HTTP or HTTPS. Empty: nobody is.
	URL string

	// Secret signs what is asked; see KeyOf. Required with URL. Never log it.
	Secret string

	// Timeout bounds one call, from the connecting to the last byte of the answer.
	// Default 5 s.
	Timeout time.Duration

	// Calls is how many connections there may be to the application. How many calls
	// may be in flight, Places says. Default 100.
	Calls int

	// Topics are patterns of the topics that the application is asked about. Default
	// all.
	Topics []string

	// MessageBytes is the largest payload that may be published. An answer may have
	// twice that and 64 KiB: in base64, or with what JSON escapes. Default 64 KiB.
	MessageBytes int
}

// The defaults of Config.
const (
	DefaultTimeout = 5 * time.Second
	DefaultCalls   = 100

	defaultMessageBytes = 64 << 10
)

// Places bounds the calls in flight.
type Places interface {
	// Enter waits in order for a place, at most for a while or until ctx ends. The
	// error is a *wire.Problem, or ctx's; without one, Leave must follow.
	Enter(ctx context.Context) error
	Leave()
}

// A Hook asks an application. All methods may be called concurrently. It needs Close
// at the end.
type Hook struct {
	places  Places          // immutable, as are those below
	metrics *metrics.Hook   // of the publish hook
	log     *zap.Logger     // why calls fail: publishers are not told
	logged  rate.Sometimes  // not of each: as many may fail as clients like
	dial    dialer          // of all connections
	life    context.Context // of all calls; done by Close
	end     context.CancelFunc

	inForce atomic.Pointer[inForce]
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// inForce is what a Hook goes by, until a Reload.
type inForce struct {
	Config
	*application // nil: none
}

// New returns a hook whose calls have places. cfg must have been validated.
func New(cfg Config, places Places, m *metrics.Metrics, log *zap.Logger) *Hook {
	return newHook(cfg, places, m, log, new(net.Dialer).DialContext)
}

func newHook(cfg Config, places Places, m *metrics.Metrics, log *zap.Logger, dial dialer) *Hook {
	h := &Hook{places: places, metrics: m.Hook(wire.HookPublish, outcomes...), log: log.Named("hook"), logged: rate.Sometimes{First: loggedAtFirst, Interval: time.Second}, dial: dial}
	h.life, h.end = context.WithCancel(context.Background())
	h.inForce.Store(&inForce{Config: cfg, application: newApplication(cfg, dial)})
	return h
}

// Reload puts cfg in force for the calls to come. Connections are kept if it says
// nothing new.
func (h *Hook) Reload(cfg Config) {
	was := h.inForce.Load()
	if reflect.DeepEqual(was.Config, cfg) {
		return
	}
	h.inForce.Store(&inForce{Config: cfg, application: newApplication(cfg, h.dial)})
	was.retire()
}

// Close ends the calls that are under way, and lets none begin. Whoever waits for an
// answer is told that there is none.
func (h *Hook) Close() {
	h.end()
	h.inForce.Load().retire()
}

// Wants reports whether the application is asked about messages to the topic.
func (h *Hook) Wants(topic string) bool { return h.inForce.Load().wants(topic) }

func (f *inForce) wants(topic string) bool {
	if f.application == nil {
		return false
	}
	for _, pattern := range f.Topics {
		if wire.Matches(pattern, topic) {
			return true
		}
	}
	return len(f.Topics) == 0
}

// Outcomes of calls, as metrics label them.
const (
	passed     = "passed" // the message goes as it is
	changed    = "changed"
	refused    = "refused"
	failed     = "failed"  // no answer, or one that says nothing
	timeout    = "timeout" // none in time
	overloaded = "overloaded"
)

var outcomes = []string{passed, changed, refused, failed, timeout, overloaded}

// Publish asks about m, which principal wants to publish. nil lets it go: as it is
// or, where take was called and returned nil, as the application has changed it. The
// error is a *wire.Problem, forbidden, hook_failed or that of Places, or it is ctx's,
// if that ended before there was a place. Once the application is asked, ctx does not
// count: what it consented to is published, whether or not its publisher is still
// there.
func (h *Hook) Publish(ctx context.Context, principal string, m *wire.Message, ttl time.Duration, take func(*wire.PublishItem) error) error {
	app := h.inForce.Load()
	if !app.wants(m.Position.Topic) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.places.Enter(ctx); err != nil {
		if _, ok := errors.AsType[*wire.Problem](err); ok {
			h.metrics.Called(overloaded)
		}
		return err
	}
	defer h.places.Leave()
	begun := time.Now()
	answer, err := app.ask(h.life, appendQuestion(nil, principal, m, ttl))
	h.metrics.Took(time.Since(begun))
	outcome, err := h.judge(answer, err, m, take)
	h.metrics.Called(outcome)
	return err
}

// judge makes of what was answered an outcome, and the error for the publisher.
func (h *Hook) judge(answer wire.HookAnswer, err error, m *wire.Message, take func(*wire.PublishItem) error) (outcome string, _ error) {
	switch {
	case err != nil:
	case answer.Refuse != nil:
		return refused, refusal(answer.Refuse)
	case answer.Message == nil:
		return passed, nil
	default:
		if err = keeps(answer.Message, m); err == nil {
			err = take(answer.Message)
		}
		if err == nil {
			return changed, nil
		}
		err = fmt.Errorf("its message cannot be published: %w", err)
	}
	outcome, said := failed, "the application did not say what to do with the message"
	if errors.Is(err, context.DeadlineExceeded) {
		outcome, said = timeout, "the application did not answer in time"
	}
	h.logged.Do(func() {
		h.log.Warn("the publish hook failed", zap.String("outcome", outcome), zap.Error(err))
	})
	return outcome, wire.NewProblem(wire.CodeHookFailed, "publish it again after the stated time", "%s", said).Retry(retryAfter)
}

const retryAfter = time.Second

// loggedAtFirst is how many failures are logged, before that is one each second.
const loggedAtFirst = 20

// keeps returns an error if item says of m what an application cannot change.
func keeps(item *wire.PublishItem, m *wire.Message) error {
	switch {
	case item.Topic != "" && item.Topic != m.Position.Topic:
		return errors.New("it has another topic")
	case item.Client != nil && *item.Client != m.Client:
		return errors.New("it has another client")
	case item.ID != nil && *item.ID != m.ID:
		return errors.New("it has another id")
	}
	return nil
}

// maxDetail bounds, in characters, what a publisher is told of the application's.
const maxDetail = 1000

func refusal(r *wire.HookRefusal) *wire.Problem {
	if r.Detail == "" {
		r.Detail = "the application refuses the message"
	}
	return wire.NewProblem(wire.CodeForbidden, "change the message", "%.*s", maxDetail, r.Detail)
}

// None is no hook: every message goes as it is.
type None struct{}

// Wants returns false.
func (None) Wants(string) bool { return false }

// Publish lets the message go.
func (None) Publish(context.Context, string, *wire.Message, time.Duration, func(*wire.PublishItem) error) error {
	return nil
}
