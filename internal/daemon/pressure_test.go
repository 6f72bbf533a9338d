package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Clients subscribe to thousands of topics of 64 KiB messages and never read, on one
// session and on many. The messages would fill the memory budget twice. A client that
// reads gets everything, and publishers are never refused. New sessions are refused until
// the slow sessions are trimmed.
func TestSlowReadersDoNotHarmOthers(t *testing.T) {
	const budget, each, payload = 16 << 20, 20, 64 << 10
	d := start(t, func(c *config.Config) { c.Broker.MemoryBudget = budget })
	d.openHostile("greedy.%d", 0, 1000, 1)
	d.openHostile("many.%d", 0, each, 128)
	healthy := d.readEverything("news", "many.7")

	refused, most := false, 0.0
	publish := func(topic string, bytes int) {
		_, err := d.broker.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte(`"` + strings.Repeat("x", bytes-2) + `"`)}, 0, time.Now())
		require.NoError(t, err)
	}
	for i := range each {
		for session := range 128 {
			topic := fmt.Sprintf("many.%d", session*each+i)
			publish(topic, payload)
			publish("news", 100)
			healthy.waitFor(t, "news", i*128+session+1)
		}
		publish(fmt.Sprintf("greedy.%d", i), payload)
		status := d.status("/v1/sessions", `{"topics":["late"]}`)
		refused = refused || status == http.StatusServiceUnavailable
		most = max(most, d.memoryUsed())
	}
	healthy.waitFor(t, "many.7", 1)
	require.True(t, refused, "nobody was let in for a while")
	require.LessOrEqual(t, most, float64(budget))
	require.Eventually(t, func() bool { return d.status("/v1/sessions", `{"topics":["late"]}`) == http.StatusCreated }, 20*time.Second, 20*time.Millisecond, "they are let in again")
	require.Zero(t, d.metric("pubsubd_memory_pressure"))
	require.Positive(t, d.metric("pubsubd_sessions_trimmed_total"))
	require.Zero(t, d.metric(`pubsubd_requests_refused_total{code="internal"}`))
	require.Zero(t, healthy.stop(t), "no gap")
	require.NotEmpty(t, d.logged.FilterMessage("memory pressure").All())
}

// openHostile opens sessions with consecutively numbered topics.
func (d *running) openHostile(name string, from, topics, sessions int) {
	d.Helper()
	for range sessions {
		var o session.Opening
		for range topics {
			o.Topics = append(o.Topics, wire.Start{Topic: fmt.Sprintf(name, from)})
			from++
		}
		o.Ack = true
		_, _, err := d.sessions.Open(d.Context(), o, time.Now())
		require.NoError(d, err)
	}
}

func (d *running) memoryUsed() (sum float64) {
	for _, kind := range []string{"history", "frames", "queues", "topics", "unfinished", "unread"} {
		sum += d.metric(`pubsubd_memory_bytes{kind="` + kind + `"}`)
	}
	return sum
}

// A reader takes all frames of its session.
type reader struct {
	end  context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	came *sync.Cond
	had  map[string]int // messages, by topic
	gaps int
}

// readEverything opens a session and reads from it until stop.
func (d *running) readEverything(topics ...string) *reader {
	d.Helper()
	var starts []wire.Start
	for _, topic := range topics {
		starts = append(starts, wire.Start{Topic: topic})
	}
	s, _, err := d.sessions.Open(d.Context(), session.Opening{Topics: starts, Ack: true}, time.Now())
	require.NoError(d, err)
	ctx, end := context.WithCancel(context.Background())
	r := &reader{end: end, done: make(chan struct{}), had: make(map[string]int)}
	r.came = sync.NewCond(&r.mu)
	go func() {
		defer close(r.done)
		for ack := uint64(0); ; {
			var p session.Reader
			if err := p.Begin(s, ack, session.AcksNext, session.Arrival{}, time.Now()); err != nil {
				return
			}
			frames, err := p.Take(ctx, frame.Limit{Frames: 1000, Bytes: 1 << 20}, time.Minute)
			ack += uint64(len(frames))
			r.note(frames)
			p.Done(time.Now())
			if err != nil {
				return
			}
		}
	}()
	d.Cleanup(end)
	return r
}

func (r *reader) note(frames []*frame.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		if f.Gap() != nil {
			r.gaps++
		}
		r.had[f.Position().Topic]++
	}
	r.came.Broadcast()
}

// waitFor waits until n messages of a topic have come.
func (r *reader) waitFor(t *testing.T, topic string, n int) {
	t.Helper()
	late := time.AfterFunc(20*time.Second, r.came.Broadcast)
	defer late.Stop()
	begun := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.had[topic] < n {
		require.Less(t, time.Since(begun), 20*time.Second, "%s: %d of %d", topic, r.had[topic], n)
		r.came.Wait()
	}
}

// stop ends the reading and returns how many gaps there were.
func (r *reader) stop(t *testing.T) int {
	t.Helper()
	r.end()
	<-r.done
	return r.gaps
}
