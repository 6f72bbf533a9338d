package session

import "sync/atomic"

// reading is a lock that can be waited for together with other events. The zero value is free.
//
// Hardly any poll waits for it, so there is a channel only once one has: in each session, it
// would take 96 bytes.
type reading struct {
	held atomic.Bool
	free atomic.Pointer[chan struct{}] // has a token after release; nil: nobody has waited
}

// tryTake takes the lock, unless it is held.
func (r *reading) tryTake() bool { return r.held.CompareAndSwap(false, true) }

// released returns a channel that has a token once the lock is free. Call it before tryTake, so
// that no release is missed. After a token, tryTake may fail again.
func (r *reading) released() <-chan struct{} {
	if r.free.Load() == nil {
		c := make(chan struct{}, 1)
		r.free.CompareAndSwap(nil, &c)
	}
	return *r.free.Load()
}

// release lets one of those that wait try to take the lock.
func (r *reading) release() {
	r.held.Store(false)
	if c := r.free.Load(); c != nil {
		select {
		case *c <- struct{}{}:
		default:
		}
	}
}
