// Package hook calls applications over HTTP. The publish hook asks about each message
// before it is published, and the authorize hook about each request to subscribe. The
// events hook reports sessions and topics. HOOKS.md describes them for authors of
// applications.
package hook

import (
	"context"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
)

// Config configures the calls of one hook to its application.
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

// A Principal is a client that has proved who it is.
type Principal struct {
	Subject string // empty: anonymous
	Claims  []byte // public claims of its token, a compact JSON object; nil: none

	Address *memory.Client // the account of its address, which gets slots in turn; nil: none
}

// Slots bounds the calls in flight.
type Slots interface {
	// Enter waits for a slot, for a limited time or until ctx ends. Addresses get slots in turn:
	// of is the memory account of the caller's address; nil: none. The error is a *wire.Problem
	// or that of ctx. Without an error, call Leave.
	Enter(ctx context.Context, of *memory.Client) error
	Leave()
}

// Outcomes of calls, as metrics label them.
const (
	passed     = "passed" // the application agrees: the message is published unchanged
	changed    = "changed"
	refused    = "refused"
	failed     = "failed"  // no answer, or one that cannot be used
	timeout    = "timeout" // no answer in time
	overloaded = "overloaded"
	cached     = "cached" // the application agreed to the same question before
)
