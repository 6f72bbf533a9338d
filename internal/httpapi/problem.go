package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// fail tells the client what went wrong. Who is told that the daemon drains comes
// back on another connection, which may be another daemon's.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := a.problemOf(r, err)
	if p.Code == wire.CodeDraining {
		w.Header().Set("Connection", "close")
	}
	if mayComeBack(r, p) {
		a.endEventStream(w, r, p)
		return
	}
	a.writeProblem(w, p)
}

// problemOf is what the client is told of err, counted: a *wire.Problem as it is;
// anything else is our fault, logged here and hidden. If the client is gone its
// connection is closed, so that nothing ever looks like an answer.
func (a *API) problemOf(r *http.Request, err error) *wire.Problem {
	p, ok := errors.AsType[*wire.Problem](err)
	switch {
	case ok:
	case errors.Is(err, errGone) || errors.Is(err, context.Canceled) || r.Context().Err() != nil:
		panic(http.ErrAbortHandler)
	default:
		a.Log.Error("request failed", zap.String("method", r.Method), zap.Error(err))
		p = wire.NewProblem(wire.CodeInternal, "try again; if it stays, see the daemon's log", "the daemon failed")
	}
	a.Metrics.Refused.WithLabelValues(string(p.Code)).Inc()
	return p.Spread()
}

func (a *API) writeProblem(w http.ResponseWriter, p *wire.Problem) {
	h := w.Header()
	if after := p.RetryAfter(); after > 0 {
		h.Set("Retry-After", strconv.FormatInt(after, 10))
	}
	h.Set("Content-Type", wire.ProblemType)
	a.writeBody(w, p.Status, p)
}

// writeJSON answers with a value.
func (a *API) writeJSON(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", "application/json")
	a.writeBody(w, status, value)
	return nil
}

func (a *API) writeBody(w http.ResponseWriter, status int, value any) {
	a.writeWhole(w, status, lineOf(value))
}

// lineOf is a value in JSON, on one line.
func lineOf(value any) []byte {
	body, err := json.Marshal(value)
	if err != nil {
		panic("BUG: an answer does not marshal: " + err.Error())
	}
	return append(body, '\n')
}

func (a *API) writeWhole(w http.ResponseWriter, status int, body []byte) {
	a.patience(w)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone is not an error
}

// patience gives a client the write timeout from now on to take what is written.
func (a *API) patience(w http.ResponseWriter) {
	// An error means that the writer knows no deadlines, as in some tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Duration(a.writeTimeout.Load())))
}

// noHurry ends what patience began, once all is written: HTTP/2 ends a stream at its
// deadline, even if nobody writes then.
func (a *API) noHurry(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // as in patience
}

// allow lists the methods for the Allow header.
func (m methods) allow() string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
