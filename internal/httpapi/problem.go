package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/limit"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/observe"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// fail answers with the problem of err. Without one it closes the connection, so that the
// client cannot take an incomplete answer for a whole one. A draining daemon closes the
// connection after the answer: the client's next one may reach another daemon.
func (a *API) fail(w *response, r *http.Request, err error) {
	p := a.App.Problem(err, zap.String("method", r.Method), observe.RequestIDField(w.Header().Get("X-Request-Id")))
	if p == nil {
		panic(http.ErrAbortHandler)
	}
	w.entry.Refused(p)
	if p.Code == wire.CodeDraining {
		w.Header().Set("Connection", "close")
	}
	if a.endEventStream(w, r, p) {
		return
	}
	if after := limit.RetryAfter(p); after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
	}
	if challenge := listen.Challenge(p); challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	w.Header().Set("Content-Type", wire.ProblemType)
	a.writeWhole(w, p.Status, append(request.InJSON(p), '\n'))
}

// writeJSON answers with a value.
func (a *API) writeJSON(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", typeJSON)
	a.writeWhole(w, status, append(request.InJSON(value), '\n'))
	return nil
}

const typeJSON = "application/json"

// writeNothing answers with 204.
func (a *API) writeNothing(w http.ResponseWriter) error {
	a.allowWriting(w)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) writeWhole(w http.ResponseWriter, status int, body []byte) {
	a.allowWriting(w)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // that the client has left is no error
}

// allowWriting gives the client the write timeout, from now on, to read what is written.
func (a *API) allowWriting(w http.ResponseWriter) {
	// An error means that the writer knows no deadlines, as in some tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(a.Polls.Config().WriteTimeout))
}
