package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A handworker polls by hand, so that acks, repeats and positions are tested below
// any client library. One goroutine polls; another at most changes the session's
// topics meanwhile.
type handworker struct {
	*member

	pattern string // that it subscribes to besides; empty for none

	mu      sync.Mutex               // guards the fields below, and the member's trails
	told    string                   // the pattern's position; empty before it is known
	evicted bool                     // the pattern had a gap: topics went that were not had
	anew    map[*trail]wire.Position // topics that were had in another epoch, and where they begin in this
	session *stay                    // nil for none
	line    *connection
}

// A stay is a session by hand. The handworker's mu guards it.
type stay struct {
	id      string
	number  int64     // of the reign, when it was opened
	asked   time.Time // when it was asked for
	window  window
	arrived uint64          // the highest ack that surely reached the daemon: its poll was answered
	left    map[string]bool // topics that were removed
	pending []arrived       // frames of topics whose addition is not answered yet
	adding  []wire.Start    // which are these
	changes int             // under way: 0 or 1
}

// arrived is a frame and when it came.
type arrived struct {
	content wire.Content
	at      time.Time
}

func (h *handworker) live(ctx context.Context) {
	defer h.judgePattern(ctx)
	var changes sync.WaitGroup
	defer changes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer h.hangUp()
	starts := h.begin()
	for ctx.Err() == nil && !h.mayLeave() {
		if !h.isCalm() && h.rng.IntN(20) == 0 {
			h.pause()
		}
		if err := h.turn(ctx, starts, &changes); err != nil && ctx.Err() == nil {
			h.hangUp()
			h.judge(err)
			_ = sleep(ctx, time.Duration(50+h.rng.IntN(400))*time.Millisecond)
		}
	}
}

// begin draws what it subscribes to: now and then all topics there are, by a pattern.
func (h *handworker) begin() []wire.Start {
	if h.features.patterns && !h.way.stateless && h.rng.IntN(8) == 0 {
		h.staged.patterns.Add(1)
		h.pattern = strings.SplitAfter(h.ledger.names[0], ".")[0] + "*"
		return nil
	}
	return h.drawStarts(h.rng, 1+h.rng.IntN(4), func(string) bool { return false })
}

// turn is one poll, with what it needs before.
func (h *handworker) turn(ctx context.Context, starts []wire.Start, changes *sync.WaitGroup) error {
	line, err := h.call(ctx)
	if err != nil {
		return err
	}
	if h.way.stateless {
		return h.pollStateless(line, h.resume(starts))
	}
	s, err := h.open(line, starts)
	if err != nil {
		return err
	}
	if !h.isCalm() && h.rng.IntN(8) == 0 {
		h.maybeChange(ctx, s, changes)
	}
	return h.poll(line, s)
}

// call returns the connection, a new one if there is none.
func (h *handworker) call(ctx context.Context) (*connection, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.line == nil {
		line, err := dial(ctx, h.ports.http.address(), h.rng)
		if err != nil {
			return nil, err
		}
		h.line = line
	}
	return h.line, nil
}

// hangUp closes the connection, and with it the poll under way.
func (h *handworker) hangUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.line != nil {
		h.line.close()
		h.line = nil
	}
}

// resume returns where each topic goes on, or begins.
func (h *handworker) resume(starts []wire.Start) []wire.Start {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.trails) == 0 {
		return starts
	}
	resumed := make([]wire.Start, 0, len(h.trails))
	for _, name := range h.ledger.names {
		if t := h.trails[name]; t != nil {
			resumed = append(resumed, wire.StartAfter(t.position()))
		}
	}
	return resumed
}

// open returns the session, a new one if there is none.
func (h *handworker) open(line *connection, starts []wire.Start) (*stay, error) {
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	if s != nil {
		return s, nil
	}
	starts = h.resume(starts)
	number, asked := h.reign.number.Load(), time.Now()
	var answer wire.SessionOpened
	if err := line.call(http.MethodPost, "/v1/sessions", h.opening(starts), http.StatusCreated, &answer); err != nil {
		return nil, err
	}
	h.staged.sessions.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adoptAllLocked(starts, answer.Positions, asked)
	h.session = &stay{id: answer.Session, number: number, asked: asked, left: map[string]bool{}}
	return h.session, nil
}

// opening returns the body that opens a session.
func (h *handworker) opening(starts []wire.Start) map[string]any {
	topics := make([]string, 0, len(starts)+1)
	if h.pattern != "" {
		topics = append(topics, cmp.Or(h.told, h.pattern))
	}
	for _, start := range starts {
		topics = append(topics, start.String())
	}
	body := map[string]any{"topics": topics}
	if h.own != noOwn {
		body["client"], body["echo"] = clientName(h.own), false
	}
	return body
}

