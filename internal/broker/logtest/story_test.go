package logtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A world has brokers on one log, and the messages that were published to them.
type world struct {
	*testing.T
	seed       uint64
	config     broker.Config
	background sync.WaitGroup // goroutines of logs

	mishap func(*rand.Rand) // a fault that this log allows
	settle func()           // waits until all nodes have applied everything
	stop   func()

	calls chan struct{} // holds a token for each call; full while a node is replaced
	nodes []*node

	mu        sync.Mutex // guards the fields below
	losses    []uint64   // offsets up to which the log has lost entries
	published []message
	mishaps   int
}

// A node is one broker with its sessions.
type node struct {
	broker   *broker.Broker
	registry *session.Registry
}

// A message is a publish that was answered.
type message struct {
	wire.Position
	text  string
	begun time.Time // before it was first tried
}

// enter begins a call to a broker. The broker is not replaced before exit.
func (w *world) enter() { w.calls <- struct{}{} }

func (w *world) exit() { <-w.calls }

func (w *world) start(b *broker.Broker) *node {
	r := session.NewRegistry(session.Config{Queue: 2, Unacked: 5, InactivityTimeout: time.Hour}, b, metrics.New("test"))
	return &node{b, r}
}

// replace replaces the broker of a node.
func (w *world) replace(i int, next func(*broker.Broker) *broker.Broker) {
	for range cap(w.calls) { // with a mutex, fake time would not advance
		w.enter()
		defer w.exit()
	}
	w.nodes[i].broker.Close()
	w.nodes[i] = w.start(next(w.nodes[i].broker))
}

// onEveryLog runs a story on each of the logs.
func onEveryLog(t *testing.T, config broker.Config, story func(w *world)) {
	for name, build := range logs {
		for seed := range uint64(2 / exhaustive.Step(2)) {
			t.Run(fmt.Sprintf("%s %d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &world{T: t, seed: seed, config: config, settle: func() {}, stop: func() {}, calls: make(chan struct{}, 32)}
					build(w)
					story(w)
					w.stop()
					w.background.Wait()
					for _, n := range w.nodes {
						n.broker.Close()
						w.checkAccounts(n.broker)
					}
				})
			})
		}
	}
}

// checkAccounts compares the counters of a broker with its topics.
func (w *world) checkAccounts(b *broker.Broker) {
	w.Helper()
	bytes := 0
	list := b.Topics(broker.NewListing([]string{">", "_>"}, func(string) bool { return true }), "", 1_000_000).Topics
	for _, state := range list {
		bytes += state.Bytes
		require.LessOrEqual(w, state.Oldest.Offset, state.Position.Offset)
		require.Zero(w, state.Subscriptions, "all clients have left")
	}
	var g metrics.Gauges
	b.Gauges(&g)
	require.Equal(w, len(list), g.Topics)
	require.EqualValues(w, bytes, g.Memory["history"])
	require.Zero(w, g.Subscriptions)
	require.Zero(w, g.Memory["queues"])
}

const topics = 40

func anyTopic(rng *rand.Rand) string { return fmt.Sprint("t.", rng.IntN(topics)) }

func (w *world) anyNode(rng *rand.Rand) *node { return w.nodes[rng.IntN(len(w.nodes))] }

// Publishers publish, topics are deleted and forgotten, settings are reloaded, nodes are
// replaced, and the log has faults. Meanwhile clients poll, lose answers, leave, and
// resume from their positions on any node. Every subscriber gets the messages of each topic
// once, in order, or a gap. A key publishes once.
func TestEveryLogKeepsThePromises(t *testing.T) {
	config := broker.Config{HistoryMessages: 20, HistoryAge: 8 * time.Millisecond}
	onEveryLog(t, config, func(w *world) {
		var others, clients sync.WaitGroup
		done := make(chan struct{})
		for i := range uint64(4) {
			others.Go(func() { w.publishUntil(done, fmt.Sprint("p", i), rand.New(rand.NewPCG(w.seed, i))) })
		}
		others.Go(func() { w.upsetUntil(done, rand.New(rand.NewPCG(w.seed, 50))) })
		for i := range uint64(6) {
			rng := rand.New(rand.NewPCG(w.seed, 100+i))
			starts := []wire.Start{{Topic: "t.*"}}
			if i%2 == 0 {
				starts = nil
				for n := range topics / 2 {
					starts = append(starts, wire.Start{Topic: fmt.Sprint("t.", 2*n)})
				}
			}
			clients.Go(func() { w.newClient(rng, starts).live() })
		}
		clients.Wait()
		close(done)
		others.Wait()
		w.settle()
		require.Positive(w, w.mishaps)
	})
}

// every calls do again and again, after random pauses, until done is closed.
func every(d time.Duration, done <-chan struct{}, rng *rand.Rand, do func()) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rng.Int64N(int64(2 * d)))):
			do()
		}
	}
}

