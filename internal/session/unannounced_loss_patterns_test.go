package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Topics are created, emptied and forgotten while clients of a pattern poll, lose answers,
// leave, and resume from their positions. A client gets every message once, or a gap of the
// topic, or a gap of the pattern if the topic was forgotten. Half of the topics are ephemeral.
// In every other story many follow the pattern, so that clients join topics in another goroutine.
func TestPatternsLoseNothingUnannounced(t *testing.T) {
	roam(t, 0, func(w *world) {
		require.Positive(w, w.gaps, "nothing was lost with its topic: what is this story about?")
	})
}

// The same, while more topics match than fit, and the room for them changes. A client gets every
// message of a topic, or a gap; if the topic, or some topic of the pattern, is left out, up to the
// next frame of the topic.
func TestPatternsLeaveOutNothingUnannounced(t *testing.T) {
	roam(t, room(rareTopics/3, "p.1"), func(w *world) {
		require.Positive(w, w.left, "everything fits: what is this story about?")
		require.Positive(w, w.again, "nothing fits again: what is this story about?")
	})
}

// roam has clients of a pattern roam the world. patternBytes is 0, or a budget that a reload
// doubles and halves at any time.
func roam(t *testing.T, patternBytes int, check func(w *world)) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			sc := Config{Queue: 2, Unacked: 5, InactivityTimeout: time.Hour, PatternBytes: patternBytes}
			bc := broker.Config{HistoryMessages: 10, HistoryAge: 5 * time.Millisecond, Rules: halfEphemeral("p.", rareTopics)}
			story(t, bc, sc, func(k *kit) {
				w := &world{kit: k, cfg: sc}
				if seed%2 == 1 {
					w.bystanders = make([]bystander, 9)
				}
				for i := range w.bystanders {
					require.NoError(k, k.broker.Follow("p.*", &w.bystanders[i]))
				}
				var others, clients sync.WaitGroup
				done := make(chan struct{})
				for i := range uint64(3) {
					others.Go(func() { w.publish(rand.New(rand.NewPCG(seed, i)), done) })
				}
				others.Go(func() { w.upset(rand.New(rand.NewPCG(seed, 50)), done) })
				for i := range uint64(4) {
					clients.Go(func() { w.wander(rand.New(rand.NewPCG(seed, 100+i))) })
				}
				clients.Wait()
				close(done)
				others.Wait()
				for i := range w.bystanders {
					k.broker.Unfollow("p.*", &w.bystanders[i])
				}
				var g metrics.Gauges
				k.broker.Gauges(&g)
				k.broker.Close()
				check(w)
				require.Zero(k, g.Memory["queues"], "nobody is left")
				require.Zero(k, k.broker.Memory().Of(memory.Local))
				require.Zero(k, g.Subscriptions)
				require.Empty(k, k.broker.Followers("p.1"))
			})
		})
	}
}

// rareTopics is large enough that topics are often idle until they are forgotten.
const rareTopics = 60

// A world records what was published, by topic.
type world struct {
	*kit
	mu   sync.Mutex
	had  map[string][]wire.Published // in order
	gaps int                         // of patterns
	cfg  Config                      // of the registry

	left, again int // gaps, unfollowed: of topics that are left out, and that fit again

	bystanders []bystander // immutable
}

// A bystander follows a pattern, and delays those who follow it later.
type bystander struct{ _ byte }

func (*bystander) Made(string) { time.Sleep(joinTime / 10) }

// joinTime is within what clients need to join a new topic.
const joinTime = time.Millisecond

func (w *world) publish(rng *rand.Rand, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rng.IntN(1500)) * time.Microsecond):
		}
		topic := fmt.Sprint("p.", rng.IntN(rareTopics))
		w.mu.Lock() // so that the order is known
		p, err := w.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
		if err == nil {
			if w.had == nil {
				w.had = map[string][]wire.Published{}
			}
			w.had[topic] = append(w.had[topic], p)
		}
		w.mu.Unlock()
	}
}

