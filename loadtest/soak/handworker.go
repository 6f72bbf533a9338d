package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
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

	mu      sync.Mutex // guards the fields below, and the member's trails
	told    string     // the pattern's position; empty before it is known
	session *stay      // nil for none
	line    *connection
}

// A stay is a session by hand. The handworker's mu guards it.
type stay struct {
	id      string
	number  int64 // of the reign, when it was opened
	window  window
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

// judgePattern finds fault with topics of the pattern of which nothing ever came. It
// is for the end, when every trail that there is has everything.
func (h *handworker) judgePattern(ctx context.Context) {
	if h.told == "" || ctx.Err() == nil || !h.settled.Load() {
		return
	}
	now, epoch := h.ledger.since(time.Now()), h.ledger.epoch(h.reign.epoch)
	for topic, name := range h.ledger.names {
		if h.trails[name] == nil && h.ledger.has(topic, epoch, now-joinMS) {
			h.fault(Loss, h.who, name, "nothing came of a topic that the pattern %s matches", h.pattern)
		}
	}
}

// joinMS is how long a topic may take at the end to reach who follows its pattern:
// the others are known to have everything, this one not to be there at all.
const joinMS = 5000

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
		line, err := dial(ctx, h.proxy.address(), h.rng)
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
	number := h.reign.number.Load()
	var answer wire.SessionOpened
	if err := line.call(http.MethodPost, "/v1/sessions", h.opening(starts), http.StatusCreated, &answer); err != nil {
		return nil, err
	}
	h.staged.sessions.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adoptAllLocked(starts, answer.Positions)
	h.session = &stay{id: answer.Session, number: number, left: map[string]bool{}}
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

// adoptAllLocked takes over the positions of a new session: the pattern's, if there
// is one, those asked for, and those of other topics that the pattern matches.
func (h *handworker) adoptAllLocked(starts []wire.Start, positions []wire.Position) {
	if h.pattern == "" {
		h.adoptLocked(starts, positions)
		return
	}
	if len(positions) < 1+len(starts) || positions[0].Topic != h.pattern {
		h.fault(Protocol, h.who, h.pattern, "asked for the pattern and %d topics, and was told %v", len(starts), positions)
		return
	}
	first := h.told == ""
	h.told = positions[0].String()
	rest := positions[1+len(starts):]
	h.adoptLocked(starts, positions[1:1+len(starts)])
	for _, p := range rest {
		start := wire.StartAfter(p)
		if first {
			start = wire.Start{Topic: p.Topic}
		}
		h.adoptLocked([]wire.Start{start}, []wire.Position{p})
	}
}

// joinedLocked begins the trail of a topic that the pattern matches and that was made
// later: with its first message, so from the beginning of its epoch.
func (h *handworker) joinedLocked(f frame) *trail {
	if h.pattern == "" || !strings.HasPrefix(f.position.Topic, strings.TrimSuffix(h.pattern, "*")) {
		return nil
	}
	begin := wire.Position{Topic: f.position.Topic, Epoch: f.position.Epoch}
	if f.gap != "" {
		begin.Epoch = f.after.Epoch
	}
	h.trails[begin.Topic] = h.follow(h.who, wire.StartAfter(begin), begin, h.own)
	return h.trails[begin.Topic]
}

// adoptLocked begins the trails of topics that are new.
func (h *handworker) adoptLocked(starts []wire.Start, positions []wire.Position) {
	if len(starts) != len(positions) {
		h.fault(Protocol, h.who, "", "asked for %d topics, and was told %d positions", len(starts), len(positions))
		return
	}
	for i, p := range positions {
		switch t := h.trails[p.Topic]; {
		case p.Topic != starts[i].Topic:
			h.fault(Protocol, h.who, p.Topic, "asked for %v, and was told %v", starts[i], p)
		case t == nil:
			h.trails[p.Topic] = h.follow(h.who, starts[i], p, h.own)
		case t.position() != p:
			h.fault(Protocol, h.who, p.Topic, "asked to go on after %v, and was told %v", t.position(), p)
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
		h.fault(Protocol, h.who, "", "ack=%d was taken, with %d frames acked before and %d had", k, s.window.acked, s.window.had())
		h.hangUp()
		return h.cut(errNotOurs)
	}
	number := k
	return h.readAnswer(resp, func(c wire.Content) {
		if c.Counts() {
			number++
			h.takeLocked(s, number, c)
		}
	})
}

// drawAckLocked draws the count to ack: mostly all that are had; at times fewer, as
// if the last answer had been lost; seldom one that must be refused.
func (h *handworker) drawAckLocked(s *stay) uint64 {
	w := &s.window
	if h.isCalm() {
		return w.had()
	}
	switch draw := h.rng.IntN(200); {
	case draw == 0 && w.acked > 0:
		h.staged.impossibleAck.Add(1)
		return h.rng.Uint64N(w.acked)
	case draw == 1:
		h.staged.impossibleAck.Add(1)
		return w.had() + 1_000_000
	case draw < 40 && len(w.frames) > 0 && h.way.mode != pubsub.Stream:
		h.staged.earlierAcks.Add(1)
		return w.acked + h.rng.Uint64N(uint64(len(w.frames)))
	}
	return w.had()
}

// refused reads a problem. One that was asked for is none.
func (h *handworker) refused(resp *http.Response, s *stay, k uint64, impossible bool) error {
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	err = problemOf(resp, content)
	problem, _ := errors.AsType[*wire.Problem](err)
	switch {
	case impossible && problem != nil && (problem.Code == wire.CodeStaleAck && k < s.window.acked || problem.Code == wire.CodeAckBeyondSent && k > s.window.had()):
		return nil
	case problem != nil && (problem.Code == wire.CodeSessionEnded || problem.Code == wire.CodeSessionUnknown) && s.number == h.reign.number.Load():
		h.fault(Protocol, h.who, "", "the session was lost without a restart: %v", problem)
	}
	return err
}

// readAnswer reads an answer's frames to its end. Those that came whole count.
func (h *handworker) readAnswer(resp *http.Response, takeLocked func(wire.Content)) error {
	frames := wire.NewDecoder(resp.Body)
	leave := time.Now().Add(time.Duration(2+h.rng.IntN(20)) * time.Second)
	for {
		c, err := frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return h.properEnd()
		case err != nil:
			h.staged.cutAnswers.Add(1)
			return h.cut(err)
		case c.End != nil:
			return c.End
		}
		h.locked(func() { takeLocked(c) })
		if h.isCalm() || h.way.mode != pubsub.Stream && h.way.mode != pubsub.Multiple {
			continue
		}
		if h.rng.IntN(100) == 0 {
			h.pause() // in the middle of an answer
		}
		if h.way.mode == pubsub.Stream && (time.Now().After(leave) || h.mayLeave()) {
			h.hangUp() // or the body's Close would read on to its end
			return h.cut(errLeft)
		}
	}
}

// locked calls do with the lock, which even a panic gives back: or it would not be
// seen.
func (h *handworker) locked(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
}

// errLeft is a stream that we closed.
var errLeft = errors.New("the stream was left")

// properEnd judges an answer that ended as answers do: a stream does not, by itself.
func (h *handworker) properEnd() error {
	if h.way.mode == pubsub.Stream {
		h.staged.cutAnswers.Add(1)
		return h.cut(io.ErrUnexpectedEOF)
	}
	return nil
}

// cut gives a session's stream up, whose frames count as acked when they are written,
// and a session that makes no sense.
func (h *handworker) cut(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.way.mode == pubsub.Stream || errors.Is(err, errNotOurs) {
		h.session = nil
	}
	return err
}

// takeLocked takes frame number n of a session.
func (h *handworker) takeLocked(s *stay, n uint64, c wire.Content) {
	f := frameOf(c)
	arrival, err := s.window.take(n, f)
	if err != nil {
		h.fault(Repeat, h.who, f.position.Topic, "%v", err)
		return
	}
	t := h.trails[f.position.Topic]
	if t == nil {
		t = h.joinedLocked(f)
	}
	switch {
	case arrival != isNew:
		h.repeatedLocked(t, arrival, c)
	case t != nil:
		t.frame(c, time.Now())
	case s.isAdding(f.position.Topic):
		s.pending = append(s.pending, arrived{c, time.Now()})
	case !s.left[f.position.Topic]:
		h.fault(Protocol, h.who, f.position.Topic, "%v, of a topic that is not subscribed to", f)
	}
}

func (h *handworker) repeatedLocked(t *trail, a arrival, c wire.Content) {
	h.staged.repeats.Add(1)
	switch {
	case c.Message != nil:
		h.ledger.delivered(h.who, c.Message)
	case a == gone:
		h.staged.became.Add(1)
		if t != nil {
			t.became(c.Gap, time.Now())
		}
	}
}

func (s *stay) isAdding(topic string) bool {
	return slices.ContainsFunc(s.adding, func(start wire.Start) bool { return start.Topic == topic })
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
			h.adoptLocked(starts, c.Hello.Positions)
		}
		if !c.Counts() {
			return
		}
		topic := frameOf(c).position.Topic
		if t := h.trails[topic]; t != nil {
			t.frame(c, time.Now())
			return
		}
		h.fault(Protocol, h.who, topic, "%v, of a topic that was not asked for, or before hello", frameOf(c))
	})
}

