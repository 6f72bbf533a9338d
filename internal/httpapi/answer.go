package httpapi

import (
	"context"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/frame"
)

// A sink is a transport.Sink over net/http: it blocks until the client reads.
type sink struct {
	api    *API
	w      *response
	format frame.Format
	gzip   bool         // a whole answer may be in gzip
	parts  []frame.Part // memory of plain
}

func (a *API) sink(w http.ResponseWriter, format frame.Format, gzip bool) *sink {
	return &sink{api: a, w: w.(*response), format: format, gzip: gzip}
}

// begin gives the client the write timeout to read what follows, and names its format.
func (to *sink) begin() http.Header {
	to.api.allowWriting(to.w)
	to.w.Header().Set("Content-Type", to.format.ContentType())
	return to.w.Header()
}

// plain returns lead and frames without compression, and the size of the frames. The parts
// hold until the next call.
func (to *sink) plain(lead []byte, frames []*frame.Frame) (parts []frame.Part, size int) {
	clear(to.parts)
	to.parts = append(to.parts[:0], frame.Part{Bytes: lead})
	for _, f := range frames {
		b := f.Bytes(to.format)
		to.parts = append(to.parts, frame.Part{Bytes: b, Frame: f})
		size += len(b)
	}
	return to.parts, size
}

// Whole implements transport.Sink.
func (to *sink) Whole(lead []byte, frames []*frame.Frame) (int, error) {
	h := to.begin()
	if to.gzip {
		if m := frame.TakeGzipMember(to.format, to.api.Polls.Config().CompressionMinBytes, lead, frames); m != nil {
			defer m.Release()
			to.api.Metrics.Compressed(m.Raw(), m.Size())
			h.Set("Content-Encoding", "gzip") // and no Vary: no-store keeps every cache from choosing
			h.Set("Content-Length", strconv.Itoa(m.Size()))
			return m.Raw() - len(lead), to.w.write(m.Parts())
		}
	}
	parts, size := to.plain(lead, frames)
	h.Set("Content-Length", strconv.Itoa(len(lead)+size))
	return size, to.w.write(parts)
}

// Send implements transport.Sink.
func (to *sink) Send(lead []byte, frames []*frame.Frame) (int, error) {
	to.begin()
	parts, size := to.plain(lead, frames)
	if err := to.w.write(parts); err != nil {
		return 0, err
	}
	answer := http.NewResponseController(to.w)
	if answer.Flush() != nil {
		return 0, app.ErrClientGone
	}
	clear(to.parts)                          // a stream may wait long for the next frames
	_ = answer.SetWriteDeadline(time.Time{}) // HTTP/2 resets a stream at its deadline, even if nothing is being written
	return size, nil
}

// history writes pieces of frames, and takes each as the client reads. A single piece is a
// whole answer. The write timeout is for all pieces together. It reads and compresses in turns,
// and leaves the slot of the call in the first.
func (to *sink) history(ctx context.Context, pieces iter.Seq[[]*frame.Frame], leave func()) error {
	if err := to.w.takeTurn(ctx, to.api.Limiter); err != nil {
		return err
	}
	leave()
	next, stop := iter.Pull(pieces)
	defer stop()
	piece, _ := next()
	following, more := next()
	if !more {
		_, err := to.Whole(nil, piece)
		return err
	}
	h, least := to.begin(), to.api.Polls.Config().CompressionMinBytes
	var m *frame.GzipMember
	if to.gzip {
		m = frame.BeginGzipMember(to.format, least, nil, piece)
	}
	if m != nil {
		h.Set("Content-Encoding", "gzip")
		defer func() { to.api.Metrics.Compressed(m.Raw(), m.Size()); m.Release() }()
	}
	for {
		var parts []frame.Part
		if m != nil {
			parts = m.Parts()
		} else {
			parts, _ = to.plain(nil, piece)
		}
		if err := to.w.write(parts); err != nil || len(piece) == 0 {
			return err
		}
		if err := to.w.takeTurn(ctx, to.api.Limiter); err != nil {
			return err
		}
		piece = following
		following, _ = next()
		if m != nil {
			m.Continue(to.format, least, piece)
		}
	}
}
