package httpapi

import (
	"iter"
	"net/http"
	"strconv"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
)

// A sink is a transport.Sink over net/http: it blocks until the client reads.
type sink struct {
	api    *API
	w      http.ResponseWriter
	flush  *http.ResponseController
	format frame.Format
	gzip   bool // a whole answer may be in gzip
}

func (a *API) sink(w http.ResponseWriter, format frame.Format, gzip bool) *sink {
	return &sink{api: a, w: w, flush: http.NewResponseController(w), format: format, gzip: gzip}
}

// answerPoll answers a poll in the request's goroutine. An error means that nothing
// was written; see transport.Answer.Run.
func (a *API) answerPoll(w http.ResponseWriter, r *http.Request, s *session.Session, req transport.Request) error {
	var answer transport.Answer
	answer.Init(a.Polls, a.sink(w, req.Format, req.Gzip), false)
	if err := answer.Begin(s, req); err != nil {
		return err
	}
	return answer.Run(r.Context())
}

// Whole implements transport.Sink.
func (to *sink) Whole(lead []byte, frames []*frame.Frame) (int, error) {
	if to.gzip {
		if m := frame.TakeMember(to.format, to.api.Polls.CompressionMinBytes(), lead, frames); m != nil {
			defer m.Release()
			return m.Raw() - len(lead), to.writeMember(m, frames)
		}
	}
	to.w.Header().Set("Content-Length", strconv.Itoa(len(lead)+to.size(frames)))
	return to.write(lead, frames)
}

func (to *sink) size(frames []*frame.Frame) (bytes int) {
	for _, f := range frames {
		bytes += len(f.Bytes(to.format))
	}
	return bytes
}

// writeMember writes m as a whole answer.
func (to *sink) writeMember(m *frame.Member, frames []*frame.Frame) error {
	to.api.Metrics.Compressed(m.Raw(), m.Size())
	to.api.allowWriting(to.w)
	h := to.w.Header()
	h.Set("Content-Encoding", "gzip") // and no Vary: no-store keeps every cache from choosing
	h.Set("Content-Length", strconv.Itoa(m.Size()))
	h.Set("Content-Type", to.format.ContentType())
	return to.writeParts(m.Parts(), frames)
}

// writeParts writes what a member has of frames.
func (to *sink) writeParts(parts []frame.Part, frames []*frame.Frame) error {
	own, shared, waiting := 0, 0, responseOf(to.w)
	for _, p := range parts {
		if p.Frame != nil {
			shared += len(p.Bytes)
		} else {
			own += len(p.Bytes)
		}
	}
	waiting.wait(own, shared, frames)
	defer waiting.done(shared, frames)
	for _, p := range parts {
		if _, err := to.w.Write(p.Bytes); err != nil {
			return app.ErrClientGone
		}
	}
	return nil
}

// history writes frames piece by piece, which are taken as the client reads: as a whole
// answer if one piece has all. A client may take the write timeout to read all pieces.
func (to *sink) history(pieces iter.Seq[[]*frame.Frame]) error {
	next, stop := iter.Pull(pieces)
	defer stop()
	piece, _ := next()
	following, more := next()
	if !more {
		_, err := to.Whole(nil, piece)
		return err
	}
	to.api.allowWriting(to.w)
	to.w.Header().Set("Content-Type", to.format.ContentType())
	least := to.api.Polls.CompressionMinBytes()
	var m *frame.Member
	if to.gzip {
		m = frame.BeginMember(to.format, least, nil, piece)
	}
	if m == nil {
		for ; len(piece) > 0; piece, following = following, pull(next) {
			if _, err := to.writeFrames(nil, piece); err != nil {
				return err
			}
		}
		return nil
	}
	defer m.Release()
	to.w.Header().Set("Content-Encoding", "gzip")
	for {
		if err := to.writeParts(m.Parts(), piece); err != nil || len(piece) == 0 {
			to.api.Metrics.Compressed(m.Raw(), m.Size())
			return err
		}
		piece, following = following, pull(next)
		m.Continue(to.format, least, piece)
	}
}

// pull returns the next piece, or nil.
func pull(next func() ([]*frame.Frame, bool)) []*frame.Frame {
	piece, _ := next()
	return piece
}

// Send implements transport.Sink.
func (to *sink) Send(lead []byte, frames []*frame.Frame) (int, error) {
	written, err := to.write(lead, frames)
	if err != nil {
		return written, err
	}
	if to.flush.Flush() != nil {
		return written, app.ErrClientGone
	}
	to.api.endWriting(to.w)
	return written, nil
}

func (to *sink) write(lead []byte, frames []*frame.Frame) (int, error) {
	to.api.allowWriting(to.w)
	to.w.Header().Set("Content-Type", to.format.ContentType())
	return to.writeFrames(lead, frames)
}

func (to *sink) writeFrames(lead []byte, frames []*frame.Frame) (int, error) {
	shared, waiting := to.size(frames), responseOf(to.w)
	waiting.wait(len(lead), shared, frames)
	defer waiting.done(shared, frames)
	written, err := to.w.Write(lead)
	for _, f := range frames {
		if err != nil {
			break
		}
		var m int
		m, err = to.w.Write(f.Bytes(to.format))
		written += m
	}
	if err != nil {
		return written, app.ErrClientGone
	}
	return written, nil
}
