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

	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/stretchr/testify/require"
)

// progress is how far a client is: what it needs to go on after any of its frames, on
// whichever transport.
type progress struct {
	mu     sync.Mutex               // who changes the subscriptions is not who receives
	told   []wire.Position          // at first
	named  map[string]time.Duration // topics and patterns that it asked for, with their pace
	at     map[string]wire.Start    // where each goes on
	got    uint64                   // frames of its session that it has
	before []wire.Start             // where each frame's topic went on before it
}

func (p *progress) begin(topics []wire.Start) {
	p.named, p.at = map[string]time.Duration{}, map[string]wire.Start{}
	p.change(topics, nil, nil)
}

// Positions implements transporttest.Subscriber.
func (p *progress) Positions() []wire.Position { return p.told }

// learn notes where topics go on.
func (p *progress) learn(positions []wire.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, position := range positions {
		p.at[position.Topic] = wire.StartAfter(position)
	}
}

// take notes a frame.
func (p *progress) take(c wire.Content) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.Counts() {
		return
	}
	position := position(c)
	p.before = append(p.before, p.at[position.Topic])
	p.at[position.Topic] = wire.StartAfter(position)
	p.got++
}

// lose forgets the last n frames. A topic that was unknown before is one again.
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

// change notes other subscriptions, with the positions that were told.
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

// starts are where to subscribe anew.
func (p *progress) starts() []wire.Start {
	p.mu.Lock()
	defer p.mu.Unlock()
	starts := slices.SortedFunc(maps.Values(p.at), func(x, y wire.Start) int { return strings.Compare(x.Topic, y.Topic) })
	for i := range starts {
		starts[i].Every = p.named[starts[i].Topic]
	}
	return starts
}

// everywhere returns the pace of all topics, as a query says it; empty: they have none.
func everywhere(topics []wire.Start) string {
	for _, start := range topics {
		if start.Every > 0 {
			return fmt.Sprintf("%d/s", time.Second/start.Every)
		}
	}
	return ""
}

// Hello goes before the frames, and is none: it counts neither in the metric of frames nor
// towards the bytes of an answer in mode multiple.
func TestHelloDoesNotCountAsAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mode := range []string{"batch", "multiple"} {
			k := newKit(t, settings{})
			k.wantOK("/v1/topics/a/messages", "1", jsonType)
			_, text := k.get("GET", "/v1/poll?topic=a@oldest&mode="+mode, "")
			lines := strings.SplitAfter(text, "\n")
			require.Len(t, lines, 3, "hello, the message, and nothing: %q", text)
			require.EqualValues(t, len(lines[1]), k.counted("pubsubd_frames_delivered_bytes_total", "longpoll"), mode)
		}
	})
}
