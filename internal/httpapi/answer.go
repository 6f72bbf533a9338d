package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// errGone is what an answer returns that could not be written: the client is not
// there, which is not an error, and nobody is left to tell.
var errGone = errors.New("the client is gone")

// answer is a transport.Answer over net/http.
type answer struct {
	api   *API
	w     http.ResponseWriter
	flush *http.ResponseController
}

func (a *API) answer(w http.ResponseWriter) transport.Answer {
	return &answer{api: a, w: w, flush: http.NewResponseController(w)}
}

// Whole implements transport.Answer.
func (n *answer) Whole(lead []byte, frames []*wire.Frame) (int, error) {
	size := len(lead)
	for _, f := range frames {
		size += len(f.Bytes(wire.NDJSON))
	}
	n.w.Header().Set("Content-Length", strconv.Itoa(size))
	return n.write(lead, frames)
}

// Send implements transport.Answer.
func (n *answer) Send(lead []byte, frames []*wire.Frame) (int, error) {
	written, err := n.write(lead, frames)
	if err != nil {
		return written, err
	}
	if n.flush.Flush() != nil {
		return written, errGone
	}
	return written, nil
}

func (n *answer) write(lead []byte, frames []*wire.Frame) (int, error) {
	n.api.patience(n.w)
	n.w.Header().Set("Content-Type", wire.NDJSON.ContentType())
	written, err := n.w.Write(lead)
	for _, f := range frames {
		if err != nil {
			break
		}
		var m int
		m, err = n.w.Write(f.Bytes(wire.NDJSON))
		written += m
	}
	if err != nil {
		return written, errGone
	}
	return written, nil
}

// acceptable returns a problem unless the client takes NDJSON, the one format
// there is: format= beats Accept, which accepts is about.
func acceptable(q url.Values, accepts bool) error {
	format, err := one(q, "format")
	switch {
	case err != nil:
		return err
	case q.Has("format") && format != "json":
		return wire.NewProblem(wire.CodeNotAcceptable, "say format=json", "there is no format %.40q", format)
	case q.Has("format"), accepts:
		return nil
	}
	return wire.NewProblem(wire.CodeNotAcceptable, "accept application/x-ndjson, or say format=json", "the answer is application/x-ndjson, which is not accepted")
}

// accepted reports whether an Accept header takes NDJSON: whether the most
// specific range that matches it has a weight above zero (RFC 9110, section
// 12.5.1). There is one format, so weights matter no further. application/json
// matches: it is what curl --json and many libraries say without being asked.
func accepted(accept []string) bool {
	ranges := map[string]int{"*/*": 1, "application/*": 2, "application/json": 3, "application/x-ndjson": 4}
	header := strings.ToLower(strings.Join(accept, ","))
	best, taken := 0, strings.Trim(header, ", \t") == ""
	for part := range strings.SplitSeq(header, ",") {
		mediaRange, params, _ := strings.Cut(part, ";")
		if rank := ranges[strings.TrimSpace(mediaRange)]; rank > best {
			best, taken = rank, !isZeroWeight(params)
		}
	}
	return taken
}

func isZeroWeight(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		if q, ok := strings.CutPrefix(strings.TrimSpace(param), "q="); ok {
			weight, err := strconv.ParseFloat(q, 64)
			return err == nil && weight == 0
		}
	}
	return false
}
