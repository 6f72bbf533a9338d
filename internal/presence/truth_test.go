package presence

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
)

// Connections are cut and come back at random. Every second, what a watcher of each topic has been
// told, the list and then the changes, is who is there: all who are connected or have been within the
// grace, and nobody who has been away for two seconds longer. Twice, nearly all connections are cut
// at once, so the large topic, of which watchers get only counts, becomes small and large again.
//
// PRESENCE_SECONDS is how long 25 topics of 200 members and one of 5,000 are watched; see the target
// presence of the Makefile. Without it, they are fewer, and it is a minute.
func TestTheListIsTheTruthWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	topics, small, large, seconds := 3, 40, 700, 60
	if long, err := strconv.Atoi(os.Getenv("PRESENCE_SECONDS")); err == nil {
		topics, small, large, seconds = 25, 200, 5000, long
	}
	for seed := uint64(0); seed < 10; seed += uint64(exhaustive.Step(10)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			present(t, func(k *kit) {
				w := &world{kit: k, rand: rand.New(rand.NewPCG(seed, 3))}
				for i := range topics {
					w.settle(fmt.Sprintf("chat.t%d", i), small)
				}
				w.settle("chat.large", large)
				w.live(time.Duration(seconds) * time.Second)
				require.Positive(k, w.gaps, "no list was retracted")
				require.Positive(k, w.leaves)
				require.Positive(k, w.digests)
				k.entered.Store(w.opened)
			})
		})
	}
}

// A world has people who come and go, and watchers of their topics.
type world struct {
	*kit
	rand     *rand.Rand
	people   []*person
	watchers map[string]*watcher
	due      dueDevices // by the time of what they do next
	outage   bool       // nearly all connections are cut

	opened                int64 // sessions
	gaps, leaves, digests int   // that watchers have got
}

// A person is a member of one topic, by one device or two.
type person struct {
	key, topic string
	attached   int       // devices with a connection or a poll
	seen       time.Time // when one last had one, or opened its session; long ago at first
	came       time.Time // when one last got one
}

// A device has a session, or a connection without.
type device struct {
	world  *world
	of     *person
	at     int // index in world.due
	when   time.Time
	then   func()
	s      *session.Session // nil: none
	p      *session.Reader  // nil: no poll
	alone  bool             // its connections have sessions of their own
	parks  bool             // it polls on an outlet, which the wheel ends
	cut    time.Time        // when the connection is cut next
	counts bool             // in person.attached
}

// settle gives a topic people and a watcher.
func (w *world) settle(topic string, people int) {
	if w.watchers == nil {
		w.watchers = make(map[string]*watcher)
	}
	w.watchers[topic] = w.watch(topic)
	for i := range people {
		p := &person{key: fmt.Sprintf("u%d/", i), topic: topic}
		w.people = append(w.people, p)
		for range 1 + w.rand.IntN(5)/4 {
			d := &device{world: w, of: p, alone: w.rand.IntN(4) == 0, parks: w.rand.IntN(2) == 0}
			d.next(w.between(0, 5*time.Second), d.enter)
			heap.Push(&w.due, d)
		}
	}
}

func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rand.Int64N(int64((to-from)/time.Millisecond)))*time.Millisecond
}

// live lets time pass, with a sweep in each second, and compares.
func (w *world) live(during time.Duration) {
	w.Helper()
	begun := time.Now()
	phase := w.between(0, time.Second)
	for second := phase; second < during; second += time.Second {
		for time.Since(begun) < second {
			next := begun.Add(second)
			if first := w.due[0]; first.when.Before(next) {
				time.Sleep(time.Until(first.when))
				first.then()
				heap.Fix(&w.due, first.at)
				continue
			}
			time.Sleep(time.Until(next))
		}
		switch share := float64(second) / float64(during); {
		case !w.outage && (share > 0.3 && share < 0.5 || share > 0.7):
			w.cutNearlyAll()
		case share > 0.5 && share < 0.7:
			w.outage = false
		}
		w.registry.Sweep(time.Now())
		w.broker.Sweep(time.Now())
		w.compare(second)
	}
	for _, d := range w.due {
		d.leave()
	}
}

// cutNearlyAll begins an outage of 20 seconds.
func (w *world) cutNearlyAll() {
	w.outage = true
	for _, d := range w.due {
		if w.rand.IntN(20) > 0 {
			d.detach()
			d.next(w.between(20*time.Second, 23*time.Second), d.reenter)
		}
	}
	heap.Init(&w.due)
}

