package hook

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// AuthorizeConfig configures the authorize hook.
type AuthorizeConfig struct {
	Config // its MessageBytes are unused

	// Topics are patterns of the topics that the application is asked about.
	Topics []string

	// Cache is how long the daemon does not repeat a question to which the application
	// agreed. 0: it always asks.
	Cache time.Duration
}

// DefaultCache is the default of AuthorizeConfig.Cache.
const DefaultCache = 10 * time.Second

// Subscriptions asks an application about requests to subscribe. All methods may be
// called concurrently. Its owner calls Close at the end: requests that need an answer then
// fail.
type Subscriptions struct {
	application
	about atomic.Pointer[about] // until the next Reload
}

// about says what the application is asked about, and what need not be asked again.
type about struct {
	topics []string      // immutable; patterns
	keep   time.Duration // immutable; how long an agreement counts; 0: it does not

	// agreed has until when the application agreed to a question, by its hash.
	agreed memory.Cache[[sha256.Size]byte, time.Time]
}

// NewSubscriptions returns the authorize hook. Each call takes a slot. cfg must have been
// validated.
func NewSubscriptions(cfg AuthorizeConfig, slots Slots, m *metrics.Metrics, log *zap.Logger) *Subscriptions {
	h := &Subscriptions{}
	h.init(wire.HookAuthorize, cfg.Config, slots, m, log, passed, refused, failed, timeout, overloaded, cached)
	h.about.Store(newAbout(cfg))
	return h
}

func newAbout(cfg AuthorizeConfig) *about {
	return &about{topics: cfg.Topics, keep: cfg.Cache, agreed: memory.Cache[[sha256.Size]byte, time.Time]{Most: maxAgreed}}
}

// Reload applies cfg to later calls. A change forgets what the application agreed to.
func (h *Subscriptions) Reload(cfg AuthorizeConfig) {
	was := h.about.Load()
	if h.reload(cfg.Config) || was.keep != cfg.Cache || !slices.Equal(was.topics, cfg.Topics) {
		h.about.Store(newAbout(cfg))
	}
}

// A Subscribing is a request to subscribe to topics.
type Subscribing struct {
	Principal Principal
	Client    string       // the name that the client gave itself; empty: none
	Opens     bool         // a session, a poll or a stream with the topics; false: changes a session
	Topics    []wire.Start // topics and patterns
}

// Selects reports whether the application is asked about any of the topics and patterns.
func (h *Subscriptions) Selects(topics []wire.Start) bool {
	// Fast path: there is no hook.
	if h.inForce.Load().URL == "" {
		return false
	}
	about := h.about.Load()
	return slices.ContainsFunc(topics, func(s wire.Start) bool { return about.selects(s.Topic) })
}

// Authorize returns nil if the application agrees to the request, or is not asked about
// it. The error is a *wire.Problem (forbidden, hook_failed or that of Slots), or that of
// ctx if ctx ended before a slot was free. After the call to the application has begun, ctx
// has no effect.
func (h *Subscriptions) Authorize(ctx context.Context, s Subscribing) error {
	to, about := h.inForce.Load(), h.about.Load()
	if to.URL == "" {
		return nil
	}
	question := about.question(s)
	if question == nil {
		return nil
	}
	key := sha256.Sum256(question)
	if until, _ := about.agreed.Get(key); time.Now().Before(until) {
		h.metrics.Called(cached)
		return nil
	}
	answer, err := h.ask(ctx, s.Principal, to, func() []byte { return question })
	switch {
	case err != nil:
		return err
	case answer.Message != nil:
		return h.failed(errors.New("its answer has a message, which only a publish hook may change"))
	case answer.Refuse != nil:
		return h.refused(answer.Refuse, "subscribe to other topics, or see the application's documentation", "the application refuses the subscription")
	}
	h.metrics.Called(passed)
	if about.keep > 0 {
		about.agreed.Put(key, time.Now().Add(about.keep), 1)
	}
	return nil
}

// question returns the question about a request, or nil if the application is not asked.
func (a *about) question(s Subscribing) []byte {
	q := authorizeQuestion{Type: wire.HookAuthorize, Principal: s.Principal.Subject, Claims: s.Principal.Claims, Client: s.Client, Open: s.Opens, Topics: []string{}, Patterns: []string{}}
	for _, start := range s.Topics {
		switch {
		case !a.selects(start.Topic):
		case wire.IsPattern(start.Topic):
			q.Patterns = append(q.Patterns, start.Topic)
		default:
			q.Topics = append(q.Topics, start.Topic)
		}
	}
	if len(q.Topics)+len(q.Patterns) == 0 {
		return nil
	}
	return encode(q)
}

// selects reports whether the application is asked about a topic, or about any of the
// topics that a pattern matches.
func (a *about) selects(name string) bool {
	return slices.ContainsFunc(a.topics, func(pattern string) bool { return overlap(pattern, name) })
}

// overlap reports whether a topic can match both patterns. The name of a topic is a pattern
// that matches only this topic.
func overlap(x, y string) bool {
	if wire.ReservedTopic(x) != wire.ReservedTopic(y) { // no wildcard matches a reserved first segment
		return false
	}
	for {
		a, restOfX, moreX := strings.Cut(x, ".")
		b, restOfY, moreY := strings.Cut(y, ".")
		switch {
		case a == anyRest || b == anyRest:
			return true
		case a != b && a != anySegment && b != anySegment || moreX != moreY:
			return false
		case !moreX:
			return true
		}
		x, y = restOfX, restOfY
	}
}

// The wildcards of patterns; see wire.CheckPattern.
const (
	anySegment = "*"
	anyRest    = ">"
)

// maxAgreed bounds each generation of agreed: about 2 MiB.
const maxAgreed = 20_000
