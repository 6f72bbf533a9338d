package pubsub

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maxQueryBytes is the longest query that a stateless poll is sent with; a longer
// one goes in a body. Proxies take less in a request line than the daemon does.
const maxQueryBytes = 2000

// A stateless stay is polls that name all positions, and nothing between them. It
// is the loop's alone.
type stateless struct {
	client    *Client
	transport Transport
	mode      Mode
	encoding  encoding
	except    string  // the client whose messages are left out
	first     *answer // the poll that opened it, of which the hello has been read
}

// openStateless asks for the positions of starts, if there is one to ask for. The
// poll that tells them is the first poll, and lives on for as long as life.
func openStateless(life, ctx context.Context, c *Client, o subscribeOptions, starts []wire.Start, limits wire.Limits) (*stateless, opened, error) {
	s := &stateless{client: c, transport: o.transport, mode: o.mode, encoding: o.encoding(), except: o.except}
	patterned := slices.ContainsFunc(starts, func(start wire.Start) bool { return wire.IsPattern(start.Topic) })
	if positions, all := positionsOf(starts); all && o.mode != Stream && !patterned {
		return s, opened{positions: positions}, nil
	}
	a, err := s.ask(life, starts, limits, true)
	if err != nil {
		return nil, opened{}, err
	}
	hello, err := awaitHello(ctx, a)
	if err == nil {
		err = checkPositions(http.StatusOK, starts, hello.Positions)
	}
	if err != nil {
		a.stop()
		return nil, opened{}, err
	}
	a.useful = true
	s.first = a
	return s, opened{positions: hello.Positions, limits: hello.Limits}, nil
}

// positionsOf returns the positions of starts, and whether all have one.
func positionsOf(starts []wire.Start) ([]wire.Position, bool) {
	positions := make([]wire.Position, len(starts))
	for i, start := range starts {
		if start.From != wire.FromPosition {
			return nil, false
		}
		positions[i] = start.Position()
	}
	return positions, true
}

func awaitHello(ctx context.Context, a *answer) (*wire.Hello, error) {
	select {
	case content, open := <-a.contents:
		switch {
		case !open && a.err != nil:
			return nil, a.err
		case !open, content.Hello == nil:
			return nil, unexpected(a.status, "without a hello frame")
		}
		return content.Hello, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *stateless) poll(life context.Context, starts []wire.Start, limits wire.Limits) (*answer, error) {
	if first := s.first; first != nil {
		s.first = nil
		return first, nil
	}
	return s.ask(life, starts, limits, false)
}

// ask polls. With hello, the answer begins with the positions that there are.
func (s *stateless) ask(life context.Context, starts []wire.Start, limits wire.Limits, hello bool) (*answer, error) {
	if s.transport == SSE {
		return s.askForEvents(life, starts, limits)
	}
	req, err := s.request(life, starts, hello)
	if err != nil {
		return nil, err
	}
	return s.client.ask(life, s.client.send, req, s.mode, s.encoding, limits), nil
}

func (s *stateless) request(ctx context.Context, starts []wire.Start, hello bool) (*http.Request, error) {
	query := url.Values{
		"mode": {string(s.mode)},
		"r":    {strconv.FormatUint(rand.Uint64(), 36)}, // against caches, as a session's poll
	}
	if hello {
		query.Set("hello", "true")
	}
	leaveOut(query, s.except)
	long, paced := maps.Clone(query), false
	for _, start := range starts {
		long.Add("topic", start.String())
		paced = paced || start.Every > 0
	}
	if !paced && len(long.Encode()) <= maxQueryBytes {
		return s.client.request(ctx, http.MethodGet, "v1/poll", long, nil)
	}
	body, err := json.Marshal(wire.OpenRequest{Topics: starts})
	if err != nil {
		return nil, err
	}
	req, err := s.client.request(ctx, http.MethodPost, "v1/poll", query, body)
	if err == nil {
		req.Header.Set("Content-Type", jsonType)
	}
	return req, err
}

// leaveOut asks not to be sent what a client has published, if one is named.
func leaveOut(query url.Values, client string) {
	if client != "" {
		query["client"], query["echo"] = []string{client}, []string{"false"}
	}
}

func (s *stateless) counted() {}

func (s *stateless) canPatch(edit) bool { return false }

func (s *stateless) patch(context.Context, edit, func(wire.Content) error) ([]wire.Position, error) {
	panic("BUG: there is nothing to patch without a session")
}

// authenticate does nothing: each poll has the token of its time.
func (s *stateless) authenticate(context.Context, string, func(wire.Content) error) (time.Duration, error) {
	return 0, nil
}

// lost and cut are seldom so: the next poll names our positions, like any. But the
// daemon may have ended this one for a topic that it fell behind on.
func (s *stateless) lost(err error) bool { return hasCode(err, wire.CodeSessionEnded) }
func (s *stateless) cut(err error) bool  { return s.lost(err) }

func (s *stateless) leave(context.Context) {
	if s.first != nil {
		s.first.stop()
	}
}
