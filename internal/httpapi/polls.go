package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// maxAck is the largest integer that every JSON reader keeps exactly.
const maxAck = 1<<53 - 1

// poll answers a session's poll.
func (a *API) poll(w http.ResponseWriter, r *http.Request, p asker) error {
	s, err := a.sessionOf(r, p)
	if err != nil {
		return err
	}
	q, err := query(r)
	if err != nil {
		return err
	}
	req, err := pollRequest(q, s)
	if err != nil {
		return err
	}
	accepts := acceptsOf(r.Header)
	if req.Format, err = formatOf(q, accepts); err != nil {
		return err
	}
	req.Gzip = accepts.Gzip
	_, err = a.servePoll(w, r, s, req)
	return err
}

// servePoll is where every poll ends up that net/http has read. taken says that
// the lane goes on with it.
func (a *API) servePoll(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request) (taken bool, err error) {
	a.Metrics.HTTPPolls.Inc()
	req.Arrival = arrivalOf(r)
	if a.lane != nil && a.lane.TakePoll(w, r, s, req) {
		return true, nil
	}
	err = a.answerPoll(w, r, s, req)
	if err == nil && req.Mode == transport.Stream && r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // it must not look complete, nor the connection go on
	}
	return false, err
}

// arrivalOf returns when r arrived, and from which client.
func arrivalOf(r *http.Request) session.Arrival {
	a := session.Arrival{Client: (*client)(r)}
	if c := listen.Of(listen.FromContext(r.Context())); c != nil {
		a.At = c.LastRead()
	}
	return a
}

// A client is where a request came from.
type client http.Request

// Left implements session.Client.
func (c *client) Left() bool {
	ctx := (*http.Request)(c).Context()
	conn := listen.Of(listen.FromContext(ctx))
	return ctx.Err() != nil || conn != nil && conn.Left()
}

func pollRequest(q url.Values, s *session.Session) (transport.Request, error) {
	mode, err := modeOf(q)
	if err != nil || !s.Acks() {
		return transport.Request{Mode: mode}, err
	}
	if !q.Has("ack") {
		return transport.Request{}, ackMissing()
	}
	ack, err := number(q, "ack", 0, maxAck, 0)
	return transport.Request{Ack: ack, Mode: mode}, err
}

func ackMissing() *wire.Problem {
	return wire.NewProblem(wire.CodeInvalidRequest,
		`say ack=K, the number of frames you have had (0 at first), or open the session with "ack":false`, "ack is missing")
}

func modeOf(q url.Values) (transport.Mode, error) {
	text, err := one(q, "mode")
	switch {
	case err != nil:
		return "", err
	case text == "":
		return transport.Batch, nil
	case slices.Contains(transport.Modes(), transport.Mode(text)):
		return transport.Mode(text), nil
	}
	return "", wire.NewProblem(wire.CodeInvalidRequest, "use single, batch, multiple or stream", "there is no mode %.40q", text)
}

// pollByQuery is a stateless poll whose topics are in the query.
func (a *API) pollByQuery(w http.ResponseWriter, r *http.Request, p asker) error {
	q, err := query(r)
	if err != nil {
		return err
	}
	topics, err := topicsOf(q)
	if err != nil {
		return err
	}
	return a.pollTopics(w, r, p, q, topics)
}

func topicsOf(q url.Values) ([]wire.Start, error) {
	topics := make([]wire.Start, 0, len(q["topic"]))
	for _, text := range q["topic"] {
		start, err := wire.ParseStart(text)
		if err != nil {
			return nil, unreadable(err)
		}
		topics = append(topics, start)
	}
	return topics, nil
}

// pollByBody is a stateless poll whose topics are in the body, for more of them
// than a URL holds.
func (a *API) pollByBody(w http.ResponseWriter, r *http.Request, p asker) error {
	var body struct {
		Topics []wire.Start `json:"topics"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	q, err := query(r)
	if err != nil {
		return err
	}
	return a.pollTopics(w, r, p, q, body.Topics)
}

// pollTopics serves a stateless poll by a session that lives as long as the
// request.
func (a *API) pollTopics(w http.ResponseWriter, r *http.Request, p asker, q url.Values, topics []wire.Start) error {
	s, req, err := a.openStateless(p, q, topics, acceptsOf(r.Header))
	if err != nil {
		return err
	}
	return a.serveOpened(w, r, s, req)
}

// serveOpened is servePoll in a session that, unless it has an id, is the poll's own.
func (a *API) serveOpened(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request) error {
	ours := s.ID() == ""
	defer func() {
		if ours {
			a.Sessions.End(s)
		}
	}()
	taken, err := a.servePoll(w, r, s, req)
	ours = ours && !taken
	return err
}

func errNoTopic(who string) error {
	return wire.NewProblem(wire.CodeInvalidRequest, "name a topic: ?topic=prices.acme", "%s names no topic", who)
}

// openStateless opens the session of a stateless poll.
func (a *API) openStateless(p asker, q url.Values, topics []wire.Start, accepts lane.Accepts) (*session.Session, transport.Request, error) {
	if len(topics) == 0 {
		return nil, transport.Request{}, errNoTopic("the poll")
	}
	mode, err := modeOf(q)
	if err != nil {
		return nil, transport.Request{}, err
	}
	format, err := formatOf(q, accepts)
	if err != nil {
		return nil, transport.Request{}, err
	}
	if err := a.allowAll(p, topics); err != nil {
		return nil, transport.Request{}, err
	}
	hello, err := truth(q, "hello", false)
	if err != nil {
		return nil, transport.Request{}, err
	}
	except, err := exceptOfQuery(q)
	if err == nil {
		err = paceTopics(q, topics, mode)
	}
	if err != nil {
		return nil, transport.Request{}, err
	}
	s, positions, err := a.Sessions.OpenEphemeral(session.Opening{Topics: topics, Except: except}, time.Now())
	req := transport.Request{Mode: mode, Format: format, Gzip: accepts.Gzip}
	if mode == transport.Stream || hello || slices.ContainsFunc(topics, withoutPosition) {
		req.Hello = &wire.Hello{Positions: positions}
	}
	return s, req, err
}

// withoutPosition reports whether the client must be told where it begins, before
// anything else.
func withoutPosition(start wire.Start) bool { return start.From != wire.FromPosition }
