package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/internal/transport/transporttest"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func TestEveryModeOfAnsweringTellsTheSame(t *testing.T) {
	for _, mode := range transport.Modes() {
		t.Run("session "+string(mode), func(t *testing.T) { suite(t, mode, false) })
		t.Run("stateless "+string(mode), func(t *testing.T) { suite(t, mode, true) })
	}
	for _, ids := range []idKind{ofOneTopic, ofSeveral, referring} {
		t.Run("SSE by "+string(ids), func(t *testing.T) { sseSuite(t, ids, 0) })
		t.Run("SSE cut often, by "+string(ids), func(t *testing.T) { sseSuite(t, ids, 3) })
	}
}

// sseSuite has each subscriber come back after so many events; but not who is slow,
// for what was sent and is not held any more would be a gap again and again.
func sseSuite(t *testing.T, ids idKind, every int) {
	transporttest.Run(t, func(t *testing.T, b transporttest.Bounds) transporttest.System {
		k := newKit(t, settings{
			broker:  broker.Config{HistoryMessages: b.HistoryMessages, HistoryAge: b.HistoryAge},
			session: session.Config{Queue: b.Queue},
		})
		if b.Queue > 0 {
			every = 0
		}
		return &sseSystem{system: system{kit: k}, ids: ids, every: every}
	})
}

func suite(t *testing.T, mode transport.Mode, stateless bool) {
	transporttest.Run(t, func(t *testing.T, b transporttest.Bounds) transporttest.System {
		k := newKit(t, settings{
			broker:  broker.Config{HistoryMessages: b.HistoryMessages, HistoryAge: b.HistoryAge},
			session: session.Config{Queue: b.Queue},
		})
		return &system{kit: k, mode: mode, stateless: stateless}
	})
}

// system implements transporttest.System over HTTP.
type system struct {
	*kit
	mode      transport.Mode
	stateless bool
}

func (s *system) Publish(topic, mediaType, data string, ttl time.Duration) wire.Position {
	s.Helper()
	path := "/v1/topics/" + topic + "/messages"
	if ttl > 0 {
		path += "?ttl=" + strconv.Itoa(int(ttl/time.Second))
	}
	if mediaType == "" {
		mediaType = "application/json"
	}
	status, body := s.get("POST", path, data, "Content-Type: "+mediaType)
	require.Equal(s, http.StatusOK, status, body)
	var p wire.Published
	require.NoError(s, json.Unmarshal([]byte(body), &p))
	return p.Position
}

func (s *system) Drain() {
	s.cfg.Sessions.Drain(wire.NewProblem(wire.CodeDraining, "", ""))
}

func (s *system) Subscribe(topics ...wire.Start) transporttest.Subscriber {
	s.Helper()
	sub := &subscriber{system: s, at: map[string]wire.Start{}}
	sub.ctx, sub.leave = context.WithCancel(context.Background())
	if s.stateless {
		for _, start := range topics {
			sub.at[start.Topic] = start
		}
		sub.learnPositions()
		return sub
	}
	sub.openSession(topics)
	return sub
}

// subscriber is the simplest client that keeps the protocol's promises.
type subscriber struct {
	*system
	ctx    context.Context // of its polls; it lives as long as the subscriber
	leave  context.CancelFunc
	id     string                // of its session
	got    uint64                // frames of the session that it has
	at     map[string]wire.Start // where each topic goes on
	answer *wire.Decoder         // of the answer that is being read
	body   io.Closer
}

func (s *subscriber) openSession(topics []wire.Start) {
	s.Helper()
	body, err := json.Marshal(wire.OpenRequest{Topics: topics})
	require.NoError(s, err)
	opened := s.open(string(body))
	s.id, s.got = opened.Session, 0
	for _, p := range opened.Positions {
		s.at[p.Topic] = wire.StartAfter(p)
	}
}

// learnPositions polls once if a topic has no position: now means now.
func (s *subscriber) learnPositions() {
	for _, start := range s.at {
		if start.From != wire.FromPosition {
			require.NoError(s, s.poll())
			c, err := s.answer.Next()
			require.NoError(s, err)
			require.NotNil(s, c.Hello)
			s.learn(c)
			return
		}
	}
}

func (s *subscriber) learn(c wire.Content) {
	if c.Hello != nil {
		for _, p := range c.Hello.Positions {
			s.at[p.Topic] = wire.StartAfter(p)
		}
	}
	if c.Counts() {
		p := position(c)
		s.at[p.Topic] = wire.StartAfter(p)
		s.got++
	}
}

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
		}
		s.learn(c)
		if c.Counts() {
			return c, nil
		}
	}
}

func (s *subscriber) poll() error {
	r, err := http.NewRequestWithContext(s.ctx, "GET", "http://pubsubd"+s.path(), nil)
	require.NoError(s, err)
	resp, err := s.client.Do(r)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var p wire.Problem
		require.NoError(s, json.NewDecoder(resp.Body).Decode(&p))
		return &p
	}
	s.answer, s.body = wire.NewDecoder(resp.Body), resp.Body
	return nil
}

func (s *subscriber) path() string {
	q := url.Values{"mode": {string(s.mode)}}
	if !s.stateless {
		q.Set("ack", strconv.FormatUint(s.got, 10))
		return "/v1/sessions/" + s.id + "/poll?" + q.Encode()
	}
	for _, start := range s.at {
		q.Add("topic", start.String())
	}
	return "/v1/poll?" + q.Encode()
}

func (s *subscriber) Change(add []wire.Start, remove []string) bool {
	if s.stateless {
		return false
	}
	body, err := json.Marshal(wire.ChangeRequest{Add: add, Remove: remove})
	require.NoError(s, err)
	status, text := s.get("PATCH", "/v1/sessions/"+s.id, string(body), jsonType)
	require.Equal(s, http.StatusOK, status, text)
	return true
}

func (s *subscriber) Close() {
	s.leave()
	if s.body != nil {
		s.body.Close()
	}
	if !s.stateless {
		status, _ := s.get("DELETE", "/v1/sessions/"+s.id, "")
		require.Contains(s, []int{http.StatusNoContent, http.StatusGone, http.StatusServiceUnavailable}, status)
	}
}
