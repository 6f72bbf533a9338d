package lane

import (
	"context"
	"sync"
	"time"
)

// A gone is the context of a connection's life: it is done when the client has
// left. A context.WithCancel for each connection would cost three times as much.
type gone struct {
	once sync.Once
	done chan struct{}
}

func (g *gone) left() { g.once.Do(func() { close(g.done) }) }

// Deadline implements context.Context.
func (g *gone) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (g *gone) Done() <-chan struct{} { return g.done }

// Err implements context.Context.
func (g *gone) Err() error {
	select {
	case <-g.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (g *gone) Value(any) any { return nil }
