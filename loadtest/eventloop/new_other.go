//go:build !linux

package eventloop

// New returns the loop that suits this system best.
func New(cfg Config) (Loop, error) { return NewPortable(cfg) }