// maybeOther asks for a topic more or less than before, now and then.
func (h *handworker) maybeOther(starts []wire.Start) []wire.Start {
	if h.isCalm() || h.rng.IntN(20) != 0 {
		return starts
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.staged.changes.Add(1)
	if len(starts) > 1 && h.rng.IntN(2) == 0 {
		h.drop(starts[0].Topic)
		return starts[1:]
	}
	if len(starts) >= mostTopicsEach {
		return starts
	}
	named := func(topic string) bool {
		return slices.ContainsFunc(starts, func(s wire.Start) bool { return s.Topic == topic })
	}
	return slices.Concat(starts, h.drawStarts(h.rng, 1, named))
}

func (h *handworker) hasLocked(topic string) bool { return h.trails[topic] != nil }

// maybeChange changes the session's topics in a while, when the poll is parked,
// over a connection of its own.
func (h *handworker) maybeChange(ctx context.Context, s *stay, changes *sync.WaitGroup) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.changes > 0 || h.pattern != "" {
		return
	}
	request := wire.ChangeRequest{Add: h.drawStarts(h.rng, h.rng.IntN(3), func(topic string) bool { return h.hasLocked(topic) || s.left[topic] })}
	if len(h.trails) > 1 && (h.rng.IntN(2) == 0 || len(h.trails)+len(request.Add) > mostTopicsEach) {
		request.Remove = []string{h.anyLocked()}
	}
	s.changes, s.adding = 1, request.Add
	rng := rand.New(rand.NewPCG(h.rng.Uint64(), h.rng.Uint64()))
	changes.Go(func() { h.change(ctx, s, request, rng) })
}

