package app

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A waitingLog has one partition. It applies entries when a test answers, as if a disk or a
// leader did.
type waitingLog struct {
	broker   *broker.Broker
	appended chan appended
	last     uint64
}

type appended struct {
	entries []broker.Entry
	done    func([]broker.Result)
}

func (l *waitingLog) Append(e []broker.Entry, done func([]broker.Result)) {
	l.appended <- appended{e, done}
}

func (*waitingLog) Feed(context.Context, func(broker.Entry) error) error { return nil }
func (*waitingLog) Partitions() int                                      { return 1 }
func (*waitingLog) Partition(string) int                                 { return 0 }
func (*waitingLog) Applied(wire.Position) bool                           { return false }

// newWaitingApp returns an app on a log that waits for the test.
func newWaitingApp(t *testing.T, cfg limit.Config) (*App, *waitingLog) {
	m := metrics.New("test")
	log := &waitingLog{appended: make(chan appended, 10)}
	log.broker = broker.NewWithLog(broker.Config{}, m, time.Now(), func(*broker.Broker) broker.Log { return log })
	return newApp(t, func(c *Config) { c.Broker, c.Metrics, c.Limiter = log.broker, m, limit.New(cfg, m) }), log
}

// answer waits for an Append of one entry, and applies it, or fails it with err.
func (l *waitingLog) answer(t *testing.T, err error) {
	t.Helper()
	a := <-l.appended
	require.Len(t, a.entries, 1)
	results := make([]broker.Result, 1)
	for i, e := range a.entries {
		if results[i].Err = err; err == nil {
			l.last++
			e.Message.Position.Epoch, e.Message.Position.Offset = l.broker.Epoch("a"), l.last
			results[i].Time = e.Message.Time
			results[i].Position, results[i].Err = l.broker.Apply(e)
		}
	}
	a.done(results)
}

// collect waits for n Appends.
func (l *waitingLog) collect(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(l.appended) == n }, 10*time.Second, time.Millisecond)
}

// answerAll answers what has been collected.
func (l *waitingLog) answerAll(t *testing.T, err error) {
	t.Helper()
	for range len(l.appended) {
		l.answer(t, err)
	}
}

var errDisk = problem.New(wire.CodeOverloaded, "retry later", "the disk is full")

func publishing(key string) posting {
	p := posting{Topic: "a", ContentType: request.HeaderOf([]string{"application/json"}), Payload: []byte("1")}
	if key != "" {
		p.IdempotencyKey = request.HeaderOf([]string{key})
	}
	return p
}

// A publish is answered by the log, without a goroutine. It holds its slot until then.
func TestAPublishIsAnsweredByTheLog(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{Calls: 1})
	var answers []wire.Published
	var failures []error
	send := func() (over bool, err error) {
		p, m, err := a.begin(t.Context(), Caller{}, publishing(""))
		require.NoError(t, err)
		if _, over, err = p.Send(m); !over && p.waits == forLog {
			p.Continue(func(published wire.Published, err error) {
				answers, failures = append(answers, published), append(failures, err)
			})
		}
		require.Equal(t, over, p.waits == forNothing)
		return p.waits == forSlot, err
	}
	for i, cause := range []error{nil, errDisk, nil} {
		waits, err := send()
		require.NoError(t, err)
		require.False(t, waits)
		waits, err = send()
		require.NoError(t, err)
		require.True(t, waits, "the slot is taken")
		require.Len(t, answers, i)
		log.answer(t, cause)
		require.Len(t, answers, i+1)
		require.Equal(t, cause, failures[i])
	}
	require.EqualValues(t, 1, answers[0].Position.Offset)
	require.EqualValues(t, 2, answers[2].Position.Offset)
	require.Empty(t, log.appended)

	published := make(chan error)
	go func() {
		_, err := a.post(context.Background(), Caller{}, publishing(""))
		published <- err
	}()
	log.answer(t, nil)
	require.NoError(t, <-published, "a goroutine waits")
}

