package wire

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// ProblemType is the media type of a problem (RFC 9457, section 3).
const ProblemType = "application/problem+json"

// A Problem is an error for a client (RFC 9457). Its type is about:blank, so Title is the
// phrase of the status (RFC 9457, section 4.2.1). Code is for programs; Detail and Remedy
// are for people. CLIENTS.md says what a client does for each code.
type Problem struct {
	Title        string     `json:"title"`
	Status       int        `json:"status"`
	Code         Code       `json:"code"`
	Detail       string     `json:"detail,omitempty"`
	Remedy       string     `json:"remedy,omitempty"`
	RetryAfterMS int64      `json:"retry_after_ms,omitempty"` // how long to wait before a retry; 0: the daemon did not say
	Positions    []Position `json:"positions,omitempty"`      // where a reopened session continues
}

// Code names a kind of problem. The list is frozen; it only grows.
type Code string

// The codes. Each has one status; see PROTOCOL.md.
const (
	CodeInvalidRequest       Code = "invalid_request"        // a field, parameter or header is wrong
	CodeInvalidTopic         Code = "invalid_topic"          // a topic's name breaks the rules
	CodeInvalidPosition      Code = "invalid_position"       // a position cannot be read
	CodeInvalidBody          Code = "invalid_body"           // the published body is not what its type says
	CodeAckBeyondSent        Code = "ack_beyond_sent"        // the ack counts more frames than were sent
	CodeTooManySubscriptions Code = "too_many_subscriptions" // the client names more topics and patterns than allowed, or a pattern takes too long to search
	CodeReservedTopic        Code = "reserved_topic"         // the topic belongs to the daemon
	CodeUnauthorized         Code = "unauthorized"           // the request does not identify its sender
	CodeTokenExpired         Code = "token_expired"          // the token has expired; send a new one
	CodeForbidden            Code = "forbidden"              // the principal may not do this
	CodeNotFound             Code = "not_found"              // no such path
	CodeTopicUnknown         Code = "topic_unknown"          // the topic does not exist now
	CodeSessionUnknown       Code = "session_unknown"        // the session never existed, or its end is forgotten
	CodeMethodNotAllowed     Code = "method_not_allowed"     // see the Allow header
	CodeNotAcceptable        Code = "not_acceptable"         // the client accepts no format of the daemon
	CodeStaleAck             Code = "stale_ack"              // the ack is lower than an earlier one
	CodePollReplaced         Code = "poll_replaced"          // a newer poll replaced this one; do not poll again
	CodeSessionEnded         Code = "session_ended"          // the session has ended; open another from your positions
	CodeMessageTooLarge      Code = "message_too_large"      // the body is larger than the limit
	CodeWrongHost            Code = "wrong_host"             // the daemon may not be addressed under the name in Host
	CodeUnsupportedType      Code = "unsupported_type"       // this path does not accept a body of this type
	CodeIdempotencyMismatch  Code = "idempotency_mismatch"   // the key was used for another message
	CodeLimited              Code = "limited"                // the client reached a limit; retry later
	CodeOverloaded           Code = "overloaded"             // the daemon is overloaded; retry later
	CodeDraining             Code = "draining"               // the daemon is shutting down; retry later or elsewhere
	CodeHookFailed           Code = "hook_failed"            // the application gave no valid answer about the message or subscription; retry later
	CodeInternal             Code = "internal"               // a fault of the daemon
)

// Retry sets the time after which the client may retry, in milliseconds, rounded up, and
// returns p.
func (p *Problem) Retry(after time.Duration) *Problem {
	p.RetryAfterMS = max(1, int64((after+time.Millisecond-1)/time.Millisecond))
	return p
}

// Error returns "code: detail (remedy)".
func (p *Problem) Error() string {
	s := string(p.Code)
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	if p.Remedy != "" {
		s += " (" + p.Remedy + ")"
	}
	return s
}

// Is makes errors.Is compare problems only by code.
func (p *Problem) Is(target error) bool {
	other, ok := target.(*Problem)
	return ok && other.Code == p.Code
}

// maxQuoteBytes is how much of a text from outside an error repeats.
const maxQuoteBytes = 64

// Quote returns s in quotes, for an error: at most 64 bytes of it, and "…" if it is longer.
// So no error grows with its input.
func Quote[S ~string | ~[]byte](s S) string {
	if len(s) <= maxQuoteBytes {
		return strconv.Quote(string(s))
	}
	end := maxQuoteBytes
	for end > maxQuoteBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) { // do not cut a character
		end--
	}
	return strconv.Quote(string(s[:end]) + "…")
}

// quoteFirst returns the first character of s in quotes, for an error. s is not empty.
func quoteFirst(s string) string {
	if r, n := utf8.DecodeRuneInString(s); r != utf8.RuneError || n > 1 {
		return strconv.QuoteRune(r)
	}
	return fmt.Sprintf(`'\x%02x'`, s[0]) // not UTF-8
}

// A fault is the error of a text that is not a topic, a pattern, a position, a start or a
// rate. CheckTopic, CheckPattern, ParsePosition, ParseStart and ParseRate return it; the
// daemon reads the code.
type fault struct {
	code Code
	text string
}

func (f *fault) Error() string { return f.text }

// Code returns the code of the problem that the text causes.
func (f *fault) Code() Code { return f.code }

func faultf(code Code, format string, args ...any) error {
	return &fault{code, fmt.Sprintf(format, args...)}
}
