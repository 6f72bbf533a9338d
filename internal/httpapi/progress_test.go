package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// progress is the state that a client needs to resume after any of its frames, on any
// transport.
type progress struct {
	mu     sync.Mutex               // one goroutine changes subscriptions, another receives
	told   []wire.Position          // positions when the subscription was opened
	named  map[string]time.Duration // requested topics and patterns, each with its minimum interval
	at     map[string]wire.Start    // start of each topic for the next subscription
	got    uint64                   // number of frames received in its session
	before []wire.Start             // for each frame, the start of its topic before it
}

func (p *progress) begin(topics []wire.Start) {
	p.named, p.at = map[string]time.Duration{}, map[string]wire.Start{}
	p.change(topics, nil, nil)
}

// Positions implements transporttest.Subscriber.
func (p *progress) Positions() []wire.Position { return p.told }

// learn sets the start of each topic to its position.
func (p *progress) learn(positions []wire.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, position := range positions {
		p.at[position.Topic] = wire.StartAfter(position)
	}
}

// take records a frame.
func (p *progress) take(c wire.Content) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Moved != nil {
		for _, position := range c.Moved.Positions {
			p.at[position.Topic] = wire.StartAfter(position)
		}
	}
	if !c.Counts() {
		return
	}
	position := position(c)
	had, met := p.at[position.Topic]
	p.before = append(p.before, had)
	if met || c.Gap == nil || !c.Gap.IsLeftOut() {
		p.at[position.Topic] = wire.StartAfter(position)
	}
	p.got++
}

// lose forgets the last n frames and restores the starts before them, where known.
func (p *progress) lose(n int) {
	for range n {
		last := len(p.before) - 1
		start := p.before[last]
		p.before = p.before[:last]
		p.got--
		if start.Topic != "" {
			p.at[start.Topic] = start
		}
	}
}

// change records added and removed subscriptions, with the positions from the reply.
func (p *progress) change(add []wire.Start, remove []string, told []wire.Position) {
	defer p.learn(told)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range remove {
		delete(p.named, name)
		maps.DeleteFunc(p.at, func(topic string, _ wire.Start) bool {
			_, named := p.named[topic]
			return topic == name || !named && wire.IsPattern(name) && wire.Matches(name, topic)
		})
	}
	for _, start := range add {
		if _, has := p.named[start.Topic]; !has {
			p.named[start.Topic], p.at[start.Topic] = start.Every, start
		}
	}
}

// starts returns the starts for a new subscription.
func (p *progress) starts() []wire.Start {
	p.mu.Lock()
	defer p.mu.Unlock()
	starts := slices.SortedFunc(maps.Values(p.at), func(x, y wire.Start) int { return strings.Compare(x.Topic, y.Topic) })
	for i := range starts {
		starts[i].Every = p.named[starts[i].Topic]
	}
	return starts
}

// everywhere returns the rate of all topics as a max_rate parameter, or "" if they have
// none.
func everywhere(topics []wire.Start) string {
	for _, start := range topics {
		if start.Every > 0 {
			return fmt.Sprintf("%d/s", time.Second/start.Every)
		}
	}
	return ""
}

// Hello precedes the frames and is not one. It counts neither in the metric of frames nor
// towards the bytes of an answer in mode multiple.
func TestHelloDoesNotCountAsAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mode := range []string{"batch", "multiple"} {
			k := newKit(t, lanetest.Settings{})
			k.wantOK("/v1/topics/a/messages", "1", lanetest.JSONType)
			_, text := k.Get("GET", "/v1/poll?topic=a@oldest&mode="+mode, "")
			lines := strings.SplitAfter(text, "\n")
			require.Len(t, lines, 3, "hello, the message, and nothing: %q", text)
			require.EqualValues(t, len(lines[1]), k.Counted("pubsubd_frames_delivered_bytes_total", "longpoll"), mode)
		}
	})
}
