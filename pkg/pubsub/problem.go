package pubsub

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maxProblemBytes bounds what is read of an error: its detail may quote a request.
const maxProblemBytes = 64 << 10

// maxRetryAfter bounds what a daemon, or a proxy with a broken clock, can make a
// subscription wait.
const maxRetryAfter = time.Hour

// An UnexpectedAnswerError is an answer that is not pubsubd's: it comes from a proxy or another
// program. The clients in other languages give it the code unexpected_answer. Publish returns it,
// but after 408, 425, 429 and 5xx it may retry first. A subscription never ends with it, because an
// ingress, for example, answers 404 for some seconds of a rollout: see WithRetryNotify.
type UnexpectedAnswerError struct {
	Status int // of HTTP; 0: the connection was TCP

	// reason continues "answered 404 Not Found". It does not quote the body, which may quote
	// the URL: a session's id is a capability and belongs in no log.
	reason     string
	retryAfter time.Duration // 0: not said
}

// unexpected returns the error of an answer with a good status, which is wrong all the same.
func unexpected(status int, reason string, args ...any) error {
	return &UnexpectedAnswerError{Status: status, reason: fmt.Sprintf(reason, args...)}
}

func (e *UnexpectedAnswerError) Error() string {
	said := "answered"
	if e.Status != 0 {
		said = fmt.Sprintf("answered %d %s", e.Status, http.StatusText(e.Status))
	}
	said += " " + e.reason
	switch e.Status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return said + ": the proxy does not reach pubsubd"
	}
	return said + ": is a proxy in between, or is this not a pubsubd server?"
}

// errIncomplete is an answer that ended before its body did, or before the body began. HTTP does
// not always tell.
var errIncomplete = errors.New("the answer was cut off")

// readProblem makes an error of an answer: a *wire.Problem if it holds one. One that
// was cut off says nothing but that: the same status may go with a problem that a new
// session mends, or with one that nothing does.
func readProblem(resp *http.Response) error {
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxProblemBytes))
	if err != nil {
		return fmt.Errorf("the answer %d %s was cut off: %w", resp.StatusCode, http.StatusText(resp.StatusCode), err)
	}
	if len(content) == 0 && resp.StatusCode/100 == 2 {
		return errIncomplete
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p wire.Problem
	if mediaType != wire.ProblemType || json.Unmarshal(content, &p) != nil || p.Code == "" {
		reason := "without pubsubd's error body"
		if to, err := resp.Location(); err == nil {
			reason = "to " + to.Scheme + "://" + to.Host + ", " + reason
		}
		return &UnexpectedAnswerError{resp.StatusCode, reason, retryAfterOf(resp.Header)}
	}
	p.Status = resp.StatusCode
	if p.RetryAfterMS == 0 {
		p.RetryAfterMS = retryAfterOf(resp.Header).Milliseconds()
	}
	return &p
}

// retryAfterOf returns what the header Retry-After says: seconds, or a date (RFC
// 9110, section 10.2.3).
func retryAfterOf(h http.Header) time.Duration {
	said := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(said, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(said); err == nil {
		return max(0, time.Until(date))
	}
	return 0
}

// A hopelessError is a request that cannot be made, now or later.
type hopelessError struct{ error }

func (e *hopelessError) Unwrap() error { return e.error }

// isTransient reports whether the same request may succeed later: there was no
// answer, or one that says so. Anything else is the request's fault, or see isForeign.
func isTransient(err error) bool {
	if p := (*wire.Problem)(nil); errors.As(err, &p) {
		return isLater(p.Status)
	}
	hopeless := (*hopelessError)(nil)
	return !errors.As(err, &hopeless) && !isForeign(err)
}

// isForeign reports whether something answered in the daemon's place, with a status that does
// not say "later". It is not the daemon's word, so it does not end a subscription: an ingress
// answers 404 for some seconds of a rollout.
func isForeign(err error) bool {
	e := (*UnexpectedAnswerError)(nil)
	return errors.As(err, &e) && !isLater(e.Status)
}

func isLater(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// mayPass reports whether a subscription goes on trying after err.
func mayPass(err error) bool { return isTransient(err) || isForeign(err) }

// hasCode reports whether err is a problem with one of the codes.
func hasCode(err error, codes ...wire.Code) bool {
	p := (*wire.Problem)(nil)
	if !errors.As(err, &p) {
		return false
	}
	for _, code := range codes {
		if p.Code == code {
			return true
		}
	}
	return false
}

// retryAfter returns how long the daemon asks to wait before the next attempt; 0
// if it does not.
func retryAfter(err error) time.Duration {
	if p := (*wire.Problem)(nil); errors.As(err, &p) {
		return time.Duration(min(max(0, p.RetryAfterMS), maxRetryAfter.Milliseconds())) * time.Millisecond
	}
	e := (*UnexpectedAnswerError)(nil)
	if errors.As(err, &e) && (e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable) {
		return min(e.retryAfter, maxRetryAfter)
	}
	return 0
}