// upset empties topics and forgets them.
func (w *world) upset(rng *rand.Rand, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond):
		}
		w.broker.Sweep(time.Now())
		if w.cfg.PatternBytes > 0 {
			cfg := w.cfg
			cfg.PatternBytes <<= rng.IntN(2)
			w.registry.Reload(cfg)
			w.registry.sessions.each(func(s *Session) { s.followMore(w.registry.newSearch(), time.Now()) })
		}
		if rng.IntN(8) == 0 {
			w.broker.Sweep(time.Now().Add(time.Minute)) // so long ephemeral topics live
		}
		if rng.IntN(4) == 0 {
			_, _ = w.broker.Delete(fmt.Sprint("p.", rng.IntN(rareTopics)), time.Now())
		}
	}
}

// published returns the number of messages of each topic.
func (w *world) published() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for topic, had := range w.had {
		n[topic] = len(had)
	}
	return n
}

// A wanderer is a client of the pattern.
type wanderer struct {
	*world
	rng   *rand.Rand
	s     *Session
	count uint64
	begun map[string]int            // number of messages of each topic that are not expected
	at    map[string]wire.Position  // of the pattern, and of topics that it met
	got   map[string]map[uint64]int // offsets of messages, by topic
	gaps  map[string][]wire.Gap
	over  map[string]int // number of messages of each topic at the pattern's last gap

	newest map[string]uint64   // offset of the newest frame of each topic
	out    map[string]uint64   // topics that may be left out after such an offset
	outs   map[string][]offset // where they were
}

// offset is a range of offsets: from is not in it, to is.
type offset struct{ from, to uint64 }

// leftOut notes a gap, unfollowed, of a topic that may be left out, or of the pattern.
func (c *wanderer) leftOut(topic string) {
	c.mu.Lock()
	c.left++
	c.mu.Unlock()
	for i := range rareTopics {
		if each := fmt.Sprint("p.", i); topic == "p.*" || topic == each {
			if _, already := c.out[each]; !already {
				c.out[each] = c.newest[each]
			}
		}
	}
}

// isFollowed notes a frame of a topic, which is followed from there.
func (c *wanderer) isFollowed(at wire.Position) {
	if from, out := c.out[at.Topic]; out {
		c.outs[at.Topic] = append(c.outs[at.Topic], offset{from, at.Offset})
		delete(c.out, at.Topic)
	}
	c.newest[at.Topic] = max(c.newest[at.Topic], at.Offset)
}

func (w *world) wander(rng *rand.Rand) {
	c := &wanderer{world: w, rng: rng, at: map[string]wire.Position{}, got: map[string]map[uint64]int{}, gaps: map[string][]wire.Gap{},
		newest: map[string]uint64{}, out: map[string]uint64{}, outs: map[string][]offset{}}
	w.mu.Lock() // earlier messages are not expected
	c.begun = map[string]int{}
	for topic, had := range w.had {
		c.begun[topic] = len(had)
	}
	c.open(w.starts("p.*"))
	w.mu.Unlock()
	for range 150 {
		c.poll()
		if rng.IntN(15) == 0 {
			w.registry.End(c.s)
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			c.reopen()
		}
	}
	seen := w.published()
	time.Sleep(joinTime)
	for range 1000 { // reads everything published until now
		if c.poll() == 0 {
			break
		}
	}
	c.judge(seen)
	w.registry.End(c.s)
}

// reopen resumes. Messages of ephemeral topics that it does not name are not expected.
func (c *wanderer) reopen() {
	starts := c.resume()
	c.open(starts)
	for topic, n := range c.published() {
		isNamed := slices.ContainsFunc(starts, func(s wire.Start) bool { return s.Topic == topic })
		if c.broker.IsEphemeral(topic) && !isNamed {
			c.begun[topic] = n
		}
	}
}

func (c *wanderer) resume() []wire.Start {
	starts := []wire.Start{wire.StartAfter(c.at["p.*"])}
	for topic, at := range c.at {
		if topic != "p.*" {
			starts = append(starts, wire.StartAfter(at))
		}
	}
	return starts
}

