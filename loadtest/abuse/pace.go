package main

import (
	"context"
	"time"
)

// A pace lets so many operations a second begin, whoever does them. Who is late
// does not catch up by more than a moment's worth: an attack that the server
// slows down is to be seen as one that did not reach its pace.
type pace struct{ tickets chan struct{} } // never closed

const (
	tick   = 2 * time.Millisecond
	moment = 20 // of a second
)

func newPace(perSecond int) *pace {
	return &pace{make(chan struct{}, max(perSecond/moment, 1))}
}

// run hands out tickets until ctx is done.
func (p *pace) run(ctx context.Context, perSecond int) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	begun := time.Now()
	handed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			due := int(now.Sub(begun).Seconds() * float64(perSecond))
			p.hand(due - handed)
			handed = due
		}
	}
}

// hand puts n tickets out; those that nobody has taken in time are void.
func (p *pace) hand(n int) {
	for range n {
		select {
		case p.tickets <- struct{}{}:
		default:
			return
		}
	}
}

// next waits for a ticket, and reports whether there is one: none once ctx is done.
func (p *pace) next(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-p.tickets:
		return ctx.Err() == nil
	}
}