// anyLocked draws one of the topics that are subscribed to.
func (h *handworker) anyLocked() (topic string) {
	n := h.rng.IntN(len(h.trails))
	for _, name := range h.ledger.names {
		if h.trails[name] == nil {
			continue
		}
		if n--; n < 0 {
			return name
		}
	}
	panic("BUG: a trail is of no topic")
}

func (h *handworker) change(ctx context.Context, s *stay, request wire.ChangeRequest, rng *rand.Rand) {
	_ = sleep(ctx, time.Duration(rng.IntN(1500))*time.Millisecond)
	positions, err := h.patch(ctx, s, request, rng)
	h.mu.Lock()
	defer h.mu.Unlock()
	s.changes = 0
	problem, explained := errors.AsType[*wire.Problem](err)
	switch {
	case h.session != s || ctx.Err() != nil:
	case err == nil:
		h.changedLocked(s, request, positions)
	case explained && problem.Status == http.StatusBadRequest && !isHalfRequest(err):
		h.fault(Protocol, h.who, "", "a change was refused: %v", problem)
	default:
		h.staged.uncertain.Add(1)
		h.session = nil // it may have been made, or not
		if h.line != nil {
			h.line.close()
		}
	}
}

func (h *handworker) patch(ctx context.Context, s *stay, request wire.ChangeRequest, rng *rand.Rand) ([]wire.Position, error) {
	line, err := dial(ctx, h.proxy.address(), rng)
	if err != nil {
		return nil, err
	}
	defer line.close()
	var answer wire.SessionChanged
	err = line.call(http.MethodPatch, "/v1/sessions/"+s.id, request, http.StatusOK, &answer)
	return answer.Positions, err
}

// changedLocked takes over what the daemon has changed, and the frames that came
// before it said so.
func (h *handworker) changedLocked(s *stay, request wire.ChangeRequest, positions []wire.Position) {
	h.staged.changes.Add(1)
	for _, topic := range request.Remove {
		h.drop(topic)
		s.left[topic] = true
	}
	h.adoptLocked(request.Add, positions)
	for _, a := range s.pending {
		if t := h.trails[frameOf(a.content).position.Topic]; t != nil {
			t.frame(a.content, a.at)
		}
	}
	s.pending, s.adding = nil, nil
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
