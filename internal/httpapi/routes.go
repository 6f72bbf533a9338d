package httpapi

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (a *API) publish(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	published, err := a.App.Publish(r.Context(), c, app.Publish{
		Topic: mux.Vars(r)["topic"], Query: r.URL.RawQuery, ContentType: r.Header["Content-Type"], IdempotencyKeys: r.Header["Idempotency-Key"],
		Body: bodyOf(w, r),
	})
	if err != nil {
		return err
	}
	a.Metrics.HTTPPublishes.Inc()
	if a.lane != nil && a.lane.TakePublish(w, r, published) {
		return nil
	}
	return a.writeJSON(w, http.StatusOK, published)
}

func (a *API) publishMany(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	p := app.Many{
		Query: r.URL.RawQuery, ContentType: r.Header["Content-Type"], IdempotencyKeys: r.Header["Idempotency-Key"],
		Body: bodyOf(w, r),
	}
	return a.App.PublishMany(r.Context(), c, p, func(results app.Results) error {
		a.Metrics.HTTPPublishesOfMany.Inc()
		long := a.long(w, results.ContentType)
		for part := range results.Parts() {
			if err := long.append(part); err != nil {
				return err
			}
		}
		return long.end()
	})
}

func (a *API) openSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	opened, err := a.App.OpenSession(r.Context(), c, requestBodyOf(w, r))
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/sessions/"+opened.Session)
	return a.writeJSON(w, http.StatusCreated, opened)
}

func (a *API) changeSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.ChangeSession(r.Context(), c, mux.Vars(r)["id"], requestBodyOf(w, r), func(changed wire.SessionChanged) error {
		return a.writeJSON(w, http.StatusOK, changed)
	})
}

func (a *API) showSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.SessionState(r.Context(), c, mux.Vars(r)["id"], func(s wire.SessionState, subscriptions iter.Seq[wire.SubscriptionState]) error {
		long := a.long(w, typeJSON)
		patterns := s.Patterns
		s.Patterns, s.Subscriptions = nil, []wire.SubscriptionState{}
		long.begin(s, `"subscriptions":[]}`)
		if len(patterns) > 0 {
			long.text(`"patterns":[`)
			list(long, slices.Values(patterns))
			long.text(`],`)
		}
		long.text(`"subscriptions":[`)
		list(long, subscriptions)
		long.text("]}\n")
		return long.end()
	})
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	if err := a.App.CloseSession(r.Context(), c, mux.Vars(r)["id"]); err != nil {
		return err
	}
	a.patience(w)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) listTopics(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Topics(r.Context(), c, r.URL.RawQuery, func(parts iter.Seq[wire.TopicList]) error {
		after := ""
		long := a.long(w, typeJSON)
		long.text(`{"topics":[`)
		list(long, func(yield func(wire.TopicState) bool) {
			for part := range parts {
				after = part.Next
				for _, topic := range part.Topics {
					if !yield(topic) {
						return
					}
				}
			}
		})
		if long.text("]"); after != "" {
			long.text(`,"next":`)
			long.value(after)
		}
		long.text("}\n")
		return long.end()
	})
}

func (a *API) showTopic(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.Topic(r.Context(), c, mux.Vars(r)["topic"], func(state wire.TopicState) error {
		return a.writeJSON(w, http.StatusOK, state)
	})
}

func (a *API) deleteTopic(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	return a.App.DeleteTopic(r.Context(), c, mux.Vars(r)["topic"], func(state wire.TopicState) error {
		return a.writeJSON(w, http.StatusOK, state)
	})
}

func (a *API) readTopic(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	accepts := acceptsOf(r)
	h := app.History{Topic: mux.Vars(r)["topic"], Query: r.URL.RawQuery, Accepts: accepts}
	return a.App.History(r.Context(), c, h, func(pieces iter.Seq[[]*frame.Frame], format frame.Format) error {
		return a.sink(w, format, accepts.Gzip).history(pieces)
	})
}