// publishUntil publishes messages until done is closed. Half of them have a key, and are
// retried until there is a result.
func (w *world) publishUntil(done <-chan struct{}, name string, rng *rand.Rand) {
	n := 0
	every(400*time.Microsecond, done, rng, func() {
		n++
		m := message{wire.Position{Topic: anyTopic(rng)}, fmt.Sprint(name, ".", n), time.Now()}
		if rng.IntN(2) == 0 {
			_ = w.publish(rng, m, "")
			return
		}
		for times := 1 + rng.IntN(10)/9; times > 0; { // sometimes the client loses the answer
			if w.publish(rng, m, m.text) == nil {
				times--
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
}

func (w *world) publish(rng *rand.Rand, m message, key string) error {
	w.enter()
	defer w.exit()
	b := w.anyNode(rng).broker
	wm := &wire.Message{Position: m.Position, ID: key, Data: fmt.Appendf(nil, "%q", m.text)}
	var published wire.Published
	var err error
	if key == "" {
		published, err = b.Publish(wm, 0, time.Now())
	} else {
		published, err = publishOnce(b, wm)
	}
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		m.Position = published.Position
		w.published = append(w.published, m)
	}
	return err
}

// publishOnce publishes a message with a key, after other publishes with that key.
func publishOnce(b *broker.Broker, m *wire.Message) (wire.Published, error) {
	for {
		c, r, underWay := b.Claim("", m, 0, time.Now())
		switch {
		case underWay != nil:
			<-underWay
			continue
		case c.IsHeld():
			done := make(chan broker.Result, 1)
			var over bool
			if r, over = b.Send(broker.Route{}, c, m, 0, time.Now(), func(r broker.Result) { done <- r }); !over {
				r = <-done
			}
		}
		return r.Published, r.Err
	}
}

// upsetUntil causes faults, deletions, reloads and sweeps until done is closed.
func (w *world) upsetUntil(done <-chan struct{}, rng *rand.Rand) {
	every(time.Millisecond, done, rng, func() {
		if rng.IntN(4) == 0 {
			w.mishap(rng)
			w.mishaps++
		}
		w.enter()
		defer w.exit()
		b := w.anyNode(rng).broker
		switch rng.IntN(5) {
		case 0:
			_, _ = b.Delete(anyTopic(rng), time.Now())
		case 1:
			config := w.config
			config.HistoryMessages = 2 + rng.IntN(30)
			b.Reload(config, time.Now())
		default:
			b.Sweep(time.Now())
		}
	})
}

// answered returns the messages whose publish was answered.
func (w *world) answered() []message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.published)
}

// A client subscribes to topics, or to a pattern.
type client struct {
	*world
	rng    *rand.Rand
	starts []wire.Start // topics, or one pattern

	node  *node
	s     *session.Session
	begun time.Time                // messages that were published before may be missing without a gap
	count uint64                   // frames counted
	at    map[string]wire.Position // of its topics, of its pattern, and of the topics of that
	got   map[wire.Position]string // messages
	gaps  map[string][]wire.Gap    // by topic
}

func (w *world) newClient(rng *rand.Rand, starts []wire.Start) *client {
	c := &client{world: w, rng: rng, starts: starts, got: make(map[wire.Position]string), gaps: make(map[string][]wire.Gap)}
	w.enter()
	defer w.exit()
	c.begin()
	return c
}

// begin opens a session without any position.
func (c *client) begin() {
	c.at = make(map[string]wire.Position)
	c.open(c.starts)
	c.begun = time.Now()
}

func (c *client) hasPattern() bool { return wire.IsPattern(c.starts[0].Topic) }

func (c *client) open(starts []wire.Start) {
	c.node, c.count = c.anyNode(c.rng), 0
	s, positions, err := c.node.registry.Open(context.Background(), session.Opening{Topics: starts, Ack: true}, time.Now())
	require.NoError(c, err)
	c.s = s
	for i, p := range positions {
		_, met := c.at[p.Topic]
		switch {
		case met && i < len(starts) && p.Offset == 0 && c.hasPattern() && !wire.IsPattern(p.Topic):
			delete(c.at, p.Topic) // it was forgotten; the pattern gets a gap
		case !met || wire.IsPattern(p.Topic):
			c.at[p.Topic] = p
		}
	}
}

// live polls, leaves, resumes, and in the end checks that it got all messages.
func (c *client) live() {
	for range 150 {
		c.poll()
		if c.rng.IntN(20) == 0 {
			c.leave()
			time.Sleep(time.Duration(c.rng.IntN(20)) * time.Millisecond)
			c.comeBack()
		}
	}
	answered := c.answered()
	c.settle()
	time.Sleep(10 * time.Millisecond) // fake time: it passes once all fan-outs have ended
	for c.poll() > 0 {
	}
	c.judge(answered)
	c.leave()
}

func (c *client) leave() {
	c.enter()
	defer c.exit()
	c.node.registry.End(c.s)
}

// comeBack resumes on any node, after all nodes have applied all messages. Patterns can
// resume only on the same broker: each broker counts forgotten topics on its own.
func (c *client) comeBack() {
	c.settle()
	c.enter()
	defer c.exit()
	if c.hasPattern() && len(c.nodes) > 1 {
		c.begin()
		return
	}
	var starts []wire.Start
	for _, at := range c.at {
		starts = append(starts, wire.StartAfter(at))
	}
	c.open(starts)
}

// poll polls once, takes some or all of the frames, and returns their number.
func (c *client) poll() int {
	c.enter()
	if !slices.Contains(c.nodes, c.node) { // it was replaced, which ended the session
		c.exit()
		c.comeBack()
		return 1
	}
	defer c.exit()
	var p session.Reader
	require.NoError(c, p.Begin(c.s, c.count, session.AcksNext, session.Arrival{}, time.Now()))
	defer func() { p.Done(time.Now()) }()
	limit := frame.Limit{Frames: 1 + c.rng.IntN(10), Bytes: 1 << 20}
	frames, err := p.Take(context.Background(), limit, time.Duration(c.rng.IntN(3000))*time.Microsecond)
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

func (c *client) take(f *frame.Frame) {
	at, g := f.Position(), f.Gap()
	had, met := c.at[at.Topic]
	c.at[at.Topic] = at
	switch {
	case g == nil:
		require.True(c, !met || c.follows(had, at) && had != at, "%v after %v", at, had)
		require.NotContains(c, c.got, at)
		c.got[at] = string(f.Message().Data)
	case wire.IsPattern(at.Topic):
		c.begun = time.Now()
	default:
		require.True(c, !met || had == g.After || c.hasPattern() && c.follows(had, g.After), "the gap %+v begins elsewhere than %v", g, had)
		require.True(c, g.Reason == wire.GapRestarted || g.After.Epoch == at.Epoch, "%+v", g)
		c.gaps[at.Topic] = append(c.gaps[at.Topic], *g)
	}
}

// follows reports whether a frame at a position may follow another. A topic that only a
// pattern matches may have been forgotten, and created again with higher offsets or in a
// newer epoch.
func (c *client) follows(had, at wire.Position) bool {
	return had.Epoch == at.Epoch && had.Offset <= at.Offset || c.hasPattern() && had.Epoch < at.Epoch
}

// judge compares the messages of the client with the published ones.
func (c *client) judge(answered []message) {
	perText := make(map[string]wire.Position)
	for at, text := range c.got {
		text += c.eraOf(at)
		other, twice := perText[text]
		require.False(c, twice, "%s was published twice: %v %v", text, at, other)
		perText[text] = at
	}
	for _, m := range answered {
		text, got := c.got[m.Position]
		inGap := c.isInGap(m.Position)
		require.False(c, got && inGap && !c.isInLoss(m.Position), "%v came, and is in a gap: %v", m.Position, c.gaps[m.Topic])
		if got {
			require.Equal(c, fmt.Sprintf("%q", m.text), text)
		}
		asked := c.hasPattern() || slices.ContainsFunc(c.starts, func(s wire.Start) bool { return s.Topic == m.Topic })
		if asked && !got && !inGap && m.begun.After(c.begun) {
			require.True(c, c.isRestarted(m.Position), "%v is lost, and no gap says so: at %v, after %+v", m.Position, c.at[m.Topic], c.gaps[m.Topic])
		}
	}
}

// isInGap reports whether a gap within an epoch covers a position.
func (c *client) isInGap(at wire.Position) bool {
	return slices.ContainsFunc(c.gaps[at.Topic], func(g wire.Gap) bool {
		return g.After.Epoch == at.Epoch && g.Position.Epoch == at.Epoch && g.After.Offset < at.Offset && at.Offset <= g.Position.Offset
	})
}

// isInLoss reports whether a pattern's gap, lost, covers a position. A log that has lost the
// forgetting of a topic has the topic again, and the client has dropped its position.
func (c *client) isInLoss(at wire.Position) bool {
	return c.hasPattern() && slices.ContainsFunc(c.gaps[at.Topic], func(g wire.Gap) bool {
		return g.Reason == wire.GapLost && g.After.Offset < at.Offset && at.Offset <= g.Position.Offset
	})
}

// lose notes that the log has lost entries.
func (w *world) lose(upTo uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses = append(w.losses, upTo)
}

// eraOf names the epoch of a position and the losses before it. A retry publishes again what
// the log has lost.
func (w *world) eraOf(at wire.Position) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.losses) && w.losses[n] < at.Offset {
		n++
	}
	return fmt.Sprint(at.Epoch, ".", n)
}

// isRestarted reports whether a gap between epochs covers a position, or its epoch passed
// without a frame.
func (c *client) isRestarted(at wire.Position) bool {
	passed := c.at[at.Topic].Epoch != at.Epoch
	for _, g := range c.gaps[at.Topic] {
		switch {
		case g.After.Epoch == g.Position.Epoch:
		case g.After.Epoch == at.Epoch && g.After.Offset < at.Offset, g.Position.Epoch == at.Epoch && at.Offset <= g.Position.Offset:
			return true
		case g.After.Epoch == at.Epoch, g.Position.Epoch == at.Epoch:
			passed = false
		}
	}
	return passed && len(c.gaps[at.Topic]) > 0
}
