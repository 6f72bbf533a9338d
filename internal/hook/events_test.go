package hook

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// A reporter is an events hook with its application, in memory and on fake time.
type reporter struct {
	*testing.T
	*Events
	all    *metrics.Metrics
	answer func(id string, batch batch) (status int) // 0: no answer; set before Run begins, or while it waits
	topics changes
	cfg    EventsConfig

	answering sync.Mutex // held by answer
}

// A batch is what the application gets.
type batch struct {
	Type, Daemon string
	Events       []event
}

// changes are changes of topics that wait to be collected.
type changes struct {
	mu   sync.Mutex
	wait []event
}

func (c *changes) Occupancies(now time.Time, grace time.Duration, changed func(string, bool, time.Time)) (lost int) {
	for _, e := range c.replace() {
		changed(e.Topic, e.Type == topicOccupied, now.Add(-grace))
	}
	return 0
}

// replace returns the changes that wait, and puts others in their place.
func (c *changes) replace(wait ...event) (was []event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, c.wait = c.wait, wait
	return was
}

// report runs a test of an events hook.
func report(t *testing.T, cfg EventsConfig, tell func(r *reporter)) {
	synctest.Test(t, func(t *testing.T) {
		cfg.URL, cfg.Secret = "http://app/?token=query-secret", secret
		r := &reporter{T: t, all: metrics.New("test"), cfg: cfg, answer: func(string, batch) int { return 204 }}
		verifier, err := webhooks.NewWebhookRaw([]byte(secret))
		require.NoError(t, err)
		r.Events = NewEvents(cfg, &r.topics, r.all, zap.NewNop())
		r.Events.dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go r.serve(there, verifier)
			return here, nil
		}
		go r.Events.Run()
		tell(r)
		r.stop(time.Minute)
		require.Zero(t, r.Gauge().InUse)
	})
}

func (r *reporter) serve(c net.Conn, verifier *webhooks.Webhook) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		var b batch
		require.NoError(r, verifier.VerifyIgnoringTimestamp(body, req.Header))
		require.NoError(r, json.Unmarshal(body, &b))
		r.answering.Lock()
		status := r.answer(req.Header.Get("Webhook-Id"), b)
		r.answering.Unlock()
		if status == 0 {
			_, _ = io.Copy(io.Discard, requests)
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nok", status)
	}
}

// pass lets time pass.
func (r *reporter) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// stop closes the hook, within a time.
func (r *reporter) stop(within time.Duration) {
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	r.Close(ctx)
}

// open reports sessions of these numbers.
func (r *reporter) open(first, last uint64) {
	for n := first; n <= last; n++ {
		r.SessionOpened(n, "ann")
	}
}

// wantDead checks how many events were dropped for a reason.
func (r *reporter) wantDead(reason string, want int) {
	r.Helper()
	families, err := r.all.Registry.Gather()
	require.NoError(r, err)
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			if f.GetName() == "pubsubd_hook_dead_letters_total" && sample.GetLabel()[0].GetValue() == reason {
				require.EqualValues(r, want, sample.GetCounter().GetValue(), reason)
				return
			}
		}
	}
	require.Fail(r, "no counter", reason)
}

// Events come in order, in batches: when there are enough, or after the delay.
func TestEventsAreBatched(t *testing.T) {
	report(t, EventsConfig{Batch: 3, Delay: time.Second}, func(r *reporter) {
		var got []uint64
		var sizes []int
		r.answer = func(_ string, b batch) int {
			require.Equal(t, "events", b.Type)
			require.Equal(t, r.daemon, b.Daemon)
			sizes = append(sizes, len(b.Events))
			for _, e := range b.Events {
				got = append(got, e.Session)
			}
			return 200
		}
		r.open(1, 7)
		synctest.Wait()
		require.Equal(t, []int{3, 3}, sizes)
		r.pass(time.Second)
		synctest.Wait()
		require.Equal(t, []int{3, 3, 1}, sizes)
		require.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7}, got)
		require.Equal(t, 3, called(t, r.all, "events", passed))
	})
}

// The members of each type of event.
func TestEventsHaveTheirMembers(t *testing.T) {
	report(t, EventsConfig{Grace: 7 * time.Second}, func(r *reporter) {
		var got []event
		r.answer = func(_ string, b batch) int {
			got = append(got, b.Events...)
			return 200
		}
		begun := time.Now().UnixMilli()
		r.SessionOpened(17, "ann")
		r.SessionEnded(17, "", "closed")
		r.pass(time.Second)
		r.topics.replace(event{Type: topicOccupied, Topic: "a"}, event{Type: topicVacated, Topic: "b"})
		r.pass(2 * time.Second)
		at := got[2].Time
		require.Equal(t, []event{
			{Type: "session_opened", Time: begun, Session: 17, Principal: "ann"},
			{Type: "session_ended", Time: begun, Session: 17, Reason: "closed"},
			{Type: "topic_occupied", Time: at, Topic: "a"},
			{Type: "topic_vacated", Time: at, Topic: "b"},
		}, got)
		r.Drain()
		r.topics.replace(event{Type: topicVacated, Topic: "a"})
		now := time.Now()
		r.pass(2 * time.Second)
		require.GreaterOrEqual(t, got[4].Time, now.UnixMilli(), "there is no grace in a drain")
	})
}

