package httpapi

import (
	"bytes"
	"context"
	"iter"
	"net/http"
	"slices"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (a *API) publish(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	h := headOf(r)
	p, err := a.App.BeginPublish(r.Context(), c, h.Topic)
	if err != nil {
		return err
	}
	m, err := request.MessageOf(h)
	if err != nil {
		return err
	}
	body, err := readBody(w, r, p.MostBytes)
	if err != nil {
		return err
	}
	if err := m.SetPayload(body, p.MostBytes); err != nil {
		return err
	}
	published, err := p.Await(m)
	if err != nil {
		return err
	}
	a.Metrics.HTTPPublishes.Inc()
	if to := w.(*response); a.Lane.TakePublish(w, r, published, to.entry) {
		to.entry = nil
		return nil
	}
	return a.writeJSON(w, http.StatusOK, published)
}

func headOf(r *http.Request) request.Head {
	return request.Head{
		Topic: mux.Vars(r)["topic"], Query: r.URL.RawQuery,
		ContentType: request.HeaderOf(r.Header["Content-Type"]), IdempotencyKey: request.HeaderOf(r.Header["Idempotency-Key"]),
	}
}

func (a *API) publishMany(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	m, err := a.App.BeginPublishMany(r.Context(), c)
	if err != nil {
		return err
	}
	form, err := request.ManyFormOf(headOf(r))
	if err != nil {
		return err
	}
	body, err := readBody(w, r, a.App.MostBytes())
	if err != nil {
		return err
	}
	results, err := m.Send(form, body)
	if err != nil {
		return err
	}
	a.Metrics.HTTPPublishesOfMany.Inc()
	long := a.long(w, form.ContentType)
	for part := range form.Answer(results) {
		if err := long.append(part); err != nil {
			return err
		}
	}
	return long.end("")
}

// decoded reads r's body, and decodes it, in turn if it is large.
func decoded[T any](a *API, w http.ResponseWriter, r *http.Request, o *app.Opening, decode func(body []byte, most int) (T, error)) (v T, err error) {
	body, err := readBody(w, r, a.App.MostBytes())
	if err == nil {
		err = o.Decode(len(body), func() (err error) { v, err = decode(body, a.App.MostNamed()); return err })
	}
	return v, err
}

func (a *API) openSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	o, err := a.App.BeginOpen(r.Context(), c, limit.Sessions, app.OfBody)
	if err != nil {
		return err
	}
	asked, err := decoded(a, w, r, &o, request.OpeningOf)
	if err != nil {
		return err
	}
	opened, err := o.Session(asked)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/sessions/"+opened.Session)
	return a.writeJSON(w, http.StatusCreated, opened)
}

func (a *API) changeSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	change, err := a.App.BeginChange(r.Context(), c, mux.Vars(r)["id"])
	if err != nil {
		return err
	}
	asked, err := decoded(a, w, r, &change.Opening, request.ChangeOf)
	if err != nil {
		return err
	}
	changed, err := change.Make(asked)
	if err != nil {
		return err
	}
	return a.writeJSON(w, http.StatusOK, changed)
}

// changeSubject ends the sessions of a principal, or forbids it topics.
func (a *API) changeSubject(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	change, err := a.App.BeginSubject(r.Context(), c)
	if err != nil {
		return err
	}
	asked, err := decoded(a, w, r, &change.Opening, func(body []byte, _ int) (wire.SubjectRequest, error) { return request.SubjectOf(body) })
	if err != nil {
		return err
	}
	changed, err := change.Make(asked)
	if err != nil {
		return err
	}
	return a.writeJSON(w, http.StatusOK, changed)
}

func (a *API) showSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.SessionState(r.Context(), c, mux.Vars(r)["id"], func(s wire.SessionState, subscriptions iter.Seq[wire.SubscriptionState], leave func()) error {
		long := a.longList(w, r, leave)
		patterns := s.Patterns
		s.Patterns, s.Subscriptions = nil, []wire.SubscriptionState{}
		_ = long.append(bytes.TrimSuffix(request.InJSON(s), []byte(`"subscriptions":[]}`)))
		if len(patterns) > 0 {
			long.text(`"patterns":[`)
			list(r.Context(), long, slices.Values(patterns))
			long.text(`],`)
		}
		long.text(`"subscriptions":[`)
		list(r.Context(), long, subscriptions)
		return long.end("]}\n")
	})
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	if err := a.App.CloseSession(r.Context(), c, mux.Vars(r)["id"]); err != nil {
		return err
	}
	return a.writeNothing(w)
}

