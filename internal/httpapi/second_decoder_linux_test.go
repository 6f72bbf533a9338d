package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/gorilla/mux"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// serveLines adds a second decoder, which has other paths, and bodies of lines instead of JSON:
//
//	PUT  /lines/{topic}         an idempotency key, and the text behind it: answers the position
//	POST /lines                 topics: answers the id of a session
//	GET  /lines/{id}/{ack}      a poll
func (a *API) serveLines() {
	r := a.router.PathPrefix("/lines").Subrouter()
	a.route(r, "/{topic}", methods{"PUT": func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		topic := mux.Vars(r)["topic"]
		p, err := a.App.BeginPublish(r.Context(), c, topic)
		if err != nil {
			return err
		}
		body, err := readBody(w, r, a.App.Limits().MessageBytes)
		if err != nil {
			return err
		}
		key, text, _ := strings.Cut(string(body), "\n")
		published, err := p.Await(&request.Message{Message: wire.Message{Position: wire.Position{Topic: topic}, ID: key, Type: "text/plain", Data: []byte(text)}})
		if err != nil {
			return err
		}
		if to := w.(*response); a.Lane.TakePublish(w, r, published, to.entry) {
			to.entry = nil
			return nil
		}
		return a.writeJSON(w, http.StatusOK, published)
	}})
	a.route(r, "", methods{"POST": func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		o, err := a.App.BeginOpen(r.Context(), c, limit.Sessions, app.OfBody)
		if err != nil {
			return err
		}
		asked, err := decoded(a, w, r, &o, func(body []byte, _ int) (s session.Opening, err error) {
			for topic := range strings.Lines(string(body)) {
				s.Topics = append(s.Topics, wire.Start{Topic: strings.TrimSpace(topic)})
			}
			s.Ack = true
			return s, nil
		})
		if err != nil {
			return err
		}
		opened, err := o.Session(asked)
		if err == nil {
			_, err = io.WriteString(w, opened.Session)
		}
		return err
	}})
	a.route(r, "/{id}/{ack}", methods{"GET": func(w http.ResponseWriter, r *http.Request, c app.Caller) error {
		asked := request.Poll{HasAck: true}
		asked.Mode = transport.Batch
		asked.Ack, asked.Fault = strconv.ParseUint(mux.Vars(r)["ack"], 10, 53)
		s, answer, err := a.App.Poll(r.Context(), c, []byte(mux.Vars(r)["id"]), nil, asked)
		if err != nil {
			return err
		}
		return a.servePoll(w, r, s, answer)
	}})
}

// The seam of requests: another decoder needs no change of the app. What it opens, publishes and
// polls, the lane answers, or net/http.
func TestASecondDecoder(t *testing.T) {
	for _, way := range []lane.Way{lane.HandOff, lane.Off} {
		t.Run(string(way), func(t *testing.T) {
			k := serveLane(t, way, lanetest.Settings{}, nil)
			k.api.serveLines()
			ask := func(method, path, body string) string {
				status, answer := k.Get(method, path, body)
				require.Equal(t, http.StatusOK, status, answer)
				return answer
			}
			id := ask("POST", "/lines", "a\nb\n")
			polled := make(chan string, 1)
			go func() {
				_, answer := k.Get("GET", "/lines/"+id+"/0", "")
				polled <- answer
			}()
			onLane := 0
			if way == lane.HandOff {
				onLane = 1
			}
			k.WantOnLane(onLane)
			k.WantParked(1)
			first := ask("PUT", "/lines/b", "k\nhello")
			require.Contains(t, <-polled, `"text":"hello"`)
			require.Equal(t, first, ask("PUT", "/lines/b", "k\nhello"), "the app knows the key")
			require.Contains(t, ask("GET", "/v1/topics/b/messages", ""), `"text":"hello"`, "and the first decoder the message")
			for path, code := range map[string]wire.Code{"PUT /lines/_b": wire.CodeReservedTopic, "PUT /lines/a*": wire.CodeInvalidTopic, "GET /lines/x/0": wire.CodeSessionUnknown} {
				var method string
				_, err := fmt.Sscan(path, &method, &path)
				require.NoError(t, err)
				k.WantProblem(code, method, path, "")
			}
		})
	}
}