func (c *wanderer) open(starts []wire.Start) {
	s, positions, err := c.registry.Open(context.Background(), Opening{Topics: starts, Ack: true}, time.Now())
	require.NoError(c, err)
	c.s, c.count = s, 0
	for i, p := range positions {
		_, met := c.at[p.Topic]
		switch {
		case i < len(starts) && met && p.Offset == 0 && p.Topic != "p.*":
			delete(c.at, p.Topic) // the topic was forgotten
		case p.Topic == "p.*" || !met:
			c.at[p.Topic] = p
		}
	}
}

// poll polls once and counts some or all of the frames.
func (c *wanderer) poll() int {
	p, err := c.s.Poll(c.count, false, time.Now())
	require.NoError(c, err)
	defer func() { p.Done(time.Now()) }()
	limit := frame.Limit{Frames: 1 + c.rng.IntN(10), Bytes: 1 << 20}
	frames, err := p.Take(context.Background(), limit, time.Duration(c.rng.IntN(4000))*time.Microsecond)
	require.NoError(c, err)
	came := len(frames)
	if c.rng.IntN(3) == 0 {
		frames = frames[:c.rng.IntN(came+1)]
	}
	for _, f := range frames {
		c.take(f)
		c.count++
	}
	return came
}

func (c *wanderer) take(f *frame.Frame) {
	at := f.Position()
	had, met := c.at[at.Topic]
	g := f.Gap()
	unfollowed := g != nil && g.Reason == wire.GapUnfollowed
	switch {
	case unfollowed:
		require.GreaterOrEqual(c, at.Offset, had.Offset, "%s", at.Topic)
		if g.After == at { // nothing of it comes: a client that did not meet it does not need the position
			if met {
				c.at[at.Topic] = at
			}
			c.leftOut(at.Topic)
			return
		}
		c.mu.Lock()
		c.again++
		c.mu.Unlock()
		g = &wire.Gap{After: g.After, Position: at}
		if g.After.Offset < c.newest[at.Topic] { // the server does not know what the client has
			g.After.Offset = c.newest[at.Topic]
		}
	case met:
		require.Greater(c, at.Offset, had.Offset, "%s", at.Topic)
	}
	c.at[at.Topic] = at
	c.isFollowed(at)
	switch {
	case g == nil:
		if c.got[at.Topic] == nil {
			c.got[at.Topic] = map[uint64]int{}
		}
		c.got[at.Topic][at.Offset]++
	case at.Topic == "p.*":
		c.over = c.published()
		c.mu.Lock()
		c.world.gaps++
		c.mu.Unlock()
	default:
		if met && !unfollowed { // if the topic began again meanwhile, its offsets are higher
			require.GreaterOrEqual(c, g.After.Offset, had.Offset)
		}
		c.gaps[at.Topic] = append(c.gaps[at.Topic], *g)
	}
}

// judge compares what came with what was published from begun to seen.
func (c *wanderer) judge(seen map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, n := range seen {
		for i, p := range c.had[topic][:n] {
			at := p.Position.Offset
			got := c.got[topic][at]
			require.LessOrEqual(c, got, 1, "%s came twice", p.Position)
			inGap := c.inGap(topic, at)
			require.False(c, got == 1 && inGap, "%s came, and is in a gap: %v", p.Position, c.gaps[topic])
			if i >= c.begun[topic] && got == 0 && !inGap && !c.wasOut(topic, at) {
				require.Less(c, i, c.over[topic], "%s is lost, and no gap says so", p.Position)
			}
		}
	}
}

func (c *wanderer) inGap(topic string, at uint64) bool {
	for _, g := range c.gaps[topic] {
		if g.After.Offset < at && at <= g.Position.Offset {
			return true
		}
	}
	return false
}

// wasOut reports whether the topic may have been left out at that offset.
func (c *wanderer) wasOut(topic string, at uint64) bool {
	if from, out := c.out[topic]; out && at > from {
		return true
	}
	return slices.ContainsFunc(c.outs[topic], func(o offset) bool { return o.from < at && at <= o.to })
}
