package throttle

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A ledger accounts for the messages that a user published and is sent. It may be
// used concurrently.
type ledger struct {
	topic string        // immutable
	more  chan struct{} // has an element when something came; never closed

	mu        sync.Mutex // guards the fields below
	taken     int        // messages 1 to this were
	had       map[int]bool
	newest    int
	last      wire.Position // from where a session goes on; zero before the first was opened
	delivered Delivered
}

// Delivered is what became of the messages that were taken.
type Delivered struct {
	Delivered  int64 `json:"delivered"` // different messages
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	Disordered int64 `json:"disordered"`
	Gaps       int64 `json:"gaps"`
	Surplus    int64 `json:"surplus"` // that no publish was told to have been taken
}

// accidents is how much happened that must not.
func (d *Delivered) accidents() int64 {
	return d.Lost + d.Duplicates + d.Disordered + d.Gaps + d.Surplus
}

func (d *Delivered) add(other Delivered) {
	d.Delivered += other.Delivered
	d.Lost += other.Lost
	d.Duplicates += other.Duplicates
	d.Disordered += other.Disordered
	d.Gaps += other.Gaps
	d.Surplus += other.Surplus
}

func newLedger(topic string) *ledger {
	return &ledger{topic: topic, more: make(chan struct{}, 1), had: map[int]bool{}}
}

// took notes that the server took the next message.
func (l *ledger) took() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken++
}

// message notes one that was sent.
func (l *ledger) message(m *wire.Message) error {
	var c content
	if err := json.Unmarshal(m.Data, &c); err != nil || m.Position.Topic != l.topic {
		return fmt.Errorf("the message at %v is none that the user published", m.Position)
	}
	defer l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = m.Position
	switch {
	case l.had[c.Number]:
		l.delivered.Duplicates++
		return nil
	case c.Number < l.newest:
		l.delivered.Disordered++
	}
	l.had[c.Number] = true
	l.newest = max(l.newest, c.Number)
	return nil
}

// gap notes one that was announced.
func (l *ledger) gap(g *wire.Gap) {
	defer l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = g.Position
	l.delivered.Gaps++
}

func (l *ledger) tell() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// start is from where a session goes on.
func (l *ledger) start() wire.Start {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.Topic == "" {
		return wire.Start{Topic: l.topic}
	}
	return wire.StartAfter(l.last)
}

// opened notes from where the first session goes on.
func (l *ledger) opened(at wire.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.Topic == "" {
		l.last = at
	}
}

// complete reports whether all that was taken came.
func (l *ledger) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.had) >= l.taken
}

// await waits until all that was taken came, for as long as it may take.
func (l *ledger) await(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !l.complete() {
		select {
		case <-l.more:
		case <-ctx.Done():
			return
		}
	}
}

// close says what became of all.
func (l *ledger) close() Delivered {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.delivered
	d.Delivered = int64(len(l.had))
	for n := 1; n <= l.taken; n++ {
		if !l.had[n] {
			d.Lost++
		}
	}
	for n := range l.had {
		if n < 1 || n > l.taken {
			d.Surplus++
		}
	}
	return d
}
