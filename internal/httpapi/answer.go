package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// errGone is what an answer returns that could not be written: the client is not
// there, which is not an error, and nobody is left to tell.
var errGone = errors.New("the client is gone")

// answer is a transport.Answer over net/http.
type answer struct {
	api    *API
	w      http.ResponseWriter
	flush  *http.ResponseController
	format frame.Format
	gzip   bool // it may be in gzip, if it is whole
}

func (a *API) answer(w http.ResponseWriter, format frame.Format, gzip bool) transport.Answer {
	return &answer{api: a, w: w, flush: http.NewResponseController(w), format: format, gzip: gzip}
}

// Whole implements transport.Answer.
func (n *answer) Whole(lead []byte, frames []*frame.Frame) (int, error) {
	if n.gzip {
		if m := frame.TakeMember(n.format, n.api.Polls.CompressionMinBytes(), lead, frames); m != nil {
			defer m.Release()
			return m.Raw() - len(lead), n.writeMember(m)
		}
	}
	size := len(lead)
	for _, f := range frames {
		size += len(f.Bytes(n.format))
	}
	n.w.Header().Set("Content-Length", strconv.Itoa(size))
	return n.write(lead, frames)
}

// writeMember writes a whole answer that is m.
func (n *answer) writeMember(m *frame.Member) error {
	n.api.Metrics.Compressed(m.Raw(), m.Size())
	n.api.patience(n.w)
	h := n.w.Header()
	h.Set("Content-Encoding", "gzip") // and no Vary: no-store keeps every cache from choosing
	h.Set("Content-Length", strconv.Itoa(m.Size()))
	h.Set("Content-Type", n.format.ContentType())
	for _, p := range m.Parts() {
		if _, err := n.w.Write(p.Bytes); err != nil {
			return errGone
		}
	}
	return nil
}

// Send implements transport.Answer.
func (n *answer) Send(lead []byte, frames []*frame.Frame) (int, error) {
	written, err := n.write(lead, frames)
	if err != nil {
		return written, err
	}
	if n.flush.Flush() != nil {
		return written, errGone
	}
	n.api.noHurry(n.w)
	return written, nil
}

func (n *answer) write(lead []byte, frames []*frame.Frame) (int, error) {
	n.api.patience(n.w)
	n.w.Header().Set("Content-Type", n.format.ContentType())
	written, err := n.w.Write(lead)
	for _, f := range frames {
		if err != nil {
			break
		}
		var m int
		m, err = n.w.Write(f.Bytes(n.format))
		written += m
	}
	if err != nil {
		return written, errGone
	}
	return written, nil
}
