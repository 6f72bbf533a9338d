package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

const ssePath = "/v1/sse"

// sse answers an EventSource: a stream that its client comes back to with the id of the
// last event it has, as often as it is cut.
func (a *API) sse(w http.ResponseWriter, r *http.Request, p asker) error {
	o, err := readEventStream(r)
	if err != nil {
		return err
	}
	if err := a.allowAll(p, o.Topics); err != nil {
		return err
	}
	s, req, err := a.openEventStream(r.Context(), p, o)
	if session.ClosedByClient(err) {
		// The one status beside errors that an EventSource takes for the end (HTML,
		// section "Processing model").
		a.patience(w)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if err != nil {
		return err
	}
	return a.serveOpened(w, r, s, req)
}

// An eventStream is what an EventSource asks for.
type eventStream struct {
	session.Opening
	had transport.EventID // zero: it is new
}

func readEventStream(r *http.Request) (o eventStream, err error) {
	q, err := query(r)
	if err != nil {
		return o, err
	}
	if o.Topics, err = topicsOf(q); err != nil {
		return o, err
	}
	if len(o.Topics) == 0 {
		return o, errNoTopic("the stream")
	}
	if o.Except, err = exceptOfQuery(q); err != nil {
		return o, err
	}
	if err = paceTopics(q, o.Topics, transport.Stream); err != nil {
		return o, err
	}
	o.had, err = lastEventID(r.Header, q)
	return o, err
}

// lastEventID reads which event a client had last. An EventSource that comes back says
// so in a header; one that a page makes anew cannot, and says it in the query, which it
// goes on to say when it comes back.
func lastEventID(h http.Header, q url.Values) (transport.EventID, error) {
	text, err := one(q, "last_event_id")
	if said := h.Values("Last-Event-ID"); len(said) > 0 && said[0] != "" {
		text, err = one(url.Values{"Last-Event-ID": said}, "Last-Event-ID")
	}
	if err != nil || text == "" {
		return transport.EventID{}, err
	}
	id, err := transport.ParseEventID(text)
	if err != nil {
		return id, wire.NewProblem(wire.CodeInvalidPosition, "say the id of an event of this stream, or nothing", "%v", err)
	}
	return id, nil
}

// openEventStream opens the session of a stream, or finds the one that it goes on with.
func (a *API) openEventStream(ctx context.Context, p asker, o eventStream) (*session.Session, transport.Request, error) {
	req := transport.Request{Mode: transport.Stream, Format: frame.EventStream}
	if o.had.Session != "" {
		s, err := a.session(p, o.had.Session)
		switch {
		case err == nil && s.GoesBackTo(o.had.Count):
			req.Ack, req.Events = o.had.Count, transport.EventsReferringTo(s, o.had.Count)
			return s, req, nil
		case session.ClosedByClient(err):
			return nil, req, err
		}
	}
	resume(o.Topics, o.had)
	if transport.NeedSession(o.Topics) {
		if err := a.Limiter.Admit(limit.Sessions, p.Who); err != nil {
			return nil, req, err
		}
		o.Ack = true
		s, _, err := a.open(ctx, p, o.Opening)
		if err == nil {
			req.Events = transport.EventsReferringTo(s, 0)
		}
		return s, req, err
	}
	s, positions, err := a.Sessions.OpenEphemeral(o.Opening, time.Now())
	if err == nil {
		req.Hello, req.Events = &wire.Hello{Positions: positions}, transport.EventsOf(positions)
	}
	return s, req, err
}

// resume has topics go on after what the client had. Those that its event does not name
// begin as they say; a topic that it names and the request does not is nothing to it.
func resume(topics []wire.Start, had transport.EventID) {
	for i, start := range topics {
		from := start
		switch at := slices.IndexFunc(had.Positions, func(p wire.Position) bool { return p.Topic == start.Topic }); {
		case had.Session != "": // which is gone, or has let go of what followed
			from = wire.StartAfter(wire.Position{Topic: start.Topic, Epoch: noEpoch})
		case at >= 0:
			from = wire.StartAfter(had.Positions[at])
		}
		from.Every = start.Every
		topics[i] = from
	}
}

// noEpoch is one that no daemon has: who comes with it has a gap, restarted, and all
// that is held.
const noEpoch = "0"

// mayComeBack reports whether a client that was refused may be served later, as it
// asks. An EventSource comes back only after an answer of status 200.
func mayComeBack(r *http.Request, p *wire.Problem) bool {
	if r.Method != http.MethodGet || r.URL.Path != ssePath {
		return false
	}
	switch p.Status {
	case http.StatusConflict, http.StatusGone: // its session was another's, or went, this very moment
		return true
	case http.StatusTooManyRequests:
		return true
	}
	return p.Status >= http.StatusInternalServerError
}

// endEventStream tells an EventSource when to come back. It is given its own id again:
// a client that keeps to the standard forgets what it had with any event that has none.
func (a *API) endEventStream(w http.ResponseWriter, r *http.Request, p *wire.Problem) {
	e := frame.Event{RetryMS: frame.EventRetry(p)}
	if q, err := query(r); err == nil {
		if had, err := lastEventID(r.Header, q); err == nil {
			e.ID = had.Append(nil)
		}
	}
	w.Header().Set("Content-Type", frame.EventStream.ContentType())
	a.writeWhole(w, http.StatusOK, e.AppendEnd(nil, p))
}
