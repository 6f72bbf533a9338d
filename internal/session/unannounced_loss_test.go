package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Messages expire, history and limits are far too small, and memory runs out. Answers are
// lost or cut, polls replace each other, and subscriptions change. Some topics are ephemeral,
// and some subscriptions have a rate. Still each frame that a client counts continues its
// topic, by a message or by a gap. Resent frames are equal.
func TestNothingIsLostUnannounced(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			story(t, broker.Config{HistoryMessages: 40, Rules: halfEphemeral("w", wildTopics)}, Config{Queue: 2, Unacked: 5}, func(k *kit) {
				var publishers, clients sync.WaitGroup
				done := make(chan struct{})
				for i := range uint64(3) {
					publishers.Go(func() { k.publishAtRandom(rand.New(rand.NewPCG(seed, i)), done) })
				}
				for i := range uint64(4) {
					clients.Go(func() { newTraveller(k, rand.New(rand.NewPCG(seed, 100+i))).travel(300) })
				}
				publishers.Go(func() { k.pressAtRandom(rand.New(rand.NewPCG(seed, 99)), done) })
				clients.Wait()
				close(done)
				publishers.Wait()
				k.broker.Close()
				require.Zero(k, k.broker.Memory().Of(memory.Local), "nobody with a rate is left")
			})
		})
	}
}

const wildTopics = 5

// halfEphemeral makes half of the n topics ephemeral whose names begin with prefix.
func halfEphemeral(prefix string, n int) (rules []broker.Rule) {
	for i := range n / 2 {
		name := fmt.Sprint(prefix, i)
		rules = append(rules, broker.Rule{Name: name, Pattern: name, Ephemeral: true})
	}
	return rules
}

func (k *kit) publishAtRandom(rng *rand.Rand, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rng.IntN(400)) * time.Microsecond):
		}
		ttl := time.Duration(0)
		if rng.IntN(10) == 0 {
			ttl = time.Millisecond
		}
		m := &wire.Message{Position: wire.Position{Topic: fmt.Sprint("w", rng.IntN(wildTopics))}, Data: []byte("1")}
		_, _ = k.broker.Publish(m, ttl, time.Now()) // it may be overloaded
	}
}

// A traveller is a client that checks every frame it counts.
type traveller struct {
	*kit
	rng   *rand.Rand
	s     *Session
	at    map[string]wire.Position // of each topic that it has
	count uint64                   // frames counted
	seen  map[uint64]wire.Position // frames that arrived and were not counted, by number
}

func newTraveller(k *kit, rng *rand.Rand) *traveller {
	s := k.open()
	return &traveller{kit: k, rng: rng, s: s, at: map[string]wire.Position{}, seen: map[uint64]wire.Position{}}
}

func (c *traveller) travel(polls int) {
	for range polls {
		if c.rng.IntN(5) == 0 {
			c.change()
		}
		var intruder sync.WaitGroup
		if c.rng.IntN(4) == 0 {
			wait := time.Duration(c.rng.IntN(1000)) * time.Microsecond
			intruder.Go(func() {
				time.Sleep(wait)
				p, err := c.s.Poll(c.count, false, time.Now())
				require.NoError(c, err)
				_, _ = p.Take(context.Background(), frame.Limit{Frames: 2, Bytes: 1 << 20}, wait)
				p.Done(time.Now())
			})
		}
		frames := c.take()
		intruder.Wait()
		c.arrive(frames)
	}
	c.consistent(c.s)
	c.registry.End(c.s)
}

// change adds a topic, from now or from the oldest, or drops one for good: its unacked
// frames are still resent.
func (c *traveller) change() {
	topic := fmt.Sprint("w", c.rng.IntN(wildTopics))
	if at, ok := c.at[topic]; ok {
		if c.rng.IntN(8) == 0 && at.Offset > 0 && c.s.subs.len() > 2 {
			_, err := c.s.Change(nil, []string{topic}, nil)
			require.NoError(c, err)
		}
		return
	}
	start := wire.Start{Topic: topic, From: wire.From(c.rng.IntN(2)), Every: time.Duration(max(0, c.rng.IntN(8)-5)) * time.Millisecond}
	positions, err := c.s.Change([]wire.Start{start}, nil, nil)
	require.NoError(c, err)
	c.at[topic] = positions[0]
}

// take polls once, with one or several calls of Take.
func (c *traveller) take() []*frame.Frame {
	p, err := c.s.Poll(c.count, false, time.Now())
	require.NoError(c, err)
	defer func() { p.Done(time.Now()) }()
	limit := frame.Limit{Frames: 1 + c.rng.IntN(10), Bytes: 600 + c.rng.IntN(5000)}
	var all []*frame.Frame
	for range 1 + c.rng.IntN(3) {
		frames, err := p.Take(context.Background(), limit, time.Duration(c.rng.IntN(1500))*time.Microsecond)
		all = append(all, frames...)
		if err != nil || len(frames) == 0 {
			break
		}
	}
	return all
}

// arrive counts some or all of an answer's frames. The rest is lost.
func (c *traveller) arrive(frames []*frame.Frame) {
	for i, f := range frames {
		number := c.count + uint64(i)
		if before, ok := c.seen[number]; ok {
			require.Equal(c, before, f.Position(), "frame %d came again as another", number)
		}
		c.seen[number] = f.Position()
	}
	if c.rng.IntN(3) == 0 {
		frames = frames[:c.rng.IntN(len(frames)+1)]
	}
	for _, f := range frames {
		p := f.Position()
		at, ok := c.at[p.Topic]
		require.True(c, ok, "a frame of a topic that was never asked for: %v", p)
		if g := f.Gap(); g != nil {
			require.Equal(c, at, g.After, "a gap begins elsewhere")
			require.Greater(c, p.Offset, at.Offset)
		} else {
			require.Equal(c, at.Offset+1, p.Offset, "topic %s", p.Topic)
		}
		c.at[p.Topic] = p
		delete(c.seen, c.count)
		c.count++
	}
}
