//go:build !linux

package lane

// leavers is not needed where the lane is not supported.
type leavers struct{}

func newLeavers() *leavers { return &leavers{} }

func (*leavers) join(*conn) error { return nil }
func (*leavers) leave(*conn)      {}
func (*leavers) close()           {}
