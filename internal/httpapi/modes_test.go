package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// formatNames are the values of format= for each format.
var formatNames = map[frame.Format]string{frame.NDJSON: "json", frame.CBOR: "cbor"}

func TestEveryModeDeliversTheSame(t *testing.T) {
	for i, s := range sampleOf(everyPoll(), 0) {
		t.Run(s.String(), func(t *testing.T) {
			transporttest.Run(t, someStories(i, 3), func(t *testing.T, b transporttest.Bounds) transporttest.System {
				return s.on(newKit(t, boundsOf(b)))
			})
		})
	}
}

func TestAnEventStreamDeliversTheSame(t *testing.T) {
	for i, ids := range []idKind{ofOneTopic, ofSeveral, referring, attached} {
		if exhaustive.On() || i%2 == 1 {
			t.Run("by "+string(ids), func(t *testing.T) { sseSuite(t, someStories(i, 4), ids, 0) })
		}
		if exhaustive.On() || i%2 == 0 {
			t.Run("cut often, by "+string(ids), func(t *testing.T) { sseSuite(t, someStories(i, 4), ids, 3) })
		}
	}
}

// someStories returns the sample of stories for the i-th of several systems: so many neighbours
// together play all.
func someStories(i, together int) transporttest.Sample {
	return transporttest.Sample{First: i, Step: exhaustive.Step(together)}
}

// sseSuite makes each subscriber reconnect after this many events. Tests with a queue
// bound do not reconnect: lost frames would cause new gaps again and again. Nobody
// acknowledges, so Unacked keeps its default. It bounds how far back an event id may
// refer.
func sseSuite(t *testing.T, stories transporttest.Sample, ids idKind, every int) {
	transporttest.Run(t, stories, func(t *testing.T, b transporttest.Bounds) transporttest.System {
		cut := every
		if b.Queue > 0 {
			cut = 0
		}
		b.Unacked = 0
		return &sseSystem{system: system{kit: newKit(t, boundsOf(b))}, ids: ids, every: cut}
	})
}

// everyPoll returns a system, with no kit yet, for each way to poll.
func everyPoll() (all []system) {
	for _, mode := range transport.Modes() {
		for _, format := range []frame.Format{frame.NDJSON, frame.CBOR} {
			all = append(all, system{mode: mode, format: format}, system{mode: mode, format: format, stateless: true})
		}
	}
	return all
}

// sampleOf returns a quarter of a grid's cells; part chooses the quarter. The last two
// axes have two values each. Each sample has every value of every axis. Two samples
// together have every pair of values of different axes.
func sampleOf[C any](cells []C, part int) (sample []C) {
	for i, c := range cells {
		first, second, third := i>>2, i>>1&1, i&1
		if exhaustive.On() || second == (first+part)%2 && third == (first>>1+part)%2 {
			sample = append(sample, c)
		}
	}
	return sample
}

// boundsOf returns the settings for a test's bounds.
func boundsOf(b transporttest.Bounds) lanetest.Settings {
	return lanetest.Settings{
		Broker:  broker.Config{HistoryMessages: b.HistoryMessages, HistoryAge: b.HistoryAge, Rules: b.Rules},
		Session: session.Config{Queue: b.Queue, Unacked: b.Unacked, Subscriptions: b.Subscriptions, PatternBytes: b.PatternBytes},
	}
}

// system implements transporttest.System over HTTP.
type system struct {
	*kit
	mode      transport.Mode
	format    frame.Format
	stateless bool
}

func (s system) on(k *kit) *system { s.kit = k; return &s }

func (s system) String() string {
	kind := "session"
	if s.stateless {
		kind = "stateless"
	}
	return fmt.Sprintf("%s %s %s", kind, s.mode, formatNames[s.format])
}

// Publish bypasses HTTP, which is not under test here.
func (s *system) Publish(item wire.PublishItem) wire.Position {
	s.Helper()
	if item.Key != "" && len(item.Data) > 0 && item.ID == nil { // one of a flood: parsing its JSON took most of the suite's time
		m := &wire.Message{Position: wire.Position{Topic: item.Topic}, Data: item.Data, Key: item.Key}
		published, err := s.Parts.Broker.Publish(m, 0, time.Now())
		require.NoError(s, err)
		return published.Position
	}
	body, err := json.Marshal([]wire.PublishItem{item})
	require.NoError(s, err)
	m, err := s.api.App.BeginPublishMany(context.Background(), app.Caller{})
	require.NoError(s, err)
	form, err := request.ManyFormOf(request.Head{ContentType: request.HeaderOf([]string{"application/json"})})
	require.NoError(s, err)
	published, err := m.Send(form, body)
	require.NoError(s, err)
	require.Nil(s, published[0].Problem)
	return published[0].Position
}