// The key of a publish that waits for the log is under way until the log has answered.
func TestAPendingPublishHasItsKey(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	results := make(chan broker.Result, 10)
	publish := func(payload string) wait {
		p := publishing(`"k"`)
		p.Payload = []byte(payload)
		begun, m, err := a.begin(t.Context(), Caller{}, p)
		require.NoError(t, err)
		done := func(published wire.Published, err error) { results <- broker.Result{Published: published, Err: err} }
		published, over, err := begun.Send(m)
		if over {
			done(published, err)
		} else {
			begun.Continue(done)
		}
		return begun.waits
	}
	require.Equal(t, forLog, publish("1"))
	require.Equal(t, forKey, publish("1"), "another waits for the first")
	log.answer(t, errDisk)
	require.Equal(t, errDisk, (<-results).Err)
	log.answer(t, nil)
	first := <-results
	require.NoError(t, first.Err, "the other is published")
	require.Equal(t, forNothing, publish("1"), "the result is remembered")
	require.Equal(t, first, <-results)
	require.Equal(t, forNothing, publish("2"))
	require.ErrorIs(t, (<-results).Err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
	require.Empty(t, log.appended)
}

// publishMany publishes the lines, and returns the results.
func publishMany(t *testing.T, a *App, body string) (results []wire.PublishResult) {
	h := request.Head{ContentType: request.HeaderOf([]string{"application/x-ndjson"})}
	answer, err := a.publishMany(t.Context(), Caller{}, h, bodyOf(body))
	require.NoError(t, err)
	for dec := json.NewDecoder(bytes.NewReader(answer)); dec.More(); {
		var result wire.PublishResult
		require.NoError(t, dec.Decode(&result))
		results = append(results, result)
	}
	return results
}

// The messages of one request wait for the log together. Each has its result in its place.
func TestManyMessagesWaitTogether(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{Calls: 1})
	const body = `{"topic":"a","data":1}
{"topic":"not a topic","data":1}
{"topic":"b","data":2}
{"topic":"c","data":3,"id":"k"}
`
	done := make(chan []wire.PublishResult)
	publish := func() { done <- publishMany(t, a, body) }
	go publish()
	log.collect(t, 3)
	log.answerAll(t, nil)
	first := <-done
	require.Len(t, first, 4)
	require.NotNil(t, first[1].Problem)
	for i, topic := range map[int]string{0: "a", 2: "b", 3: "c"} {
		require.Equal(t, topic, first[i].Published.Position.Topic)
	}

	go publish()
	log.collect(t, 2)
	log.answerAll(t, errDisk)
	second := <-done
	for _, i := range []int{0, 2} {
		require.Equal(t, wire.CodeOverloaded, second[i].Problem.Code)
	}
	require.Equal(t, first[3], second[3], "the key was used")
	require.Empty(t, log.appended)
}

// A message has the key of an earlier one of the same request. The log gets the earlier one
// before the request waits for it.
func TestAKeyTwiceInOneRequest(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	done := make(chan []wire.PublishResult)
	go func() {
		done <- publishMany(t, a, `{"topic":"a","data":1,"id":"k"}
{"topic":"a","data":1,"id":"k"}
{"topic":"a","data":2}
`)
	}()
	log.answer(t, nil)
	log.answer(t, nil)
	results := <-done
	require.Equal(t, results[0], results[1])
	require.EqualValues(t, 2, results[2].Published.Position.Offset)
}

// A command of a two-way connection is answered by the log.
func TestACommandIsAnsweredByTheLog(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	d, err := a.connect(t.Context(), Caller{}, "topic=x")
	require.NoError(t, err)
	defer a.End(d.Session)
	var finish transport.Finish
	command := []byte(`{"publish":{"topic":"a","data":1},"ref":7}`)
	for _, cause := range []error{nil, errDisk} {
		_, later, giveUp, err := d.Do(t.Context(), d.Session, transport.Action{Command: command}, func(f transport.Finish) { finish = f })
		require.NoError(t, err)
		require.NotNil(t, giveUp)
		require.Nil(t, later)
		giveUp() // the log has it
		require.Nil(t, finish)
		log.answer(t, cause)
		reply, err := finish()
		require.NoError(t, err)
		finish = nil
		require.EqualValues(t, 7, *reply.Ref)
		require.Equal(t, cause != nil, reply.Problem != nil)
		require.Equal(t, cause == nil, reply.Position != nil)
	}
}
