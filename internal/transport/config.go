package transport

import (
	"cmp"
	"time"
)

// Config says how long answers wait and how much they hold. The zero value of a
// field takes its default.
type Config struct {
	// PollTimeout is how long a poll is held before it is answered empty.
	// Default 25 s, below the 30 s after which many proxies give up.
	PollTimeout time.Duration

	// Heartbeat is how often a quiet stream sends an empty line. Default 15 s.
	Heartbeat time.Duration

	// MaxOutputDelay is how long a quiet "multiple" answer stays open.
	// Default 200 ms, as in Silverlight 4.
	MaxOutputDelay time.Duration

	// MultipleTime is how long a "multiple" answer may last. Default 5 s.
	MultipleTime time.Duration

	// AnswerFrames and AnswerBytes bound an answer that ends. The bytes are
	// approximate, and one frame always goes. Defaults 1000, 1 MiB.
	AnswerFrames int
	AnswerBytes  int

	// CompressionMinBytes is how long a message's bytes are at least that are
	// compressed for clients which take that. Default 1 KiB; negative: none are.
	CompressionMinBytes int

	// WriteTimeout is how long one write may take before the connection of a
	// client that does not read is closed. Default 30 s.
	WriteTimeout time.Duration

	// RestTimeout is how long a client may take to send the rest of what it has begun:
	// a request's body, or a command. Default 20 s, less than WriteTimeout's, so that it
	// can still be told.
	RestTimeout time.Duration
}

// Defaults of Config.
const (
	DefaultPollTimeout         = 25 * time.Second
	DefaultHeartbeat           = 15 * time.Second
	DefaultMaxOutputDelay      = 200 * time.Millisecond
	DefaultMultipleTime        = 5 * time.Second
	DefaultAnswerFrames        = 1000
	DefaultAnswerBytes         = 1 << 20
	DefaultCompressionMinBytes = 1 << 10
	DefaultWriteTimeout        = 30 * time.Second
	DefaultRestTimeout         = 20 * time.Second
)

// WithDefaults returns c with every zero field set to its default.
func (c Config) WithDefaults() Config {
	c.PollTimeout = cmp.Or(c.PollTimeout, DefaultPollTimeout)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.MaxOutputDelay = cmp.Or(c.MaxOutputDelay, DefaultMaxOutputDelay)
	c.MultipleTime = cmp.Or(c.MultipleTime, DefaultMultipleTime)
	c.AnswerFrames = cmp.Or(c.AnswerFrames, DefaultAnswerFrames)
	c.AnswerBytes = cmp.Or(c.AnswerBytes, DefaultAnswerBytes)
	c.CompressionMinBytes = cmp.Or(c.CompressionMinBytes, DefaultCompressionMinBytes)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, DefaultWriteTimeout)
	c.RestTimeout = cmp.Or(c.RestTimeout, DefaultRestTimeout)
	return c
}
