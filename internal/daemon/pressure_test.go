package daemon

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/config"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A process is one whose memory a test makes up, in fake time.
type process struct {
	*testing.T
	*pressure
	observed  *observer.ObservedLogs
	base      int64 // what it keeps besides what the broker has
	stale     int64 // what was known to be kept at the last collection; -1: nothing
	collected int
}

// short runs a test of a process with a budget of 1 MiB in a limit of 1600 KiB.
func short(t *testing.T, tell func(p *process)) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		b := broker.New(broker.Config{MemoryBudget: 1 << 20, HistoryMessages: 10_000, HistoryBytes: 1 << 20, HistoryAge: time.Hour}, m, time.Now())
		core, logged := observer.New(zapcore.InfoLevel)
		p := &process{T: t, pressure: newPressure(b, session.NewRegistry(session.Config{}, b, m), zap.New(core)), observed: logged, stale: -1}
		p.memory = func() processMemory {
			if p.stale >= 0 {
				return processMemory{kept: p.stale, limit: 1600 << 10}
			}
			return processMemory{kept: p.kept(), limit: 1600 << 10, collections: uint64(time.Now().Unix()) * 10}
		}
		p.collect = func() {
			p.collected++
			p.stale = -1
		}
		tell(p)
		b.Close()
	})
}

func (p *process) kept() int64 {
	var g metrics.Gauges
	p.broker.Gauges(&g)
	return p.base + g.HistoryBytes + g.QueueBytes
}

func (p *process) publish(kib int) {
	p.Helper()
	for range kib {
		_, err := p.broker.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: make([]byte, 900)}, 0, time.Now())
		require.NoError(p, err)
	}
}

func (p *process) looks(want broker.Pressure) {
	p.Helper()
	time.Sleep(lookEvery)
	p.look(time.Now())
	require.Equal(p, want, p.level)
}

func (p *process) history() int {
	state, _ := p.broker.Topic("a")
	return state.Messages
}

func TestHistoriesThatFillTheBudgetDoNotPress(t *testing.T) {
	short(t, func(p *process) {
		p.publish(3000)
		for range 20 {
			p.looks(broker.Calm)
		}
		require.Greater(t, p.history(), 800)
		require.Zero(t, p.observed.Len())
		require.Zero(t, p.collected)
	})
}

// Near the collector's limit no session is opened; nearer still the histories shrink,
// until it is calm, and they grow again when there is room.
func TestAProcessNearItsLimitLetsHistoriesGo(t *testing.T) {
	short(t, func(p *process) {
		p.publish(3000)
		full := p.history()
		p.base = 450 << 10
		p.looks(broker.High)
		require.Equal(t, full, p.history())
		p.base = 600 << 10
		p.looks(broker.Critical)
		require.Less(t, p.history(), full)
		p.looks(broker.Calm)
		require.LessOrEqual(t, p.kept(), int64(1600<<10)/16*13)
		p.publish(1000)
		p.looks(broker.Calm)
		require.LessOrEqual(t, p.kept(), int64(1600<<10)/16*13, "what is published makes do with it")

		p.base = 100 << 10
		for range 40 {
			p.looks(broker.Calm)
		}
		p.publish(1000)
		require.Greater(t, p.history(), full-full/8, "all of the budget is there again")
		var said []string
		for _, e := range p.observed.All() {
			said = append(said, fmt.Sprint(e.Level, " ", e.ContextMap()["was"], " ", e.ContextMap()["is"]))
		}
		require.Equal(t, []string{"warn none high", "warn high critical", "info critical none"}, said)
	})
}

// What shrank does not grow while that would bring it back at once.
func TestHistoriesDoNotGrowNearTheLimit(t *testing.T) {
	short(t, func(p *process) {
		p.publish(3000)
		p.base = 700 << 10
		p.looks(broker.Critical)
		p.looks(broker.Calm)
		for range 100 {
			p.publish(100)
			p.looks(broker.Calm)
		}
	})
}

// What is trimmed is filled again at once by who attacks, and the log is not for that.
func TestAPressureThatRisesAndFallsIsLoggedNowAndThen(t *testing.T) {
	short(t, func(p *process) {
		for range 15 {
			p.base = 1480 << 10
			p.looks(broker.High)
			p.base = 0
			p.looks(broker.Calm)
		}
		require.LessOrEqual(t, p.observed.Len(), 6)
		p.looks(broker.Calm)
		time.Sleep(listen.LogEvery)
		p.looks(broker.Calm)
		last := p.observed.All()[p.observed.Len()-1]
		require.Equal(t, broker.Calm.String(), last.ContextMap()["is"], "in the end the log is right")
	})
}

// What fills the limit for long, just below what is critical, keeps others out for no
// longer than the patience.
func TestAPressureThatStaysIsCritical(t *testing.T) {
	short(t, func(p *process) {
		p.publish(3000)
		p.looks(broker.Calm)
		p.base = 450 << 10
		p.looks(broker.High)
		for range int(patience/lookEvery) - 2 {
			p.looks(broker.High)
		}
		p.looks(broker.Critical)
		p.looks(broker.Calm)
	})
}

// Of an idle process it is known only what the last collection found, which may be
// long ago: nothing goes for that.
func TestNothingGoesForWhatIsNoLongerThere(t *testing.T) {
	short(t, func(p *process) {
		p.publish(500)
		full := p.history()
		p.looks(broker.Calm)
		p.stale = 1590 << 10
		p.looks(broker.Calm)
		require.Equal(t, 1, p.collected)
		require.Equal(t, full, p.history())
	})
}

func TestWithoutALimitOnlyTheBudgetPresses(t *testing.T) {
	short(t, func(p *process) {
		p.memory = func() processMemory { return processMemory{kept: 1 << 40, limit: math.MaxInt64} }
		p.looks(broker.Calm)
		p.broker.CountQueues(700 << 10)
		p.looks(broker.High)
		require.NotContains(t, p.observed.All()[0].ContextMap(), "memory_limit")
		p.broker.CountQueues(-700 << 10)
		p.looks(broker.Calm)
	})
}

func TestTheProcessesMemoryIsRead(t *testing.T) {
	memory := newMemoryReader()()
	require.EqualValues(t, math.MaxInt64, memory.limit, "GOMEMLIMIT is not for tests")
	require.Greater(t, memory.kept, int64(1<<20))
	require.Less(t, memory.kept, int64(1<<30))
}

// A crowd subscribes to thousands of topics of 64 KiB messages and never reads, on one
// session and on many, in a budget that they could fill twice. Whoever reads gets
// everything and publishers are never refused; nobody is let in while they hold too
// much, until they are made to let go.
func TestWhoNeverReadsTakesNothingFromTheOthers(t *testing.T) {
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

// openHostile opens so many sessions with so many topics each, numbered on.
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
	for _, kind := range []string{"history", "frames", "queues", "topics"} {
		sum += d.metric(`pubsubd_memory_bytes{kind="` + kind + `"}`)
	}
	return sum
}

// A reader takes whatever comes for its session.
type reader struct {
	end  context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	came *sync.Cond
	had  map[string]int // messages, by topic
	gaps int
}

// readEverything opens a session and reads on it until stop.
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
			p, err := s.Poll(ack, false, time.Now())
			if err != nil {
				return
			}
			frames, err := p.Take(ctx, broker.Limit{Frames: 1000, Bytes: 1 << 20}, time.Minute)
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
