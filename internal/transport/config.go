package transport

import (
	"cmp"
	"time"
)

// Config sets how long answers wait and how much they hold. A zero field means its
// default.
type Config struct {
	// PollTimeout is how long a poll waits before its answer is empty. Default 25 s, since
	// many proxies time out after 30 s.
	PollTimeout time.Duration

	// Heartbeat is how often an idle stream sends an empty line. Default 15 s.
	Heartbeat time.Duration

	// MaxOutputDelay is how long an idle "multiple" answer stays open.
	// Default 200 ms, as in Silverlight 4.
	MaxOutputDelay time.Duration

	// MultipleTime is how long a "multiple" answer may last. Default 5 s.
	MultipleTime time.Duration

	// AnswerFrames and AnswerBytes bound an answer that is not a stream. The bytes are
	// approximate, and one frame is always allowed. Defaults 1000, 1 MiB.
	AnswerFrames int
	AnswerBytes  int

	// CompressionMinBytes is the size of the smallest message that is compressed, for
	// clients that accept it; see frame.Frame.Deflated. Default 1 KiB; negative: no message is compressed.
	CompressionMinBytes int

	// WriteTimeout is how long one write may take before the connection is closed.
	// Default 30 s.
	WriteTimeout time.Duration

	// RestTimeout is how long a client may take to send the rest of a request's body or of
	// a command. Default 20 s, less than WriteTimeout, so that the client gets the problem.
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

func (c Config) withDefaults() Config {
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
