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

// WithDefaults returns c with every zero field set to its default.
func (c Config) WithDefaults() Config {
	c.PollTimeout = cmp.Or(c.PollTimeout, 25*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.MaxOutputDelay = cmp.Or(c.MaxOutputDelay, 200*time.Millisecond)
	c.MultipleTime = cmp.Or(c.MultipleTime, 5*time.Second)
	c.AnswerFrames = cmp.Or(c.AnswerFrames, 1000)
	c.AnswerBytes = cmp.Or(c.AnswerBytes, 1<<20)
	c.CompressionMinBytes = cmp.Or(c.CompressionMinBytes, 1<<10)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 30*time.Second)
	c.RestTimeout = cmp.Or(c.RestTimeout, 20*time.Second)
	return c
}
