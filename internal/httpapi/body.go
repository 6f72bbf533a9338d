package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/internal/memory"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A body is the body of a request. Until over, the bytes read count in the memory
// account, and against the client's address.
type body struct {
	io.ReadCloser
	memory *memory.Account
	answer *response
	held   memory.UnfinishedBytes
	read   int64
}

// Read implements io.Reader. The error may be a *wire.Problem.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if full := b.held.Set(b.memory, b.read, b.answer); full != nil {
		return 0, full
	}
	return n, err
}

// over ends the count. It may be called again.
func (b *body) over() { _ = b.held.Set(b.memory, 0, b.answer) }

// expectBody gives the client the rest timeout to send the body, and counts its bytes
// until over is called. It is for every request: net/http reads what a handler has not
// read before it sends the answer.
func (a *API) expectBody(w *response, r *http.Request) (over func()) {
	if !hasBody(r) {
		return func() {}
	}
	// An error means that the connection has no deadlines, as in some tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.Polls.Config().RestTimeout))
	b := &body{ReadCloser: r.Body, memory: a.Polls.Memory(), answer: w}
	r.Body = b
	return b.over
}

// closeIfFramedTwice closes the connection after a request that may have both Content-Length
// and Transfer-Encoding: a proxy may disagree about its length (RFC 9112, section 6.1).
// net/http removes one of the two headers. So a chunked request may have had a length. A
// request of HTTP/1.0 with a length may have been chunked: net/http ignores that.
func closeIfFramedTwice(w http.ResponseWriter, r *http.Request) {
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) && hasBody(r) {
		w.Header().Set("Connection", "close")
		r.Close = true // the lane does not take the connection over
	}
}

// hasBody reports whether r has a body. For HTTP/2, Body is never http.NoBody.
func hasBody(r *http.Request) bool { return r.ContentLength != 0 }

// checkWhole returns a problem if r's body stands for other bytes: it has a coding, which the
// daemon would have to undo, or is a part of them. It reads nothing.
func checkWhole(answer http.Header, r *http.Request) error {
	for coding := range strings.SplitSeq(strings.Join(r.Header["Content-Encoding"], ","), ",") {
		if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
			answer.Set("Accept-Encoding", "identity") // RFC 9110, section 12.5.3
			return problem.New(wire.CodeUnsupportedType, "send the body without a coding", "Content-Encoding %s is not supported", wire.Quote(coding))
		}
	}
	if r.Header["Content-Range"] != nil { // RFC 9110, section 14.5
		return problem.New(wire.CodeInvalidRequest, "send the whole body, without Content-Range", "a request must not send a part of a body")
	}
	return nil
}

// readBody reads r's body, which must have at most so many bytes.
func readBody(w http.ResponseWriter, r *http.Request, most int) ([]byte, error) {
	if err := checkWhole(w.Header(), r); err != nil {
		return nil, err
	}
	body, err := readAtMost(w.(*response).ResponseWriter, r, most)
	if err != nil {
		return nil, err
	}
	// The rest of the request has no deadline: it may be a poll.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return bytes.Clone(body), nil // without spare capacity: history may keep it for long
}

// readAtMost reads r's body, which must have at most so many bytes. w is net/http's own.
func readAtMost(w http.ResponseWriter, r *http.Request, most int) ([]byte, error) {
	if r.ContentLength > int64(most) && sendsLater(r) {
		return nil, request.TooLarge(most)
	}
	// ReadAll allocates as bytes arrive, whatever length was announced.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(most)))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, request.TooLarge(most)
	}
	if refused, ok := errors.AsType[*wire.Problem](err); ok {
		return nil, refused
	}
	if err != nil {
		return nil, problem.New(wire.CodeInvalidRequest, "send the whole body", "the body did not arrive: %v", err)
	}
	return body, nil
}

// sendsLater reports whether r's client can be answered before it sends the body: it waits for 100,
// which does not exist in HTTP/1.0 (RFC 9110, section 10.1.1), or HTTP/2 lets it stop (RFC 9113,
// section 8.1). Any other client is sending already. It may miss an answer that comes before the end.
func sendsLater(r *http.Request) bool {
	return r.ProtoMajor > 1 || r.Header["Expect"] != nil && r.ProtoAtLeast(1, 1)
}
