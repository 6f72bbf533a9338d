package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A way is how a subscriber asks.
type way struct {
	mode      pubsub.Mode
	stateless bool
}

var ways = []way{
	{pubsub.Batch, false}, {pubsub.Single, false}, {pubsub.Multiple, false}, {pubsub.Stream, false},
	{pubsub.Batch, true}, {pubsub.Single, true}, {pubsub.Multiple, true}, {pubsub.Stream, true},
}

func (w way) String() string {
	if w.stateless {
		return string(w.mode) + ", stateless"
	}
	return string(w.mode)
}

// subscriberForms is how many kinds of subscribers there are: every way by the Go
// client, and every way by hand.
const subscriberForms = 16

func formName(form int) string {
	by := "Go client"
	if form >= len(ways) {
		by = "by hand"
	}
	return fmt.Sprintf("%s, %v", by, ways[form%len(ways)])
}

// A member is what every subscriber has, however it asks. It is one goroutine's.
type member struct {
	*world
	who     string
	way     way
	rng     *rand.Rand
	own     int               // the publisher whose messages it does not want; noOwn for none
	leaving time.Time         // when it is to leave, unless all is calm by then
	trails  map[string]*trail // by topic: those that it is subscribed to
}

// A subscriber subscribes until ctx ends or it is its time to leave.
type subscriber interface {
	live(ctx context.Context)
}

// populate keeps so many subscribers there until all is calm: one that leaves is
// followed by another. Those who are there then stay until ctx ends. It returns
// when all have gone.
func (w *world) populate(ctx context.Context, subscribers int, stay time.Duration) {
	var all sync.WaitGroup
	for slot := range subscribers {
		all.Go(func() {
			rng := w.lot('s', slot)
			for n := 0; ctx.Err() == nil && (n == 0 || !w.isCalm()); n++ {
				w.one(ctx, slot, n, rng, stay)
			}
		})
	}
	all.Wait()
}

// one is the life of one subscriber.
func (w *world) one(ctx context.Context, slot, n int, rng *rand.Rand, stay time.Duration) {
	form := (slot + n) % subscriberForms
	w.staged.subscribers[form].Add(1)
	m := &member{
		world: w, way: ways[form%len(ways)], rng: rng, trails: map[string]*trail{}, own: noOwn,
		who:     fmt.Sprintf("subscriber %d.%d (%s)", slot, n, formName(form)),
		leaving: time.Now().Add(time.Duration((0.2 + rng.ExpFloat64()) * float64(stay))),
	}
	var s subscriber = &librarian{member: m}
	if form >= len(ways) {
		s = &handworker{member: m, anew: map[*trail]wire.Position{}}
		m.maybeDisown()
	}
	s.live(ctx)
	if ctx.Err() == nil {
		w.staged.left.Add(1)
		for _, t := range m.trails {
			t.leave()
		}
	}
}

// maybeDisown makes the subscriber, now and then, one that publishes, too, and does
// not want its own messages.
func (m *member) maybeDisown() {
	if m.features.echo && m.rng.IntN(3) == 0 {
		m.own = m.rng.IntN(m.publishers)
		m.staged.strangers.Add(1)
	}
}

// mayLeave reports whether it is time to go.
func (m *member) mayLeave() bool { return !m.isCalm() && time.Now().After(m.leaving) }

// drawPause draws for how long a reader stops reading: mostly shortly.
func (m *member) drawPause() time.Duration {
	if m.rng.IntN(4) == 0 {
		return time.Duration(1000+m.rng.IntN(9000)) * time.Millisecond
	}
	return time.Duration(20+m.rng.IntN(800)) * time.Millisecond
}

// pause stops reading for a while.
func (m *member) pause() {
	m.staged.pauses.Add(1)
	m.rest(m.drawPause())
}

// drop ends the trail of a topic that is removed.
func (m *member) drop(topic string) {
	if t := m.trails[topic]; t != nil {
		t.leave()
		delete(m.trails, topic)
	}
}