// compare compares what the watchers know with the truth.
func (w *world) compare(second time.Duration) {
	w.Helper()
	type bounds struct{ least, most int }
	counts := map[string]bounds{}
	for topic, watcher := range w.watchers {
		watcher.follow()
		for _, e := range watcher.events {
			switch e[:3] {
			case "gap":
				w.gaps++
			case "lea":
				w.leaves++
			case "cou":
				w.digests++
			}
		}
		counts[topic] = bounds{}
	}
	const grace = broker.DefaultPresenceGrace
	for _, p := range w.people {
		away := time.Since(p.seen)
		if p.attached > 0 {
			away = 0
		}
		must, may := away < grace, away <= grace+2*time.Second
		b := counts[p.topic]
		if may {
			b.most++
		}
		if must && time.Since(p.came) >= time.Second { // counts are told once in a second
			b.least++
		}
		counts[p.topic] = b
		if watcher := w.watchers[p.topic]; watcher.counts.Exact {
			_, there := watcher.members[p.key]
			require.False(w, must && !there, "%v: %s is on %s: it is %d times connected, and away for %v", second, p.key, p.topic, p.attached, away)
			require.False(w, !may && there, "%v: %s is not on %s: it has been away for %v", second, p.key, p.topic, away)
		}
	}
	for topic, b := range counts {
		if watcher := w.watchers[topic]; !watcher.counts.Exact {
			require.GreaterOrEqual(w, watcher.counts.Count, b.least, "%v: on %s", second, topic)
			require.LessOrEqual(w, watcher.counts.Count, b.most, "%v: on %s", second, topic)
		}
	}
}

func (d *device) next(after time.Duration, then func()) {
	d.when, d.then = time.Now().Add(after), then
}

// enter opens a session or a connection. One session in ten is polled late.
func (d *device) enter() {
	w := d.world
	opening := w.openingAs(d.of.key, d.of.topic)
	var err error
	if d.alone {
		d.s, _, err = w.registry.OpenEphemeral(opening, time.Now())
		require.NoError(w, err)
		d.attached()
		d.next(w.between(time.Second, time.Minute), d.part)
		return
	}
	d.s, _, err = w.registry.Open(context.Background(), opening, time.Now())
	require.NoError(w, err)
	w.opened++
	d.of.seen, d.of.came = time.Now(), time.Now()
	d.cut = time.Now().Add(w.between(time.Second, time.Minute))
	d.next(w.between(0, 300*time.Millisecond), d.poll)
	if w.rand.IntN(10) == 0 {
		d.next(w.between(5*time.Second, 20*time.Second), d.poll)
	}
}

// reenter polls again, or connects anew.
func (d *device) reenter() {
	if d.s == nil || d.alone {
		d.enter()
		return
	}
	d.cut = time.Now().Add(d.world.between(time.Second, time.Minute))
	d.poll()
}

// poll begins a poll. A session that has ended meanwhile is replaced.
func (d *device) poll() {
	w := d.world
	p := &session.Reader{}
	if p.Begin(d.s, 0, session.AcksNext, session.Arrival{}, time.Now()) != nil {
		d.enter()
		return
	}
	d.p = p
	d.attached()
	d.next(max(time.Millisecond, min(w.between(300*time.Millisecond, 25*time.Second), time.Until(d.cut))), d.answer)
	if d.parks {
		_, became, err := p.TakeOrPark(d, everything, time.Until(d.when), time.Now())
		require.NoError(w, err)
		require.Equal(w, session.Parked, became)
		d.next(time.Hour, d.answer) // HandOver comes first
	}
}

// answer ends a poll. The next one begins soon, unless the connection is cut.
func (d *device) answer() {
	d.detach()
	d.answered()
}

func (d *device) answered() {
	if time.Now().Before(d.cut) {
		d.next(d.world.between(0, 300*time.Millisecond), d.poll)
		return
	}
	d.part()
}

// part cuts the connection, or leaves. Half of those come back within the grace.
func (d *device) part() {
	w := d.world
	d.detach()
	if !d.alone && w.rand.IntN(5) == 0 {
		d.leave()
	}
	away := w.between(0, 5*time.Second)
	switch i := w.rand.IntN(10); {
	case i == 0:
		away = w.between(30*time.Second, 90*time.Second)
	case i < 5:
		away = w.between(4*time.Second, 30*time.Second)
	}
	d.next(away, d.reenter)
}

// detach ends the poll or the connection.
func (d *device) detach() {
	if d.p != nil {
		if over, _ := d.p.Unpark(); !over {
			d.p.Done(time.Now())
		}
	}
	if d.alone && d.s != nil {
		d.world.registry.End(d.s)
		d.s = nil
	}
	d.detached()
}

// leave ends the session.
func (d *device) leave() {
	d.detach()
	if d.s != nil {
		d.world.registry.End(d.s)
		d.s = nil
	}
}

func (d *device) attached() {
	d.counts = true
	d.of.attached++
	d.of.came = time.Now()
}

func (d *device) detached() {
	d.p = nil
	if d.counts {
		d.counts = false
		d.of.attached--
		d.of.seen = time.Now()
	}
}

// HandOver implements session.Outlet: the poll has timed out. The session has its lock.
func (d *device) HandOver([]*frame.Frame) session.State {
	d.detached()
	d.next(0, d.answered)
	heap.Fix(&d.world.due, d.at)
	return session.Over
}

func (*device) Encoding() session.Encoding { return session.Encoding{} }
func (*device) Wake()                      {}

// dueDevices is a heap.
type dueDevices []*device

func (h dueDevices) Len() int           { return len(h) }
func (h dueDevices) Less(i, j int) bool { return h[i].when.Before(h[j].when) }
func (h dueDevices) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }
func (h *dueDevices) Push(x any)        { x.(*device).at = len(*h); *h = append(*h, x.(*device)) }
func (h *dueDevices) Pop() any          { panic("BUG: a device stays") }
