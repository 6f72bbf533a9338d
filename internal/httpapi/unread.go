package httpapi

import (
	"net/http"

	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/listen"
	"github.com/pubsubd/pubsubd/internal/memory"
)

// A response is an http.ResponseWriter whose bytes count in the memory account while
// its client does not take them: net/http blocks in Write.
type response struct {
	http.ResponseWriter
	api     *API
	request *http.Request
	unread  memory.UnreadBytes
	counts  bool // between wait and done
}

func (a *API) response(w http.ResponseWriter, r *http.Request) *response {
	answer := &response{ResponseWriter: w, api: a, request: r}
	answer.unread.Init(a.Broker.Memory(), answer)
	return answer
}

// responseOf returns the response that w is, or wraps.
func responseOf(w http.ResponseWriter) *response {
	for {
		if answer, ok := w.(*response); ok {
			return answer
		}
		w = w.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
	}
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Client implements memory.Owner.
func (w *response) Client() *memory.Client { return w.api.addressOf(w.request).Client() }

// CutOff implements memory.Owner. It ends all answers on a connection of HTTP/2.
func (w *response) CutOff() {
	listen.Of(listen.FromContext(w.request.Context())).CutOff()
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	if !w.counts {
		w.wait(len(b), 0, nil)
		defer w.done(0, nil)
	}
	return w.ResponseWriter.Write(b)
}

// pinFrom is from how many bytes on frames are pinned while they are written, so that
// they count even if no history holds them. Fewer bytes are not worth the price.
const pinFrom = 16 << 10

// wait counts bytes that are about to be written: own ones, and those of frames, which
// count with their messages. done must follow, with the same frames.
func (w *response) wait(own, shared int, frames []*frame.Frame) {
	if w.counts = own+shared > memory.SmallWrite; w.counts {
		w.unread.Set(own, shared)
	}
	if shared > pinFrom {
		for _, f := range frames {
			f.Pin()
		}
	}
}

func (w *response) done(shared int, frames []*frame.Frame) {
	if w.counts {
		w.unread.Set(0, 0)
		w.counts = false
	}
	if shared > pinFrom {
		for _, f := range frames {
			f.Unpin()
		}
	}
}