func (a *API) listTopics(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Topics(r.Context(), c, request.PageOf(r.URL.RawQuery), func(topics iter.Seq[wire.TopicState], next *string, leave func()) error {
		long := a.longList(w, r, leave)
		long.text(`{"topics":[`)
		list(r.Context(), long, topics)
		if long.text("]"); *next != "" {
			long.text(`,"next":`)
			_ = long.append(request.InJSON(*next))
		}
		return long.end("}\n")
	})
}

// topic answers with the state of a topic, which call reads or changes.
func (a *API) topic(call func(ctx context.Context, c app.Caller, topic string, answer func(wire.TopicState) error) error) handler {
	return func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		return call(r.Context(), c, mux.Vars(r)["topic"], func(state wire.TopicState) error {
			return a.writeJSON(w, http.StatusOK, state)
		})
	}
}

func (a *API) showPresence(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Presence(r.Context(), c, mux.Vars(r)["topic"], func(found wire.PresenceList, leave func()) error {
		long := a.longList(w, r, leave)
		members := slices.Values(found.Members)
		found.Members = []wire.ListedMember{}
		_ = long.append(bytes.TrimSuffix(request.InJSON(found), []byte("]}")))
		list(r.Context(), long, members)
		return long.end("]}\n")
	})
}

func (a *API) readTopic(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	accepts := acceptsOf(r)
	h := request.HistoryOf(mux.Vars(r)["topic"], r.URL.RawQuery, accepts)
	return a.App.History(r.Context(), c, h, func(pieces iter.Seq[[]*frame.Frame], leave func()) error {
		return a.sink(w, h.Format, accepts.Gzip).history(r.Context(), pieces, leave)
	})
}

func acceptsOf(r *http.Request) request.Accepts {
	return request.AcceptsOf(r.Header["Accept"], r.Header["Accept-Encoding"])
}

// poll answers a session's poll.
func (a *API) poll(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	p := request.PollOf([]byte(r.URL.RawQuery), acceptsOf(r), &c.Credentials)
	s, req, err := a.App.Poll(r.Context(), c, []byte(mux.Vars(r)["id"]), nil, p)
	if err != nil {
		return err
	}
	return a.servePoll(w, r, s, req)
}

// pollTopics answers a poll without a session. Its topics are in the query, or in the body
// if a URL is too short for them.
func (a *API) pollTopics(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	var p request.TopicPoll
	on := app.OfBody
	if r.Method == http.MethodGet {
		p, on = request.TopicPollOf(r.URL.RawQuery, acceptsOf(r), &c.Credentials), app.OfQuery
	}
	o, err := a.App.BeginOpen(r.Context(), c, limit.Polls, on)
	if err != nil {
		return err
	}
	if on == app.OfBody {
		p, err = decoded(a, w, r, &o, func(body []byte, most int) (request.TopicPoll, error) {
			return request.TopicPollInBody(r.URL.RawQuery, acceptsOf(r), body, most), nil
		})
		if err != nil {
			return err
		}
		if counted, ok := r.Body.(*body); ok {
			counted.over() // it is decoded, and the poll may last
		}
	}
	s, req, err := o.Poll(p)
	if err != nil {
		return err
	}
	return a.servePoll(w, r, s, req)
}

// servePoll answers every poll that net/http has read, or the lane takes over the
// connection and answers. A session without an id ends with its poll.
func (a *API) servePoll(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request) error {
	a.Metrics.HTTPPolls.Inc()
	req.Arrival = arrivalOf(r)
	if to := w.(*response); a.Lane.TakePoll(w, r, s, req, to.entry) {
		to.entry = nil
		return nil
	}
	defer a.App.End(s)
	var answer transport.Answer
	answer.Init(a.Polls, a.sink(w, req.Format, req.Gzip), false)
	if err := answer.Begin(s, req); err != nil {
		return err
	}
	err := answer.Run(r.Context())
	if err == nil && req.Mode == transport.Stream && r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the answer must not look complete, nor the connection be reused
	}
	return err
}

// arrivalOf returns when r arrived, and from which client.
func arrivalOf(r *http.Request) session.Arrival {
	a := session.Arrival{Client: (*client)(r)}
	if c := listen.Of(listen.FromContext(r.Context())); c != nil {
		a.At = c.LastRead()
	}
	return a
}

// A client is the sender of a request.
type client http.Request

// Left implements session.Client.
func (c *client) Left() bool {
	ctx := (*http.Request)(c).Context()
	conn := listen.Of(listen.FromContext(ctx))
	return ctx.Err() != nil || conn != nil && conn.Left()
}
