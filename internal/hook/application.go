package hook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// An application gets the calls of one hook. All methods may be called concurrently. Its
// owner calls Close at the end.
type application struct {
	// immutable
	hook    string          // its name
	slots   Slots           // of the calls
	metrics *metrics.Hook   // of the hook
	log     *zap.Logger     // of failed calls; clients do not get the reasons
	logged  rate.Sometimes  // limits the log, since clients can make calls fail
	life    context.Context // of all calls; ended by Close
	end     context.CancelFunc

	// dial makes all connections. Tests replace it before the first one.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	inForce atomic.Pointer[server] // until the next Reload
}

// init prepares the application of a hook, whose calls have these outcomes.
func (a *application) init(hook string, cfg Config, slots Slots, m *metrics.Metrics, log *zap.Logger, outcomes ...string) {
	a.hook, a.slots, a.dial = hook, slots, new(net.Dialer).DialContext
	a.metrics, a.log = m.Hook(hook, outcomes...), log.Named("hook")
	a.logged = rate.Sometimes{First: loggedAtFirst, Interval: time.Second}
	a.life, a.end = context.WithCancel(context.Background())
	a.inForce.Store(a.newServer(cfg))
}

// loggedAtFirst is how many failures are logged before the log is limited to one each
// second.
const loggedAtFirst = 20

// reload applies cfg to later calls, and reports whether it changed anything. Without a
// change, connections stay open.
func (a *application) reload(cfg Config) bool {
	was, is := a.inForce.Load(), a.newServer(cfg)
	if was.Config == is.Config {
		return false
	}
	a.inForce.Store(is)
	was.network.CloseIdleConnections() // those of calls in flight close after idleTimeout
	return true
}

// Close cancels the calls in flight and those to come: they fail.
func (a *application) Close() {
	a.end()
	a.inForce.Load().network.CloseIdleConnections()
}

// ask asks one question in the trace of ctx. The question is made once there is a slot. The answer
// counts even if the client has left meanwhile. The error is a *wire.Problem, of the Slots or about
// the application, or that of ctx if ctx ended before a slot was free.
func (a *application) ask(ctx context.Context, by Principal, s *server, question func() []byte) (answer wire.HookAnswer, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	if err := a.slots.Enter(ctx, by.Address); err != nil {
		if _, ok := errors.AsType[*wire.Problem](err); ok {
			a.metrics.Called(overloaded)
		}
		return answer, err
	}
	defer a.slots.Leave()
	defer a.timed(time.Now())
	ctx, end := observe.Call(observe.Within(a.life, ctx), a.hook)
	defer func() {
		if end(err); err != nil {
			err = a.failed(err)
		}
	}()
	err = s.call(ctx, newID(), question(), func(resp *http.Response) error {
		answer, err = s.read(resp)
		return err
	})
	return answer, err
}

func (a *application) timed(begun time.Time) { a.metrics.Took(time.Since(begun)) }

// refused counts a refusal, and returns the problem for the client.
func (a *application) refused(r *wire.HookRefusal, remedy, otherwise string) error {
	a.metrics.Called(refused)
	return problem.New(wire.CodeForbidden, remedy, "%.*s", maxDetail, cmp.Or(r.Detail, otherwise))
}

// maxDetail bounds the application's detail for the client, in characters.
const maxDetail = 1000

// failed counts and logs a call that failed, and returns the problem for the client.
func (a *application) failed(err error) error {
	outcome, detail := failed, "the application did not give a valid answer"
	if errors.Is(err, context.DeadlineExceeded) {
		outcome, detail = timeout, "the application did not answer in time"
	}
	a.metrics.Called(outcome)
	a.logged.Do(func() {
		a.log.Warn("the "+a.hook+" hook failed", zap.String("outcome", outcome), zap.Error(err))
	})
	return problem.New(wire.CodeHookFailed, "retry after retry_after_ms", "%s", detail).Retry(retryAfter)
}

const retryAfter = time.Second

// A server makes calls as one Config says. All methods may be called concurrently.
type server struct {
	Config  // with defaults; without a URL no call can be made
	key     []byte
	network *http.Transport
}

// idleTimeout is less than the 5 s after which Node closes a connection, the shortest of
// the usual defaults. If the application closed a connection just as a call begins, the
// call would fail.
const idleTimeout = 4 * time.Second

// newServer returns the server of a Config.
//
// Its connections lead only to the application: they use no proxy of the environment. They
// speak HTTP/1.1, so that each call has its own connection. The timeout of a call also
// bounds connecting: net/http continues that after the call has ended, for minutes if
// there is no answer, and each attempt uses up one of the connections.
func (a *application) newServer(cfg Config) *server {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.Calls = cmp.Or(cfg.Calls, DefaultCalls)
	cfg.MessageBytes = cmp.Or(cfg.MessageBytes, defaultMessageBytes)
	key, err := KeyOf(cfg.Secret)
	if cfg.URL != "" && err != nil {
		panic("BUG: a hook's secret was not validated: " + err.Error())
	}
	network := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
			defer cancel()
			return a.dial(ctx, network, address)
		},
		TLSHandshakeTimeout: cfg.Timeout, Protocols: new(http.Protocols),
		MaxConnsPerHost: cfg.Calls, MaxIdleConns: cfg.Calls, MaxIdleConnsPerHost: cfg.Calls, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
	}
	network.Protocols.SetHTTP1(true)
	return &server{Config: cfg, key: key, network: network}
}

// call makes one call with an id, in the trace of ctx, and calls read with the answer. The
// error does not contain the URL.
func (s *server) call(ctx context.Context, id string, body []byte, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "pubsubd")
	observe.Inject(ctx, r.Header)
	sign(r.Header, s.key, id, time.Now(), body)
	resp, err := s.network.RoundTrip(r) // follows no redirects, and its errors do not contain the URL
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return read(resp)
}

// read reads the answer to a question.
func (s *server) read(resp *http.Response) (wire.HookAnswer, error) {
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return wire.HookAnswer{}, fmt.Errorf("it answered with status %d", resp.StatusCode)
	}
	longest := 2*int64(s.MessageBytes) + 64<<10
	all, err := io.ReadAll(io.LimitReader(resp.Body, longest+1))
	switch {
	case err != nil:
		return wire.HookAnswer{}, fmt.Errorf("its answer broke off: %w", err)
	case int64(len(all)) > longest:
		return wire.HookAnswer{}, fmt.Errorf("its answer has more than %d bytes", longest)
	}
	answer, err := parseAnswer(all)
	if err != nil {
		return answer, fmt.Errorf("its answer is not valid: %w", err)
	}
	return answer, nil
}
