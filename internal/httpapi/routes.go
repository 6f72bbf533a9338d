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
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/presence"
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
	m, err := app.MessageOf(h)
	if err != nil {
		return err
	}
	most := a.App.Limits().MessageBytes
	body, err := bodyOf(w, r)(most)
	if err != nil {
		return err
	}
	if err := m.SetPayload(body, most); err != nil {
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

func headOf(r *http.Request) app.Head {
	return app.Head{
		Topic: mux.Vars(r)["topic"], Query: r.URL.RawQuery,
		ContentType: app.HeaderOf(r.Header["Content-Type"]), IdempotencyKey: app.HeaderOf(r.Header["Idempotency-Key"]),
	}
}

func (a *API) publishMany(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.PublishMany(r.Context(), c, headOf(r), bodyOf(w, r), func(contentType string, parts iter.Seq[[]byte]) error {
		a.Metrics.HTTPPublishesOfMany.Inc()
		long := a.long(w, contentType)
		for part := range parts {
			if err := long.append(part); err != nil {
				return err
			}
		}
		return long.end()
	})
}

func (a *API) openSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	opened, err := a.App.OpenSession(r.Context(), c, bodyOf(w, r))
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/sessions/"+opened.Session)
	return a.writeJSON(w, http.StatusCreated, opened)
}

func (a *API) changeSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.ChangeSession(r.Context(), c, mux.Vars(r)["id"], bodyOf(w, r), func(changed wire.SessionChanged) error {
		return a.writeJSON(w, http.StatusOK, changed)
	})
}

func (a *API) showSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.SessionState(r.Context(), c, mux.Vars(r)["id"], func(s wire.SessionState, subscriptions iter.Seq[wire.SubscriptionState], leave func()) error {
		long := a.longList(w, r, leave)
		patterns := s.Patterns
		s.Patterns, s.Subscriptions = nil, []wire.SubscriptionState{}
		_ = long.append(bytes.TrimSuffix(app.InJSON(s), []byte(`"subscriptions":[]}`)))
		if len(patterns) > 0 {
			long.text(`"patterns":[`)
			list(r.Context(), long, slices.Values(patterns))
			long.text(`],`)
		}
		long.text(`"subscriptions":[`)
		list(r.Context(), long, subscriptions)
		long.text("]}\n")
		return long.end()
	})
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	if err := a.App.CloseSession(r.Context(), c, mux.Vars(r)["id"]); err != nil {
		return err
	}
	return a.writeNothing(w)
}

func (a *API) listTopics(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Topics(r.Context(), c, r.URL.RawQuery, func(topics iter.Seq[wire.TopicState], next *string, leave func()) error {
		long := a.longList(w, r, leave)
		long.text(`{"topics":[`)
		list(r.Context(), long, topics)
		if long.text("]"); *next != "" {
			long.text(`,"next":`)
			long.value(*next)
		}
		long.text("}\n")
		return long.end()
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
	return a.App.Presence(r.Context(), c, mux.Vars(r)["topic"], func(found presence.List, leave func()) error {
		long := a.longList(w, r, leave)
		members := slices.Values(found.Members)
		found.Members = []presence.ListedMember{}
		_ = long.append(bytes.TrimSuffix(app.InJSON(found), []byte("]}")))
		list(r.Context(), long, members)
		long.text("]}\n")
		return long.end()
	})
}

func (a *API) readTopic(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	accepts := acceptsOf(r)
	return a.App.History(r.Context(), c, mux.Vars(r)["topic"], r.URL.RawQuery, accepts, func(pieces iter.Seq[[]*frame.Frame], format frame.Format, leave func()) error {
		return a.sink(w, format, accepts.Gzip).history(r.Context(), pieces, leave)
	})
}

func acceptsOf(r *http.Request) app.Accepts {
	return app.AcceptsOf(r.Header["Accept"], r.Header["Accept-Encoding"])
}

// poll answers a session's poll.
func (a *API) poll(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	s, req, err := a.App.Poll(r.Context(), c, app.Poll{Session: []byte(mux.Vars(r)["id"]), Query: []byte(r.URL.RawQuery), Accepts: acceptsOf(r)})
	if err != nil {
		return err
	}
	return a.servePoll(w, r, s, req)
}

// pollTopics answers a poll without a session. Its topics are in the query, or in the body
// if a URL is too short for them.
func (a *API) pollTopics(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	p := app.TopicPoll{Query: r.URL.RawQuery, Accepts: acceptsOf(r)}
	if r.Method == http.MethodPost {
		p.Body = bodyOf(w, r)
	}
	s, req, err := a.App.PollTopics(r.Context(), c, p)
	forgetBody(r) // it is decoded, and the poll may last
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