// A batch that fails is sent again with the same id, after longer and longer times. Later
// events wait, and come after it.
func TestAFailedBatchIsSentAgain(t *testing.T) {
	report(t, EventsConfig{Delay: time.Millisecond}, func(r *reporter) {
		var ids []string
		var first []uint64
		var at []time.Duration
		begun := time.Now()
		r.answer = func(id string, b batch) int {
			ids, first, at = append(ids, id), append(first, b.Events[0].Session), append(at, time.Since(begun).Round(time.Second))
			return []int{500, 0, 302, 404, 201, 200}[len(ids)-1]
		}
		r.open(1, 1)
		r.pass(time.Second / 2)
		r.open(2, 5)
		r.pass(time.Minute)
		require.Equal(t, []uint64{1, 1, 1, 1, 1, 2}, first)
		const s = time.Second
		require.Equal(t, []time.Duration{0, 1 * s, 8 * s, 12 * s, 20 * s, 20 * s}, at, "no answer takes 5 s")
		for _, id := range ids[:5] {
			require.Equal(t, ids[0], id)
		}
		require.NotEqual(t, ids[0], ids[5])
		require.Equal(t, 3, called(t, r.all, "events", failed))
		require.Equal(t, 1, called(t, r.all, "events", timeout))
		r.wantDead(batchFailed, 0)
	})
}

// After the last attempt the events of a batch are dropped and counted.
func TestABatchIsDroppedAfterTheLastAttempt(t *testing.T) {
	report(t, EventsConfig{Batch: 2, Attempts: 3}, func(r *reporter) {
		var got []uint64
		r.answer = func(_ string, b batch) int {
			got = append(got, b.Events[0].Session)
			if b.Events[0].Session == 1 {
				return 503
			}
			return 200
		}
		r.open(1, 3)
		r.pass(time.Minute)
		require.Equal(t, []uint64{1, 1, 1, 3}, got)
		r.wantDead(batchFailed, 2)
	})
}

// While the application does not answer, reports do not wait. The queue is bounded, and
// what exceeds it is counted.
func TestASlowApplicationSlowsNobody(t *testing.T) {
	report(t, EventsConfig{Queue: 10, Batch: 4, Attempts: 1}, func(r *reporter) {
		r.answer = func(string, batch) int { return 0 }
		begun := time.Now()
		r.open(1, 4)
		synctest.Wait()
		r.open(5, 20)
		require.Zero(t, time.Since(begun))
		require.Equal(t, metrics.Limit{Name: "hooks.events.queue", Most: 10, InUse: 14}, r.Gauge())
		r.wantDead(queueFull, 6)
		r.cfg.Queue = 5
		r.Reload(r.cfg)
		r.open(21, 22)
		r.wantDead(queueFull, 8)
		r.topics.replace(event{Topic: "a"})
		r.pass(DefaultTimeout - time.Second)
		require.Empty(t, r.topics.replace(), "changes of topics are collected meanwhile")
		r.wantDead(queueFull, 9)
	})
}

// At the end, what waits is sent at once, and the last changes of topics.
func TestCloseSendsWhatWaits(t *testing.T) {
	report(t, EventsConfig{Batch: 4, Delay: time.Hour}, func(r *reporter) {
		n := 0
		r.answer = func(_ string, b batch) int { n += len(b.Events); return 200 }
		r.open(1, 3)
		r.topics.replace(event{Topic: "a"}, event{Topic: "b"})
		begun := time.Now()
		r.stop(time.Second)
		require.Zero(t, time.Since(begun))
		require.Equal(t, 5, n)
		r.wantDead(hookWasClosed, 0)
	})
}

// The end does not wait for an application that fails, and not longer than it may.
func TestCloseDropsWhatCannotBeSent(t *testing.T) {
	for _, status := range []int{0, 500} {
		report(t, EventsConfig{Batch: 4}, func(r *reporter) {
			r.answer = func(string, batch) int { return status }
			r.open(1, 9)
			begun := time.Now()
			r.stop(3 * time.Second)
			require.LessOrEqual(t, time.Since(begun), 3*time.Second)
			r.wantDead(hookWasClosed, 9)
		})
	}
}

// A reload that removes the hook drops what waits, and later events cost nothing.
func TestARemovedHookGetsNoEvents(t *testing.T) {
	report(t, EventsConfig{Batch: 100, Delay: time.Hour}, func(r *reporter) {
		asked := 0
		r.answer = func(string, batch) int { asked++; return 500 }
		r.open(1, 3)
		r.Reload(EventsConfig{})
		synctest.Wait()
		r.wantDead(hookWasClosed, 3)
		r.open(4, 5)
		require.Zero(t, testing.AllocsPerRun(100, func() { r.SessionEnded(1, "ann", "closed") }))
		require.Zero(t, r.Gauge().InUse)
		require.Zero(t, asked)
		r.Reload(r.cfg)
		r.open(6, 105)
		synctest.Wait()
		require.Equal(t, 1, asked)
		r.Reload(EventsConfig{}) // while a batch is sent again and again
		r.pass(time.Minute)
		r.wantDead(hookWasClosed, 103)
	})
}

// Concurrent reports lose nothing, and the events of one session keep their order.
func TestConcurrentEvents(t *testing.T) {
	report(t, EventsConfig{Batch: 7, Queue: 10_000, Delay: time.Millisecond}, func(r *reporter) {
		next := map[string]uint64{}
		total, attempts := 0, 0
		r.answer = func(_ string, b batch) int {
			if attempts++; attempts%3 == 0 {
				return 500
			}
			total += len(b.Events)
			for _, e := range b.Events {
				require.Equal(t, next[e.Principal], e.Session-1)
				next[e.Principal]++
			}
			return 200
		}
		done := make(chan bool)
		for i := range 8 {
			go func() {
				for n := range uint64(200) {
					r.SessionOpened(n+1, fmt.Sprint(i))
				}
				done <- true
			}()
		}
		for range 8 {
			<-done
		}
		r.stop(time.Hour)
		require.Equal(t, 1600, total)
	})
}
