package pubsub

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A session is a stay that the daemon keeps: its subscriptions, and the frames
// sent until they are acked. It is the loop's alone.
type session struct {
	client   *Client
	mode     Mode
	encoding encoding
	path     string // /v1/sessions/{id}, escaped; the id is a capability, never to be shown
	frames   uint64 // messages and gaps that arrived whole; the ack of the next poll
	had      hadTopics
	first    *answer // the poll that its opening waited for, of which the hello has been read
}

// lostCodes are the problems after which a session is opened anew.
var lostCodes = []wire.Code{
	wire.CodeStaleAck,
	wire.CodeAckBeyondSent,
	wire.CodeSessionEnded,
	wire.CodeSessionUnknown,
	wire.CodePollReplaced,
	wire.CodeDraining,
}

// uncertainError wraps the error of a PATCH that may have been carried out: the
// session can be trusted no longer to have the topics that we think it has.
type uncertainError struct{ error }

func (e *uncertainError) Unwrap() error { return e.error }

func isUncertain(err error) bool {
	uncertain := (*uncertainError)(nil)
	return errors.As(err, &uncertain)
}

// openSession opens a session. With proof its first poll, a stream that lives as long
// as life, must say something before ctx ends.
func openSession(life, ctx context.Context, c *Client, o subscribeOptions, starts []wire.Start, proof bool) (*session, opened, error) {
	var answer wire.SessionOpened
	if err := c.call(ctx, http.MethodPost, "v1/sessions", openRequest(o, starts), http.StatusCreated, &answer); err != nil {
		return nil, opened{}, err
	}
	if err := checkPositions(http.StatusCreated, starts, answer.Positions); err != nil {
		return nil, opened{}, err
	}
	if answer.Session == "" {
		return nil, opened{}, unexpected(http.StatusCreated, "without a session")
	}
	s := &session{client: c, mode: o.mode, encoding: o.encoding(), path: "v1/sessions/" + url.PathEscape(answer.Session), had: hadTopics{}}
	s.had.remember(starts)
	if proof {
		if err := s.prove(life, ctx, answer.Limits); err != nil {
			s.leave(life)
			return nil, opened{}, err
		}
	}
	return s, opened{answer.Positions, &answer.Limits, answer.ExpiresMS}, nil
}

func openRequest(o subscribeOptions, starts []wire.Start) wire.OpenRequest {
	request := wire.OpenRequest{Topics: starts}
	if o.except != "" {
		request.Client, request.Echo = &o.except, new(bool) // false
	}
	return request
}

// prove makes the first poll, and waits until it says something: what stands between
// may keep a stream back.
func (s *session) prove(life, ctx context.Context, limits wire.Limits) error {
	first, err := s.ask(life, believe(limits))
	if err != nil {
		return err
	}
	if _, err := awaitHello(ctx, first); err != nil {
		first.stop()
		return err
	}
	s.first = first
	return nil
}

func (s *session) poll(life context.Context, _ []wire.Start, limits wire.Limits) (*answer, error) {
	if first := s.first; first != nil {
		s.first = nil
		return first, nil
	}
	return s.ask(life, limits)
}

// ask polls. It acks all frames that came whole; the daemon sends the rest again. The
// random member keeps a cache between from making one poll wait for another's answer. A poll
// that is refused is not sent with a new token: the session has to get that first.
func (s *session) ask(life context.Context, limits wire.Limits) (*answer, error) {
	query := url.Values{
		"ack":  {strconv.FormatUint(s.frames, 10)},
		"mode": {string(s.mode)},
		"r":    {strconv.FormatUint(rand.Uint64(), 36)},
	}
	req, err := s.client.request(life, http.MethodGet, s.path+"/poll", query, nil)
	if err != nil {
		return nil, err
	}
	return s.client.ask(life, s.client.sendOnce, req, s.mode, s.encoding, limits), nil
}

func (s *session) counted() { s.frames++ }

func (s *session) canPatch(e edit) bool { return s.had.permit(e) }

func (s *session) patch(ctx context.Context, e edit, _ func(wire.Content) error) ([]wire.Position, error) {
	var answer wire.SessionChanged
	request := wire.ChangeRequest{Add: e.add, Remove: e.remove}
	err := s.client.call(ctx, http.MethodPatch, s.path, request, http.StatusOK, &answer)
	if err == nil {
		err = checkPositions(http.StatusOK, e.add, answer.Positions)
	}
	switch {
	case err != nil && mayBeDone(err):
		return nil, &uncertainError{err}
	case err != nil:
		return nil, err
	}
	s.had.remember(e.add)
	return answer.Positions, nil
}

// authenticate changes nothing but the token: every PATCH renews the session.
func (s *session) authenticate(ctx context.Context, _ string, _ func(wire.Content) error) (time.Duration, error) {
	var answer wire.SessionChanged
	err := s.client.call(ctx, http.MethodPatch, s.path, wire.ChangeRequest{}, http.StatusOK, &answer)
	return time.Duration(answer.ExpiresMS) * time.Millisecond, err
}

// mayBeDone reports whether a request that failed with err may have been carried
// out: there was no answer of the daemon, or one of 5xx. Only its own 503 is certain; a
// proxy says that too of an answer which was lost behind it.
func mayBeDone(err error) bool {
	p := (*wire.Problem)(nil)
	return !errors.As(err, &p) || p.Status >= 500 && p.Status != http.StatusServiceUnavailable
}

func (s *session) lost(err error) bool {
	return isUncertain(err) || errors.Is(err, errRepeated) || hasCode(err, lostCodes...)
}

// cut reports whether err ends the session for us. The daemon has counted as acked
// what it wrote to a stream, so a broken one is not gone on with.
func (s *session) cut(err error) bool {
	return s.lost(err) || mayPass(err) && s.mode == Stream
}

// leave ends the session on the daemon. An error is of no use to anybody: the
// daemon ends the session by itself when no poll comes.
func (s *session) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	_ = s.client.call(ctx, http.MethodDelete, s.path, nil, http.StatusNoContent, nil)
}