func (s *system) Delete(topic string) {
	s.Helper()
	_, err := s.Parts.Broker.Delete(topic, time.Now())
	require.NoError(s, err)
}

func (s *system) Drain() {
	s.Parts.Sessions.BeginDrain(problem.New(wire.CodeDraining, "", "")).End(math.MaxInt)
}

func (s *system) Sweep() { s.Parts.Sessions.Sweep(time.Now()) }

func (s *system) Members(topic string) (keys []string) {
	s.Helper()
	found, err := s.Parts.Presence.List(topic, time.Now())
	require.NoError(s, err)
	for _, m := range found.Members {
		keys = append(keys, m.Key)
	}
	return keys
}

func (s *system) Subscribe(o transporttest.Opening) (transporttest.Subscriber, error) {
	sub := s.newSubscriber(o.Client)
	sub.begin(o.Topics)
	if s.stateless {
		return sub, sub.learnPositions()
	}
	return sub, sub.openSession(o.Topics)
}

func (s *system) newSubscriber(client string) *subscriber {
	sub := &subscriber{system: s, self: client}
	sub.ctx, sub.leave = context.WithCancel(context.Background())
	return sub
}

// subscriber is the simplest client that follows the protocol.
type subscriber struct {
	*system
	progress
	self   string          // client whose messages it refuses; empty: it wants all
	ctx    context.Context // of its polls; cancelled when the client leaves
	leave  context.CancelFunc
	id     string      // of its session
	answer frameReader // reads the current answer
	body   io.Closer
}

// A frameReader reads the frames of an answer.
type frameReader interface {
	Next() (wire.Content, error)
}

func (s *subscriber) openSession(topics []wire.Start) error {
	opened, err := s.openFor(topics, s.self)
	if err != nil {
		return err
	}
	s.id, s.got = opened.Session, 0
	s.told = opened.Positions
	s.learn(opened.Positions)
	return nil
}

// openFor opens a session with acknowledgements. The error is a *wire.Problem.
func (k *kit) openFor(topics []wire.Start, client string) (opened wire.SessionOpened, err error) {
	k.Helper()
	request := wire.OpenRequest{Topics: topics, Client: optional(client)}
	if client != "" {
		request.Echo = new(false)
	}
	body, err := json.Marshal(request)
	require.NoError(k, err)
	status, text := k.Get("POST", "/v1/sessions", string(body), lanetest.JSONType)
	return opened, k.understand(status, text, &opened)
}

// understand decodes a successful answer, and returns any other as a *wire.Problem.
func (k *kit) understand(status int, text string, into any) error {
	k.Helper()
	if status >= http.StatusBadRequest {
		p := &wire.Problem{}
		require.NoError(k, json.Unmarshal([]byte(text), p), text)
		return p
	}
	if into != nil {
		require.NoError(k, json.Unmarshal([]byte(text), into), text)
	}
	return nil
}

// learnPositions polls once if a topic has no position, so that the subscription starts
// now.
func (s *subscriber) learnPositions() error {
	for _, start := range s.at {
		if start.From == wire.FromPosition {
			s.told = append(s.told, start.Position())
			continue
		}
		if err := s.poll(); err != nil {
			return err
		}
		c, err := s.answer.Next()
		if err != nil {
			return err
		}
		require.NotNil(s, c.Hello)
		s.told = c.Hello.Positions
		s.learn(s.told)
		return nil
	}
	return nil
}

// position returns the position of a message or a gap.
func position(c wire.Content) wire.Position {
	if c.Gap != nil {
		return c.Gap.Position
	}
	return c.Message.Position
}

func (s *subscriber) Next() (wire.Content, error) {
	for {
		if s.answer == nil {
			if err := s.poll(); err != nil {
				return wire.Content{}, err
			}
		}
		c, err := s.answer.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.body.Close()
			s.answer = nil
			continue
		case err != nil:
			return c, err
		case c.End != nil:
			return c, c.End
		case c.Hello != nil:
			s.learn(c.Hello.Positions)
		}
		if s.take(c); c.Counts() {
			return c, nil
		}
	}
}

func (s *subscriber) poll() error {
	r, err := s.request()
	require.NoError(s, err)
	resp, err := s.system.HTTP.Do(r)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var p wire.Problem
		require.NoError(s, json.NewDecoder(resp.Body).Decode(&p))
		return &p
	}
	require.Equal(s, s.format.ContentType(), resp.Header.Get("Content-Type"))
	s.answer, s.body = wire.NewDecoder(resp.Body), resp.Body
	if s.format == frame.CBOR {
		s.answer = wire.NewCBORDecoder(resp.Body)
	}
	return nil
}

