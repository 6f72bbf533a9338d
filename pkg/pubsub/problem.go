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

// errMalformed is an answer that no daemon gives: a bug, a newer protocol, or
// something between that speaks in the daemon's place.
var errMalformed = errors.New("the answer does not come from pubsubd")

// maxProblemBytes bounds what is read of an error: its detail may quote a request.
const maxProblemBytes = 64 << 10

// maxRetryAfter bounds what a daemon, or a proxy with a broken clock, can make a
// subscription wait.
const maxRetryAfter = time.Hour

// A statusError is an answer with an unwanted status and without a problem: from
// a proxy, or from something that is not pubsubd. The body is left out, because it
// may quote the URL: a session's id is a capability and belongs in no log.
type statusError struct {
	status     int
	retryAfter time.Duration // 0: not said
}

func (e *statusError) Error() string {
	return fmt.Sprintf("answered %d %s without pubsubd's error body; is this the address of a pubsubd server?", e.status, http.StatusText(e.status))
}

// readProblem makes an error of an answer: a *wire.Problem if it holds one. One that
// was cut off says nothing but that: the same status may go with a problem that a new
// session mends, or with one that nothing does.
func readProblem(resp *http.Response) error {
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxProblemBytes))
	if err != nil {
		return fmt.Errorf("the answer %d %s was cut off: %w", resp.StatusCode, http.StatusText(resp.StatusCode), err)
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p wire.Problem
	if mediaType != wire.ProblemType || json.Unmarshal(content, &p) != nil || p.Code == "" {
		return &statusError{resp.StatusCode, retryAfterOf(resp.Header)}
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

// statusOf returns the status that err was answered with, and 0 if there was no
// answer, or half of one.
func statusOf(err error) int {
	if p := (*wire.Problem)(nil); errors.As(err, &p) {
		return p.Status
	}
	if e := (*statusError)(nil); errors.As(err, &e) {
		return e.status
	}
	return 0
}

// A hopelessError is a request that cannot be made, now or later.
type hopelessError struct{ error }

func (e *hopelessError) Unwrap() error { return e.error }

// isTransient reports whether the same request may succeed later: there was no
// answer, or one that says so. Anything else is the request's fault.
func isTransient(err error) bool {
	if hopeless := (*hopelessError)(nil); errors.As(err, &hopeless) {
		return false
	}
	switch status := statusOf(err); status {
	case 0, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return status >= 500
	}
}

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
	e := (*statusError)(nil)
	if errors.As(err, &e) && (e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable) {
		return min(e.retryAfter, maxRetryAfter)
	}
	return 0
}
