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
	transport pubsub.Transport // empty: polls
	format    pubsub.Format    // empty: JSON
}

// ways are those of polls, and then those that the Go client alone has here.
var ways = []way{
	{mode: pubsub.Batch}, {mode: pubsub.Single}, {mode: pubsub.Multiple}, {mode: pubsub.Stream},
	{mode: pubsub.Batch, stateless: true}, {mode: pubsub.Single, stateless: true},
	{mode: pubsub.Multiple, stateless: true}, {mode: pubsub.Stream, stateless: true},
	{transport: pubsub.SSE}, {transport: pubsub.WebSocket},
	{transport: pubsub.WebSocket, format: pubsub.CBOR}, {mode: pubsub.Batch, format: pubsub.CBOR},
	{transport: pubsub.TCP},
}

func (w way) String() string {
	name := string(w.transport)
	if name == "" {
		name = string(w.mode)
	}
	if w.stateless {
		name += ", stateless"
	}
	if w.format == pubsub.CBOR {
		name += ", CBOR"
	}
	return name
}

// options are those of the Go client.
func (w way) options() (all []pubsub.SubscribeOption) {
	if w.transport != "" {
		all = append(all, pubsub.WithTransport(w.transport))
	}
	if w.mode != "" {
		all = append(all, pubsub.WithMode(w.mode))
	}
	if w.format != "" {
		all = append(all, pubsub.WithFormat(w.format))
	}
	if w.stateless {
		all = append(all, pubsub.Stateless())
	}
	return all
}

// subscriberForms is how many kinds of subscribers there are: every way by the Go
// client, and those of polls by hand.
const subscriberForms = 21

// formOf returns the way of a form, and whether it is done by hand.
func formOf(form int) (w way, byHand bool) {
	if form < len(ways) {
		return ways[form], false
	}
	return ways[form-len(ways)], true
}

func formName(form int) string {
	w, byHand := formOf(form)
	if byHand {
		return fmt.Sprintf("by hand, %v", w)
	}
	return fmt.Sprintf("Go client, %v", w)
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
	how, byHand := formOf(form)
	m := &member{
		world: w, way: how, rng: rng, trails: map[string]*trail{}, own: noOwn,
		who:     fmt.Sprintf("subscriber %d.%d (%s)", slot, n, formName(form)),
		leaving: time.Now().Add(time.Duration((0.2 + rng.ExpFloat64()) * float64(stay))),
	}
	var s subscriber = &librarian{member: m}
	if byHand {
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
