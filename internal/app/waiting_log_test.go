package app

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/problem"
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

// answer waits for an Append of n entries, and applies them, or fails them with err.
func (l *waitingLog) answer(t *testing.T, n int, err error) {
	t.Helper()
	a := <-l.appended
	require.Len(t, a.entries, n)
	results := make([]broker.Result, n)
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

var errDisk = problem.New(wire.CodeOverloaded, "retry later", "the disk is full")

func publishing(key string) Publish {
	p := Publish{Topic: "a", ContentType: Header{"application/json", 1}, Payload: []byte("1")}
	if key != "" {
		p.IdempotencyKey = Header{key, 1}
	}
	return p
}

// An event loop publishes with NoWait. It must not block on a log that does not answer.
func TestAPublishThatMustNotWaitDoesNotWaitForTheLog(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	_, err := a.Publish(NoWait, Caller{}, publishing(""))
	require.ErrorIs(t, err, ErrWouldWait)
	require.Empty(t, log.appended, "it has spent nothing")

	published := make(chan error)
	go func() {
		_, err := a.Publish(context.Background(), Caller{}, publishing(""))
		published <- err
	}()
	log.answer(t, 1, nil)
	require.NoError(t, <-published)
}

// An event loop has its publish answered by the log, without a goroutine. The publish holds
// its slot until then.
func TestAPublishIsAnsweredByTheLog(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{Calls: 1})
	var answers []wire.Published
	var failures []error
	publish := func() error {
		p := publishing("")
		p.Then = func(published wire.Published, err error) {
			answers, failures = append(answers, published), append(failures, err)
		}
		_, err := a.Publish(NoWait, Caller{}, p)
		return err
	}
	for i, cause := range []error{nil, errDisk, nil} {
		require.ErrorIs(t, publish(), ErrPending)
		require.ErrorIs(t, publish(), ErrWouldWait, "the slot is taken")
		require.Len(t, answers, i)
		log.answer(t, 1, cause)
		require.Len(t, answers, i+1)
		require.Equal(t, cause, failures[i])
	}
	require.EqualValues(t, 1, answers[0].Position.Offset)
	require.EqualValues(t, 2, answers[2].Position.Offset)
	require.Empty(t, log.appended)
	gone := publishing("")
	gone.Payload, gone.Then = []byte("{"), func(wire.Published, error) { t.Error("a refused publish is not answered twice") }
	_, err := a.Publish(NoWait, Caller{}, gone)
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeInvalidBody})
	require.ErrorIs(t, publish(), ErrPending, "the slot is free")
	log.answer(t, 1, nil)
}

// The key of a publish that waits for the log is under way until the log has answered.
func TestAPendingPublishHasItsKey(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	var answers []wire.Published
	publish := func(payload string) (wire.Published, error) {
		p := publishing(`"k"`)
		p.Payload = []byte(payload)
		p.Then = func(published wire.Published, err error) { answers = append(answers, published) }
		return a.Publish(NoWait, Caller{}, p)
	}
	for _, cause := range []error{errDisk, nil} {
		_, err := publish("1")
		require.ErrorIs(t, err, ErrPending)
		_, err = publish("1")
		require.ErrorIs(t, err, ErrWouldWait, "another waits for the first")
		log.answer(t, 1, cause)
	}
	again, err := publish("1")
	require.NoError(t, err, "the result is remembered")
	require.Equal(t, answers[1], again)
	_, err = publish("2")
	require.ErrorIs(t, err, &wire.Problem{Code: wire.CodeIdempotencyMismatch})
	require.Len(t, answers, 2)
	require.Empty(t, log.appended)
}

// publishMany publishes the lines, and returns the results.
func publishMany(t *testing.T, a *App, body string) (results []wire.PublishResult) {
	p := Publish{ContentType: Header{"application/x-ndjson", 1}, Body: bodyOf(body)}
	err := a.PublishMany(t.Context(), Caller{}, p, func(_ string, parts iter.Seq[[]byte]) error {
		dec := json.NewDecoder(bytes.NewReader(slices.Concat(slices.Collect(func(yield func([]byte) bool) {
			for part := range parts {
				if !yield(bytes.Clone(part)) {
					return
				}
			}
		})...)))
		for dec.More() {
			var result wire.PublishResult
			if err := dec.Decode(&result); err != nil {
				return err
			}
			results = append(results, result)
		}
		return nil
	})
	require.NoError(t, err)
	return results
}

// The messages of one request are one commit of the log. Each has its result in its place.
func TestManyMessagesAreOneCommit(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{Calls: 1})
	const body = `{"topic":"a","data":1}
{"topic":"not a topic","data":1}
{"topic":"b","data":2}
{"topic":"c","data":3,"id":"k"}
`
	done := make(chan []wire.PublishResult)
	publish := func() { done <- publishMany(t, a, body) }
	go publish()
	log.answer(t, 3, nil)
	first := <-done
	require.Len(t, first, 4)
	require.NotNil(t, first[1].Problem)
	for i, topic := range map[int]string{0: "a", 2: "b", 3: "c"} {
		require.Equal(t, topic, first[i].Published.Position.Topic)
	}

	go publish()
	log.answer(t, 2, errDisk)
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
	log.answer(t, 1, nil)
	log.answer(t, 1, nil)
	results := <-done
	require.Equal(t, results[0], results[1])
	require.EqualValues(t, 2, results[2].Published.Position.Offset)
}

// A command of a two-way connection is answered by the log.
func TestACommandIsAnsweredByTheLog(t *testing.T) {
	a, log := newWaitingApp(t, limit.Config{})
	d, err := a.Connect(t.Context(), Caller{}, "topic=x", Accepts{})
	require.NoError(t, err)
	defer a.End(d.Session)
	var finish transport.Finish
	command := []byte(`{"publish":{"topic":"a","data":1},"ref":7}`)
	for _, cause := range []error{nil, errDisk} {
		_, later, err := d.Do(t.Context(), d.Session, transport.Action{Command: command}, func(f transport.Finish) { finish = f })
		require.ErrorIs(t, err, transport.ErrPending)
		require.Nil(t, later)
		require.Nil(t, finish)
		log.answer(t, 1, cause)
		reply, err := finish()
		require.NoError(t, err)
		finish = nil
		require.EqualValues(t, 7, *reply.Ref)
		require.Equal(t, cause != nil, reply.Problem != nil)
		require.Equal(t, cause == nil, reply.Position != nil)
	}
	_, later, err := d.Do(t.Context(), d.Session, transport.Action{Command: command}, nil)
	require.NoError(t, err)
	done := make(chan *wire.Reply)
	go func() { done <- finished(later(t.Context())) }()
	log.answer(t, 1, nil)
	require.EqualValues(t, 2, (<-done).Position.Offset, "a connection with a goroutine waits")
}