func acceptsOf(r *http.Request) app.Accepts {
	return app.AcceptsOf(r.Header["Accept"], r.Header["Accept-Encoding"])
}

// poll answers a session's poll.
func (a *API) poll(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	s, req, err := a.App.Poll(c, app.Poll{Session: []byte(mux.Vars(r)["id"]), Query: []byte(r.URL.RawQuery), Accepts: acceptsOf(r)})
	if err != nil {
		return err
	}
	return a.serveOpened(w, r, s, req)
}

// pollTopics answers a poll without a session, whose topics are in the query or, as a
// URL may be too short for them, in the body.
func (a *API) pollTopics(w http.ResponseWriter, r *http.Request, c app.Caller) error {
	p := app.TopicPoll{Query: r.URL.RawQuery, Accepts: acceptsOf(r)}
	if r.Method == http.MethodPost {
		p.Body = requestBodyOf(w, r)
	}
	s, req, err := a.App.PollTopics(r.Context(), c, p)
	if err != nil {
		return err
	}
	return a.serveOpened(w, r, s, req)
}

// serveOpened is servePoll in a session that, unless it has an id, is the poll's own.
func (a *API) serveOpened(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request) error {
	taken := false
	defer func() {
		if !taken {
			a.App.End(s)
		}
	}()
	taken, err := a.servePoll(w, r, s, req)
	return err
}

// servePoll answers every poll that net/http has read. taken says that the lane
// continues with it.
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

// expectBody gives a client the rest timeout from now on to send what it
// announced, and counts what comes until over is called. It holds for every request:
// net/http reads what a handler left before it lets the answer go.
func (a *API) expectBody(w http.ResponseWriter, r *http.Request) (over func()) {
	if !hasBody(r) {
		return func() {}
	}
	// An error means that the connection knows no deadlines, as in some tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.Polls.RestTimeout()))
	b := &body{ReadCloser: r.Body, api: a, who: a.addressOf(r)}
	r.Body = b
	return b.over
}

// closeIfFramedTwice closes the connection after a request whose length a proxy may have
// read otherwise: one with both Content-Length and Transfer-Encoding (RFC 9112, section
// 6.1). net/http removes one of the two headers, so the request could have had both if it
// is chunked, or if it has a length in HTTP/1.0, where net/http ignores Transfer-Encoding.
func closeIfFramedTwice(w http.ResponseWriter, r *http.Request) {
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) && hasBody(r) {
		w.Header().Set("Connection", "close")
		r.Close = true // the lane does not take the connection over
	}
}

// hasBody reports whether a body comes with r. What http.Request says of Body for
// servers, http.NoBody, does not hold for HTTP/2.
func hasBody(r *http.Request) bool { return r.ContentLength != 0 }

// bodyOf returns what reads r's body.
func bodyOf(w http.ResponseWriter, r *http.Request) app.Body {
	return func(most int) ([]byte, error) {
		body, err := readAll(http.MaxBytesReader(responseOf(w).ResponseWriter, r.Body, int64(most)))
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, app.TooLarge(most)
		}
		if problem, ok := errors.AsType[*wire.Problem](err); ok {
			return nil, problem
		}
		if err != nil {
			return nil, wire.NewProblem(wire.CodeInvalidRequest, "send the whole body", "the body did not arrive: %v", err)
		}
		// The rest of the request takes its time: it may be a poll.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return body, nil
	}
}

// readAll reads r to its end. It takes memory as bytes come, not as they are
// announced, and returns no more than they need: a message may be kept for long.
func readAll(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(r)
	return bytes.Clone(body), err
}

// requestBodyOf is bodyOf for a body that is not needed once it is decoded: the request
// may be a poll, and last.
func requestBodyOf(w http.ResponseWriter, r *http.Request) app.Body {
	read := bodyOf(w, r)
	return func(most int) ([]byte, error) {
		if counted, ok := r.Body.(*body); ok {
			defer counted.over()
		}
		return read(most)
	}
}