// adoptLocked begins the trails of topics that are new, and were asked for then.
func (h *handworker) adoptLocked(starts []wire.Start, positions []wire.Position, asked time.Time) {
	if len(starts) != len(positions) {
		h.fault(Protocol, h.who, "", "asked for %d topics, but got %d positions", len(starts), len(positions))
		return
	}
	for i, p := range positions {
		switch t := h.trails[p.Topic]; {
		case p.Topic != starts[i].Topic:
			h.fault(Protocol, h.who, p.Topic, "asked for %v, but got position %v", starts[i], p)
		case t == nil:
			h.trails[p.Topic] = h.follow(h.who, starts[i], p, h.own, asked)
		case h.beginsAnewLocked(t, p):
		case t.position() != p:
			h.fault(Protocol, h.who, p.Topic, "asked to resume after %v, but got position %v", t.position(), p)
		}
	}
}

// poll is one poll of a session.
func (h *handworker) poll(line *connection, s *stay) error {
	h.mu.Lock()
	k := h.drawAckLocked(s)
	impossible := k < s.window.acked || k > s.window.had()
	if !impossible {
		s.window.ack(k)
	}
	h.mu.Unlock()
	mode := h.way.mode
	if impossible {
		mode = pubsub.Batch // to be told by a status, at once
	}
	resp, err := line.ask(http.MethodGet, fmt.Sprintf("/v1/sessions/%s/poll?ack=%d&mode=%s&r=%d", s.id, k, mode, h.rng.Uint64()), nil)
	if err != nil {
		return h.cut(err)
	}
	defer resp.Body.Close()
	h.staged.polls.Add(1)
	if resp.StatusCode != http.StatusOK {
		return h.refused(resp, s, k, impossible)
	}
	if impossible {
		h.fault(Protocol, h.who, "", "ack=%d was accepted, with %d frames acknowledged before and %d received", k, s.window.acked, s.window.had())
		h.hangUp()
		return h.cut(errNotOurs)
	}
	h.locked(func() { s.arrived = k })
	number := k
	return h.readAnswer(resp, func(c wire.Content) {
		if c.Counts() {
			number++
			h.takeLocked(s, number, c)
		}
		h.movedLocked(c)
	})
}

// movedLocked moves the trails to the positions of a frame that has moved ones.
func (h *handworker) movedLocked(c wire.Content) {
	if c.Moved == nil {
		return
	}
	for _, p := range c.Moved.Positions {
		if t := h.trails[p.Topic]; t != nil {
			t.moved(p, h.ledger.since(time.Now()))
		}
	}
}

// drawAckLocked draws the count to ack: mostly all that are had; at times fewer, as
// if the last answer had been lost; seldom one that must be refused.
func (h *handworker) drawAckLocked(s *stay) uint64 {
	w := &s.window
	if h.isCalm() {
		return w.had()
	}
	switch draw := h.rng.IntN(200); {
	case draw == 0 && s.arrived > 0:
		h.staged.impossibleAck.Add(1)
		return h.rng.Uint64N(s.arrived)
	case draw == 1:
		h.staged.impossibleAck.Add(1)
		return w.had() + 1_000_000
	case draw < 40 && len(w.frames) > 0 && h.way.mode != pubsub.Stream:
		h.staged.earlierAcks.Add(1)
		return w.acked + h.rng.Uint64N(uint64(len(w.frames)))
	}
	return w.had()
}

// pollStateless is one poll without a session.
func (h *handworker) pollStateless(line *connection, starts []wire.Start) error {
	starts = h.maybeOther(starts)
	query := url.Values{"mode": {string(h.way.mode)}}
	for _, start := range starts {
		query.Add("topic", start.String())
	}
	if h.own != noOwn {
		query.Set("client", clientName(h.own))
		query.Set("echo", "false")
	}
	asked := time.Now()
	resp, err := line.ask(http.MethodGet, "/v1/poll?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	h.staged.polls.Add(1)
	if resp.StatusCode != http.StatusOK {
		content, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		return problemOf(resp, content)
	}
	return h.readAnswer(resp, func(c wire.Content) {
		if c.Hello != nil {
			h.adoptLocked(starts, c.Hello.Positions, asked)
		}
		h.movedLocked(c)
		if !c.Counts() {
			return
		}
		topic := frameOf(c).position.Topic
		if t := h.trails[topic]; t != nil {
			t.frame(c, time.Now())
			return
		}
		h.fault(Protocol, h.who, topic, "%v arrived for a topic that was not asked for, or before hello", frameOf(c))
	})
}

// judge finds fault with an error that the daemon does not give, and decides
// whether the session can be gone on with.
func (h *handworker) judge(err error) {
	problem, explained := errors.AsType[*wire.Problem](err)
	switch {
	case isHalfRequest(err):
		h.staged.halfRequests.Add(1)
	case errors.Is(err, errNotOurs):
		h.fault(Protocol, h.who, "", "%v", err)
	}
	if !explained || isHalfRequest(err) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session = nil
	switch problem.Code {
	case wire.CodePollReplaced:
		h.staged.replaced.Add(1)
	case wire.CodeSessionEnded, wire.CodeSessionUnknown, wire.CodeDraining, wire.CodeOverloaded, wire.CodeLimited:
	default:
		h.fault(Protocol, h.who, "", "a poll was refused: %v", problem)
	}
}
