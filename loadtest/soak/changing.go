package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (s *stay) isAdding(topic string) bool {
	return slices.ContainsFunc(s.adding, func(start wire.Start) bool { return start.Topic == topic })
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
	asked := time.Now()
	positions, err := h.patch(ctx, s, request, rng)
	h.mu.Lock()
	defer h.mu.Unlock()
	s.changes = 0
	problem, explained := errors.AsType[*wire.Problem](err)
	switch {
	case h.session != s || ctx.Err() != nil:
	case err == nil:
		h.changedLocked(s, request, positions, asked)
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
	line, err := dial(ctx, h.ports.http.address(), rng)
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
func (h *handworker) changedLocked(s *stay, request wire.ChangeRequest, positions []wire.Position, asked time.Time) {
	h.staged.changes.Add(1)
	for _, topic := range request.Remove {
		h.drop(topic)
		s.left[topic] = true
	}
	h.adoptLocked(request.Add, positions, asked)
	for _, a := range s.pending {
		if t := h.trails[frameOf(a.content).position.Topic]; t != nil {
			t.frame(a.content, a.at)
		}
	}
	s.pending, s.adding = nil, nil
}
