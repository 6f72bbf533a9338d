package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// fail tells the client what went wrong. If nothing can be told, the connection is
// closed, so that nothing on it looks like an answer. A client that is told that the
// daemon drains reconnects, which may lead to another daemon.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := a.App.Problem(err, zap.String("method", r.Method))
	if p == nil {
		panic(http.ErrAbortHandler)
	}
	if p.Code == wire.CodeDraining {
		w.Header().Set("Connection", "close")
	}
	if mayComeBack(r, p) {
		a.endEventStream(w, r, p)
		return
	}
	a.writeProblem(w, p)
}

func (a *API) writeProblem(w http.ResponseWriter, p *wire.Problem) {
	h := w.Header()
	if after := p.RetryAfter(); after > 0 {
		h.Set("Retry-After", strconv.FormatInt(after, 10))
	}
	h.Set("Content-Type", wire.ProblemType)
	a.writeWhole(w, p.Status, append(inJSON(p), '\n'))
}

// writeJSON answers with a value.
func (a *API) writeJSON(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", typeJSON)
	a.writeWhole(w, status, append(inJSON(value), '\n'))
	return nil
}

const typeJSON = "application/json"

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
