package memory

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A fakeHistory is one history without a bound of its own.
type fakeHistory struct {
	account  *Account
	messages []int64 // their sizes
}

// newFake returns an account whose history a test fills.
func newFake(budget int64) *fakeHistory {
	h := &fakeHistory{}
	h.account = New(budget, h, metrics.New("test"))
	return h
}

func (h *fakeHistory) ForgetEncodings() { h.account.Add(Encodings, -h.account.Of(Encodings)) }

func (h *fakeHistory) EvictOldest(enough func() bool) {
	for len(h.messages) > 0 && !enough() {
		h.account.Add(History, -h.messages[0])
		h.messages = h.messages[1:]
	}
}

// publish adds a message of 1,000 bytes.
func (h *fakeHistory) publish() error {
	const bytes = 1000
	if err := h.account.Admit(bytes); err != nil {
		return err
	}
	h.account.Add(History, bytes)
	h.messages = append(h.messages, bytes)
	return nil
}

// A shortProcess is a process whose memory a test sets, in fake time.
type shortProcess struct {
	*testing.T
	*Watcher
	histories *fakeHistory
	observed  *observer.ObservedLogs
	base      int64 // memory besides that of the account
	stale     int64 // memory alive at the last collection; -1: the current memory
	collected int
	trimmed   int
}

// short runs a test of a process with a budget of 1 MiB in a limit of 1600 KiB.
func short(t *testing.T, test func(p *shortProcess)) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zapcore.InfoLevel)
		p := &shortProcess{T: t, histories: newFake(1 << 20), observed: logged, stale: -1}
		trim := func(time.Time, func() bool) int { p.trimmed++; return 0 }
		p.Watcher = NewWatcher(p.histories.account, trim, zap.New(core))
		p.process = func() processMemory {
			if p.stale >= 0 {
				return processMemory{live: p.stale, limit: 1600 << 10}
			}
			return processMemory{live: p.alive(), limit: 1600 << 10, collections: uint64(time.Now().Unix()) * 10}
		}
		p.collect = func() {
			p.collected++
			p.stale = -1
		}
		test(p)
	})
}

func (p *shortProcess) alive() int64 { return p.base + p.account.Of(History) + p.account.Of(Queues) }

func (p *shortProcess) publish(kib int) {
	p.Helper()
	for range kib {
		require.NoError(p, p.histories.publish())
	}
}

func (p *shortProcess) looks(want Pressure) {
	p.Helper()
	time.Sleep(lookEvery)
	p.look(time.Now())
	require.Equal(p, want, p.level)
}

func (p *shortProcess) history() int { return len(p.histories.messages) }

func TestFullHistoriesAreNoPressure(t *testing.T) {
	short(t, func(p *shortProcess) {
		p.publish(3000)
		for range 20 {
			p.looks(Calm)
		}
		require.Greater(t, p.history(), 800)
		require.Zero(t, p.observed.Len())
		require.Zero(t, p.collected)
	})
}

// Near the collector's limit the pressure is high. Nearer still, histories shrink until it
// is calm. They grow again when the limit allows it.
func TestHistoriesShrinkNearTheLimit(t *testing.T) {
	short(t, func(p *shortProcess) {
		p.publish(3000)
		full := p.history()
		p.base = 450 << 10
		p.looks(High)
		require.Equal(t, full, p.history())
		p.base = 600 << 10
		p.looks(Critical)
		require.Less(t, p.history(), full)
		p.looks(Calm)
		require.LessOrEqual(t, p.alive(), int64(1600<<10)/16*13)
		p.publish(1000)
		p.looks(Calm)
		require.LessOrEqual(t, p.alive(), int64(1600<<10)/16*13, "new messages fit the rest")

		p.base = 100 << 10
		for range 40 {
			p.looks(Calm)
		}
		p.publish(1000)
		require.Greater(t, p.history(), full-full/8, "the whole budget is back")
		var logged []string
		for _, e := range p.observed.All() {
			logged = append(logged, fmt.Sprint(e.Level, " ", e.ContextMap()["was"], " ", e.ContextMap()["is"]))
		}
		require.Equal(t, []string{"warn none high", "warn high critical", "info critical none"}, logged)
	})
}

// Histories do not grow again while that would bring the pressure back.
func TestHistoriesDoNotGrowNearTheLimit(t *testing.T) {
	short(t, func(p *shortProcess) {
		p.publish(3000)
		p.base = 700 << 10
		p.looks(Critical)
		p.looks(Calm)
		for range 100 {
			p.publish(100)
			p.looks(Calm)
		}
	})
}

// An attacker may fill trimmed queues again at once. That must not fill the log.
func TestARisingAndFallingPressureIsLoggedRarely(t *testing.T) {
	short(t, func(p *shortProcess) {
		for range 15 {
			p.base = 1480 << 10
			p.looks(High)
			p.base = 0
			p.looks(Calm)
		}
		require.LessOrEqual(t, p.observed.Len(), 6)
		p.looks(Calm)
		time.Sleep(logEvery)
		p.looks(Calm)
		last := p.observed.All()[p.observed.Len()-1]
		require.Equal(t, Calm.String(), last.ContextMap()["is"], "the last entry has the last pressure")
	})
}

// A pressure that stays high becomes critical, so that it does not keep new sessions out
// for ever.
func TestALastingHighPressureBecomesCritical(t *testing.T) {
	short(t, func(p *shortProcess) {
		p.publish(3000)
		p.looks(Calm)
		p.base = 450 << 10
		p.looks(High)
		for range int(patience/lookEvery) - 2 {
			p.looks(High)
		}
		p.looks(Critical)
		p.looks(Calm)
	})
}

// The last collection of an idle process may be long ago. The watcher collects before it
// evicts anything.
func TestGarbageEvictsNothing(t *testing.T) {
	short(t, func(p *shortProcess) {
		p.publish(500)
		full := p.history()
		p.looks(Calm)
		p.stale = 1590 << 10
		p.looks(Calm)
		require.Equal(t, 1, p.collected)
		require.Equal(t, full, p.history())
	})
}

func TestWithoutALimitOnlyTheBudgetCounts(t *testing.T) {
	short(t, func(p *shortProcess) {
		p.process = func() processMemory { return processMemory{live: 1 << 40, limit: math.MaxInt64} }
		p.looks(Calm)
		p.account.Add(Queues, 700<<10)
		p.looks(High)
		require.NotContains(t, p.observed.All()[0].ContextMap(), "memory_limit")
		p.account.Add(Queues, -700<<10)
		p.looks(Calm)
	})
}

func TestTheMemoryOfTheProcessIsRead(t *testing.T) {
	process := newProcessReader()()
	require.EqualValues(t, math.MaxInt64, process.limit, "tests run without GOMEMLIMIT")
	require.Greater(t, process.live, int64(1<<20))
	require.Less(t, process.live, int64(1<<30))
}