// manyStarts is the number of topics from which a poll names them in its body.
const manyStarts = 100

func (s *subscriber) request() (*http.Request, error) {
	q := url.Values{"mode": {string(s.mode)}}
	if s.format == frame.CBOR {
		q.Set("format", "cbor")
	}
	if !s.stateless {
		q.Set("ack", strconv.FormatUint(s.got, 10))
		return http.NewRequestWithContext(s.ctx, "GET", "http://pubsubd/v1/sessions/"+s.id+"/poll?"+q.Encode(), nil)
	}
	starts := s.starts()
	addWishes(q, starts, s.self)
	if len(starts) < manyStarts {
		lanetest.AddTopics(q, starts)
		return http.NewRequestWithContext(s.ctx, "GET", "http://pubsubd/v1/poll?"+q.Encode(), nil)
	}
	body, err := json.Marshal(map[string]any{"topics": starts})
	require.NoError(s, err)
	r, err := http.NewRequestWithContext(s.ctx, "POST", "http://pubsubd/v1/poll?"+q.Encode(), bytes.NewReader(body))
	if err == nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, err
}

// addWishes adds the parameters that apply to all topics of a query.
func addWishes(q url.Values, starts []wire.Start, client string) {
	if rate := everywhere(starts); rate != "" {
		q.Set("max_rate", rate)
	}
	if client != "" {
		q.Set("client", client)
		q.Set("echo", "false")
	}
}

func (s *subscriber) Change(add []wire.Start, remove []string) ([]wire.Position, error) {
	if s.stateless {
		return nil, errors.ErrUnsupported
	}
	told, err := s.changeSession(s.id, add, remove)
	if err == nil {
		s.change(add, remove, told)
	}
	return told, err
}

// changeSession changes a session's subscriptions. The error is a *wire.Problem.
func (k *kit) changeSession(id string, add []wire.Start, remove []string) ([]wire.Position, error) {
	k.Helper()
	body, err := json.Marshal(wire.ChangeRequest{Add: add, Remove: remove})
	require.NoError(k, err)
	status, text := k.Get("PATCH", "/v1/sessions/"+id, string(body), lanetest.JSONType)
	var changed wire.SessionChanged
	err = k.understand(status, text, &changed)
	return changed.Positions, err
}

// Return makes the next call of Next poll again. Frames sent on a session's stream count
// as acknowledged, so a client that lost some opens a new session.
func (s *subscriber) Return(lost int) {
	s.Helper()
	s.drop()
	s.lose(lost)
	s.ctx, s.leave = context.WithCancel(context.Background())
	if !s.stateless && s.mode == transport.Stream {
		s.closeSession()
		require.NoError(s, s.openSession(s.starts()))
	}
}

// Leave implements transporttest.Subscriber.
func (s *subscriber) Leave() { s.drop() }

func (s *subscriber) drop() {
	s.leave()
	if s.body != nil {
		s.body.Close()
	}
	s.answer = nil
}

// IsAway implements transporttest.Away.
func (s *subscriber) IsAway() bool { return s.stateless && s.isWhole() }

// isWhole reports whether the daemon sends an answer as a whole.
func (s *subscriber) isWhole() bool { return s.mode == transport.Single || s.mode == transport.Batch }

// Leaves implements transporttest.SessionHolder.
func (s *subscriber) Leaves() bool { return s.isWhole() && !s.stateless }

// End implements transporttest.SessionHolder.
func (s *subscriber) End() error {
	if s.stateless {
		return errors.ErrUnsupported
	}
	s.closeSession()
	return nil
}

// Rival implements transporttest.SessionHolder.
func (s *subscriber) Rival() (transporttest.Subscriber, error) {
	if s.stateless {
		return nil, errors.ErrUnsupported
	}
	rival := s.newSubscriber(s.self)
	rival.begin(nil)
	rival.id, rival.got = s.id, s.got
	return rival, nil
}

func (k *kit) endSession(id string) {
	k.Helper()
	k.HTTP.CloseIdleConnections() // a drain may be about to close them
	status, _ := k.Get("DELETE", "/v1/sessions/"+id, "")
	require.Contains(k, []int{http.StatusNoContent, http.StatusGone, http.StatusServiceUnavailable}, status)
}

func (s *subscriber) closeSession() { s.endSession(s.id) }

func (s *subscriber) Close() {
	s.drop()
	if !s.stateless && s.id != "" {
		s.closeSession()
	}
}
